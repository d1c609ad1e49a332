"""Ask whether a host answers before a library that waits for minutes does."""

from __future__ import annotations

import os
import socket
import threading
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

SECONDS = 1.5


def reachable(url: str, seconds: float = SECONDS) -> bool:
    """Whether a TCP connection to the host of `url`, or to the proxy in front of it, opens in time."""
    target = urlsplit(url)
    proxy = getproxies().get(target.scheme)
    if proxy and not proxy_bypass(target.hostname or ""):
        target = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
    port = target.port or (443 if target.scheme == "https" else 80)
    opened = threading.Event()
    done = threading.Event()

    def connect() -> None:
        try:
            socket.create_connection((target.hostname or "", port), timeout=seconds).close()
            opened.set()
        except (OSError, UnicodeError):
            pass
        finally:
            done.set()

    # name resolution knows no timeout and a host may have many addresses: a late thread is left behind
    threading.Thread(target=connect, daemon=True).start()
    done.wait(seconds)
    return opened.is_set()


def hub_endpoint() -> str:
    """The Hugging Face Hub or the mirror named by HF_ENDPOINT."""
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def hub_offline() -> bool:
    """Whether the user asked the Hugging Face libraries to use their cache only."""
    switches = (os.environ.get(name, "") for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"))
    return any(value.upper() in {"1", "ON", "YES", "TRUE"} for value in switches)
