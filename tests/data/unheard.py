"""A network where nobody answers, whatever else goes on on this machine."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import ModuleType

import pytest

from modernllm.data import network

PATIENCE = 60.0
"""Seconds that a busy machine is given, and an answer is waited for."""


@contextmanager
def refused_at_once(monkeypatch: pytest.MonkeyPatch, asking: ModuleType) -> Iterator[str]:
    """Where `asking` tries: a port that is taken, so that no other process gets it, and takes no connection itself."""
    patiently(monkeypatch, asking)
    start = time.monotonic()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"
    assert time.monotonic() - start < PATIENCE


def patiently(monkeypatch: pytest.MonkeyPatch, asking: ModuleType) -> None:
    """Without proxies, and not switched off by the environment."""
    monkeypatch.setattr(network, "getproxies", dict)
    monkeypatch.setattr(asking, "reachable", partial(network.reachable, seconds=PATIENCE))
    for name in ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
