"""Where prepared data lies, and how files get there: whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock


def default_cache() -> Path:
    """$MODERNLLM_CACHE, else $XDG_CACHE_HOME/modernllm, else ~/.cache/modernllm."""
    if own := os.environ.get("MODERNLLM_CACHE"):
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "modernllm"


def key_of(**parts: Any) -> str:
    """SHA-256 of named values: everything that shapes a result belongs in its key."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say which path could not be written, and what to do, whatever the cause."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        advice = "make room or allow writing, or set MODERNLLM_CACHE to another folder"
        raise OSError(error.errno, f"cannot write the data cache at {path}: {reason}; {advice}") from None


def write_whole(path: Path, data: bytes) -> None:
    """Write through a temporary file: a reader sees the old content or the new, never a part."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """One process at a time makes `path`, the others wait; a process that dies lets go."""
    lock = FileLock(f"{path}.lock")
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    try:
        yield
    finally:
        lock.release()
