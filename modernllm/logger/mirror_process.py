"""A script in a process of its own that is told things and can never hold up the one who tells.

Why a process and not only a thread: a tracker's client brings an import of half a second, exit hooks that
wait for uploads, an exception hook and state for the whole process. All that stays outside the training
process, a hung client can be ended, and when training is killed the script sees its input end and still
closes the record.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

QUEUE_LIMIT = 20_000  # messages that wait while the client connects; above that rows are dropped, not memory filled


class MirrorProcess:
    """Gives each of `starts` to a fresh process of `script` until one takes it, then feeds it JSON lines.

    The script answers a start with {"ready": true} or {"retry": true}, and may say {"problem": sentence} or
    {"lost": why} at any time; sentences reach `problem`. Nothing raises or blocks, only `close` waits.
    """

    def __init__(self, script: Path, log: Path, starts: list[dict], problem: Callable[[str], None]) -> None:
        self._script = script
        self._log = log
        self._starts = starts
        self._problem = problem
        self._lines: queue.Queue[bytes | None] = queue.Queue(QUEUE_LIMIT)
        self._process: subprocess.Popen[bytes] | None = None
        self._given_up = False
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)
        self._thread.start()

    def send(self, message: dict) -> None:
        """Queue a message; with one problem, dropped where it cannot be sent or the process is far behind."""
        try:
            self._put(_line(message), 0.0)
        except queue.Full:
            self._problem("W&B is too slow, rows are missing there; the local record has them all")
        except (TypeError, ValueError) as error:
            self._problem(f"W&B: a row cannot be sent ({error}); the local record has it")

    def close(self, message: dict, wait: float) -> bool:
        """Queue the last message and wait; False if the process had to be ended after `wait` seconds."""
        deadline = time.monotonic() + wait
        try:
            self._put(_line(message), wait)
            self._put(None, deadline - time.monotonic())
        except (queue.Full, TypeError, ValueError):
            pass  # the process gets no end and is ended
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if not self._thread.is_alive():
            return True
        self._given_up = True
        if self._process:
            self._process.kill()
        return False

    def _put(self, line: bytes | None, wait: float) -> None:
        if self._thread.is_alive():  # else nobody empties the queue any more
            self._lines.put(line, block=wait > 0.0, timeout=wait)

    def _work(self) -> None:
        try:
            for start in self._starts:
                with self._spawn() as process:
                    if self._converse(process, start):
                        return
        except Exception as error:  # whatever it is, training goes on
            self._lose(f"{type(error).__name__}: {error}")

    def _spawn(self) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            self._process = process = subprocess.Popen(
                # -P: no folder named wandb beside the script or in the current folder shadows the package
                [sys.executable, "-P", "-W", "ignore", str(self._script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,  # raw files have no lock that a daemon thread could hold when the interpreter ends
                env=environment(),
                start_new_session=True,  # Ctrl-C is for training; and there is no terminal to prompt on
            )
        if self._given_up:
            process.kill()
        return process

    def _converse(self, process: subprocess.Popen[bytes], start: dict) -> bool:
        """True once the process has had its say, False if it wants the next start."""
        assert process.stdin
        assert process.stdout
        answers = map(self._heard, process.stdout)
        try:
            _write(process.stdin, _line(start))
            said = next((answer for answer in answers if answer.keys() & {"ready", "retry", "lost"}), {})
            if "retry" in said:
                return False
            while "ready" in said and (line := self._lines.get()) is not None:
                _write(process.stdin, line)
            process.stdin.close()
        except BrokenPipeError:
            said = {}  # it has ended; what it said last tells why
        if not any(answer.keys() & {"done", "lost"} for answer in [said, *answers]):
            self._lose(f"its process ended with code {process.wait()}")
        return True

    def _heard(self, line: bytes) -> dict[str, Any]:
        answer: dict[str, Any] = json.loads(line)
        if "problem" in answer:
            self._problem(answer["problem"])
        if "lost" in answer:
            self._lose(answer["lost"])
        return answer

    def _lose(self, why: str) -> None:
        if not self._given_up:
            self._problem(f"tracker lost: {why}; the local record is complete")


def environment() -> dict[str, str]:
    """Of a process of the client."""
    # no reports to the client's makers, unless the user has asked for them
    inherited = {"WANDB_ERROR_REPORTING": "false"} | dict(os.environ)
    inherited.pop("WANDB_MODE", None)  # decided already, and a wrong value would stop the client
    inherited.pop("WANDB_SERVICE", None)  # a caller's service, which may end before this run
    return inherited


def _write(pipe: IO[bytes], line: bytes) -> None:
    rest = memoryview(line)
    while rest:
        rest = rest[pipe.write(rest) :]


def _line(message: dict) -> bytes:
    return json.dumps(message, default=_plain).encode() + b"\n"


def _plain(value: Any) -> Any:
    """A number of numpy or torch as Python's; anything else as text."""
    try:
        return value.item()
    except (AttributeError, RuntimeError, ValueError):
        return str(value)
