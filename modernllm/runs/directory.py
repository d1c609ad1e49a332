"""A run on disk: the local record, which is the truth that everything else mirrors."""

from __future__ import annotations

import json
import math
import os
import shutil
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

import yaml
from filelock import FileLock, Timeout

RECORDS = ("metrics.jsonl", "telemetry.jsonl", "events.jsonl")
"""What grows with the steps of a run, and is cut where a resumed one goes on."""
CONSOLE = "console.txt"
"""What a run of a sweep would have said on a terminal."""

LOOK, GLANCE = 0.01, 0.5
"""Seconds for which one who looks, and one who wants the run, asks again before whoever holds it is believed to do more
than look: that is to hold it for a moment.
"""
SILENCE = 60.0
"""Seconds without a heartbeat after which a run is taken for dead where its lock cannot be tried."""

NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def to_json(value: Any) -> Any:
    """Plain JSON: numpy and tensor scalars become numbers, non-finite numbers the strings of NON_FINITE."""
    if isinstance(value, dict):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def from_json(value: Any) -> Any:
    """The inverse of `to_json`."""
    if isinstance(value, dict):
        return {key: from_json(item) for key, item in value.items()}
    if isinstance(value, list):
        return [from_json(item) for item in value]
    return NON_FINITE.get(value, value) if isinstance(value, str) else value


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """OSErrors inside name the file and what room there is."""
    try:
        yield
    except OSError as error:
        free = shutil.disk_usage(path.parent).free / 1e6
        raise OSError(error.errno, f"cannot write {path}: {error.strerror}; {free:.1f} MB are free there") from error


