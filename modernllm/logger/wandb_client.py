"""Script behind `WandbLogger`: JSON lines in, calls of the W&B client out. Uses no module of this package.

In: {"do": "start" | "log" | "event" | "finish", ...}. Out: {"ready": true} or {"retry": true} after a
start; {"problem": sentence}, {"lost": why}, {"done": true}.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import math
import os
import re
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

QUIET = {
    "silent": True,
    "console": "off",
    "disable_git": True,
    "x_disable_stats": True,
    "x_disable_meta": True,
    "x_save_requirements": False,
    "x_transaction_log_flush_interval": 1.0,  # the default loses the first 15 s of a killed run
    "finish_timeout": 10.0,
    "finish_timeout_raises": True,
}
ORPHAN_SECONDS = 60.0  # for a client that hangs when nobody is left to end it
ROOM = 4096  # bytes that the client's disk should have
ROOM_SECONDS = 1.0  # between two looks whether it has


class Client:
    """One W&B run."""

    def __init__(self, tell: Callable[[dict], None]) -> None:
        self.tell = tell
        self.run: Any = None
        self.offset: int | None = None
        self.defined: set[str] = set()
        self.folder = ""
        self.looked = -ROOM_SECONDS

    def start(self, mode: str, quiet: bool, timeout: float, init: dict) -> None:
        wandb: Any = importlib.import_module("wandb")
        known = getattr(wandb.Settings, "model_fields", {})
        chosen = QUIET | {"init_timeout": timeout}
        settings = wandb.Settings(**{name: value for name, value in chosen.items() if name in known})
        try:
            self.run = wandb.init(mode=mode, settings=settings, **init)
        except Exception as error:
            if mode == "offline":
                raise
            said = " ".join(str(error).split())
            no_key = isinstance(error, wandb.errors.UsageError) and re.search("api.?key", said, re.IGNORECASE)
            if not (no_key and quiet):
                self.tell({"problem": f"W&B: not online within {timeout:g} s ({said}), continuing offline"})
            leave(self.tell, {"retry": True})
        self.run.config.update(init["config"], allow_val_change=True)  # a resumed run may have more steps
        self.folder = os.path.join(init["dir"], "wandb")
        self.tell({"ready": True})

    def log(self, row: dict) -> None:
        """The x-axis of every chart is the row's own `tokens`. W&B's counter equals `step`, but where a run resumes
        below it rows would be dropped, so there they are counted on above it."""
        for key in row:
            section, slash, _ = key.partition("/")
            name = section + slash + ("*" if slash else "")
            if name not in self.defined and name not in ("step", "tokens"):
                self.run.define_metric(name, step_metric="tokens")
            self.defined.add(name)
        if self.offset is None:
            self.offset = max(0, self.run.starting_step - row["step"])
        self.run.log(row, step=row["step"] + self.offset)
        if time.monotonic() - self.looked > ROOM_SECONDS:
            self.look_for_room()

    def look_for_room(self) -> None:
        """W&B itself says only to its own log that a row could not be written, as on a full disk."""
        self.looked = time.monotonic()
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                file.write(bytes(ROOM))
        except OSError as error:
            said = f"W&B cannot write ({error.strerror}), rows may be missing there; the local record has them all"
            self.tell({"problem": said})

    def event(self, event: dict) -> None:
        if event.get("kind") == "nonfinite":
            title = f"non-finite at step {event.get('step')}"
            self.run.alert(title=title, text=f"{self.run.name}: {event.get('message', '')}", level="WARN")

    def finish(self, summary: dict, failed: bool) -> None:
        if self.defined:
            self.run.log({}, commit=True)  # else the last row is written after the summary, over it
        self.run.summary.update({key: strict(value) for key, value in summary.items()})
        try:
            self.run.finish(exit_code=int(failed))
        except TimeoutError:
            folder = self.run.settings.root_dir
            self.tell({"problem": f"W&B: the upload was not finished; python scripts/sync.py {folder} sends the rest"})
            leave(self.tell, {"done": True})
        self.look_for_room()

    def serve(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            if not line.endswith(b"\n"):
                break  # torn when training was killed
            message = json.loads(line)
            do = message.pop("do")
            getattr(self, do)(**message)
            if do == "finish":
                return
        if self.run:  # the input ended without a word: training was killed
            self.finish({"status": "interrupted"}, failed=True)


def strict(value: Any) -> Any:
    """Non-finite numbers as the strings that W&B uses in the history; in a summary it makes them null."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def leave(tell: Callable[[dict], None], answer: dict) -> NoReturn:
    """Answer and go without the client's exit hooks, which would wait for the server again."""
    tell(answer)
    with contextlib.suppress(OSError):  # the log may lie on the disk that is full
        sys.stderr.flush()
    os._exit(0)


def end_with(parent: int) -> None:
    """Leave some time after the parent is gone, whatever the client hangs in."""
    while os.getppid() == parent:
        time.sleep(1.0)
    time.sleep(ORPHAN_SECONDS)
    os._exit(1)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    lines = os.fdopen(os.dup(0), "rb")
    answers = os.fdopen(os.dup(1), "wb", buffering=0)
    # the client and its service inherit neither pipe: no prompt can be read, nothing it prints is an answer
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    threading.Thread(target=end_with, args=(os.getppid(),), daemon=True).start()

    def tell(answer: dict) -> None:
        with contextlib.suppress(OSError):  # nobody may be left to hear it
            answers.write(json.dumps(answer).encode() + b"\n")

    try:
        Client(tell).serve(lines)
        tell({"done": True})
    except Exception as error:
        with contextlib.suppress(OSError):
            traceback.print_exc()
        leave(tell, {"lost": f"{type(error).__name__}: {' '.join(str(error).split())}"})


if __name__ == "__main__":
    main()