def write_atomically(path: Path, text: str) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with writing(path):
        try:
            temporary.write_text(text, encoding="utf-8")
            os.replace(temporary, path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a JSON-lines file; a torn last line (a killed writer) is left out. ValueError names a damaged one."""
    if not path.exists():
        return []
    *lines, _ = path.read_bytes().split(b"\n")
    return [_parsed(line, f"{path}, line {number}") for number, line in enumerate(lines, 1)]


def read_json(path: Path) -> dict[str, Any]:
    """ValueError, naming the file, if it does not hold what was once written there."""
    return _parsed(path.read_bytes(), str(path))


def _parsed(text: bytes, place: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{place} is damaged: {error}; overwrite=true runs it again") from None
    if not isinstance(found, dict):
        raise ValueError(f"{place} is damaged: it holds no record; overwrite=true runs it again")
    return from_json(found)


class RunningElsewhere(RuntimeError):
    """Another process is at work on this run."""


class RunDirectory:
    """`config.yaml run.json`, what RECORDS name, `status.json checkpoints/ nonfinite/`, held by one process."""

    def __init__(self, path: Path):
        self.path = path
        self.checkpoints = path / "checkpoints"
        self.nonfinite = path / "nonfinite"
        self._lock = FileLock(path / ".lock")
        self._files: dict[str, TextIO] = {}
        self._beat = 0.0

    def status(self) -> dict[str, Any]:
        """The content of status.json, {} before there is one; `running` without a living process is `interrupted`."""
        path = self.path / "status.json"
        if not path.exists():
            return {}
        try:
            status = read_json(path)
        except ValueError:  # what a run was doing is lost with it, not what it recorded
            status = {}
        status.setdefault("status", "interrupted")
        if status["status"] == "running" and not self._lock.is_locked and self._is_free(status):
            status["status"] = "interrupted"
        return status

    def _is_free(self, status: dict[str, Any]) -> bool:
        try:
            with self._lock.acquire(timeout=LOOK, poll_interval=LOOK / 5):
                return True
        except Timeout:
            return False
        except OSError:  # nobody may write here, or not we: whoever is at work is heard of
            return time.time() - float(status.get("time", 0)) > SILENCE

    def acquire(self) -> None:
        """Take the run, or raise RunningElsewhere. A dead process holds nothing."""
        self.path.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire(timeout=GLANCE, poll_interval=GLANCE / 50)
        except Timeout:
            raise RunningElsewhere(
                f"{self.path} is being run by another process: wait for it, or change the configuration"
            ) from None

    def release(self) -> None:
        self._close()
        self._lock.release()

    def _close(self) -> None:
        for file in self._files.values():
            with suppress(OSError):  # a row that did not fit is tried again here; it was told of when it did not
                file.close()
        self._files.clear()

    def clear(self) -> None:
        """Forget an earlier run of the same configuration; that it had finished first, since a kill may come here."""
        (self.path / "status.json").unlink(missing_ok=True)
        for path in self.path.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            elif path.name == CONSOLE:
                os.truncate(path, 0)  # this process may be writing to it
            elif path.name != ".lock":
                path.unlink()

    def open(self, config: dict[str, Any], identity: dict[str, Any]) -> None:
        """Write what is known before the first step."""
        write_atomically(self.path / "config.yaml", yaml.safe_dump(config, sort_keys=False, allow_unicode=True))
        write_atomically(self.path / "run.json", json.dumps(to_json(identity), indent=2, ensure_ascii=False) + "\n")

    def metrics(self, row: dict[str, Any]) -> None:
        self._append("metrics.jsonl", row)

    def telemetry(self, row: dict[str, Any]) -> None:
        self._append("telemetry.jsonl", row)

    def event(self, kind: str, step: int, message: str, **details: Any) -> dict[str, Any]:
        event = {"step": step, "kind": kind, "message": message, **details}
        self._append("events.jsonl", event)
        return event

    def _append(self, name: str, row: dict[str, Any]) -> None:
        with writing(self.path / name):
            if name not in self._files:
                self._files[name] = (self.path / name).open("a", encoding="utf-8")
            self._files[name].write(json.dumps(to_json(row), allow_nan=False) + "\n")
            self._files[name].flush()

    def sync(self) -> None:
        """Onto the disk itself: what a checkpoint stands for must survive whatever the checkpoint survives."""
        for name, file in self._files.items():
            with writing(self.path / name):
                os.fsync(file.fileno())

    def holds(self, step: int, evaluated: bool) -> bool:
        """Whether every step up to `step` is recorded, and its evaluation where it was `evaluated`."""
        rows = read_rows(self.path / "metrics.jsonl")
        trained = {row["step"] for row in rows if "grad_norm" in row}
        known = not evaluated or any(row["step"] == step for row in rows if "val_loss" in row)
        return known and trained.issuperset(range(1, step + 1))

    def truncate(self, step: int) -> None:
        """Drop what was recorded after `step`, from where a resumed run goes on (and a line torn by a kill)."""
        self._close()  # what is open would go on in the file that is replaced
        for name in RECORDS:
            path = self.path / name
            if path.exists():
                rows = [row for row in read_rows(path) if row["step"] <= step]
                write_atomically(path, "".join(json.dumps(to_json(row), allow_nan=False) + "\n" for row in rows))
        for path in self.nonfinite.glob("step-*.pt"):
            if int(path.stem.removeprefix("step-")) > step:
                path.unlink()

    def rows(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """What was recorded: metrics, events."""
        return read_rows(self.path / "metrics.jsonl"), read_rows(self.path / "events.jsonl")

    def telemetry_rows(self) -> list[dict[str, Any]]:
        return read_rows(self.path / "telemetry.jsonl")

    def mark(self, status: str, **details: Any) -> None:
        """Replace status.json."""
        content = {"status": status, **details, "pid": os.getpid(), "host": socket.gethostname(), "time": time.time()}
        write_atomically(self.path / "status.json", json.dumps(to_json(content), indent=2) + "\n")
        self._beat = time.monotonic()

    def heartbeat(self, **details: Any) -> None:
        """Mark `running` again, every few seconds at most."""
        if time.monotonic() - self._beat > 5:
            self.mark("running", **details)
