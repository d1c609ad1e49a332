"""Processes forked from a server that has torch imported already: fifteen milliseconds and no memory of the caller."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import forkserver, resource_tracker
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

TRIES, PAUSE = 5, 0.5
CALM = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
"""For the server: threads started there would be missing in what is forked from it."""
SERVER_LOST = 255
"""What multiprocessing calls the exit code of a process that it can no longer ask the server about."""
SIGNALS = {number.value: number.name for number in signal.Signals}


@dataclass(frozen=True)
class Surroundings:
    """What a forked process takes from the server and not from the command: it is told."""

    folder: str
    environment: Mapping[str, str]
    threads: int

    def enter(self) -> None:
        """OSError if the folder is gone."""
        os.environ.clear()
        os.environ.update(self.environment)
        os.chdir(self.folder)


@contextmanager
def fork_server() -> Iterator[tuple[ForkServerContext, dict[str, str]]]:
    """Where processes are made, and the environment of before, which they should be given. The server is started by the
    first one, and by the next after it was killed, with CALM variables and with this package on its path.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["modernllm.executor.warm"])
    package = str(Path(__file__).resolve().parents[2])
    here = CALM | {"PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))}
    before = dict(os.environ)
    os.environ.update(here)
    try:
        yield context, before
    finally:
        for name in here:
            os.environ.pop(name)
        os.environ.update({name: before[name] for name in here if name in before})


def begin(process: ForkServerProcess) -> None:
    """Start it. OSError if no process can be forked."""
    for _ in range(TRIES):
        try:
            start_server()
            process.start()
            return
        except (EOFError, ConnectionError):  # the server was killed at this moment: a new one is started
            time.sleep(PAUSE)
    raise OSError("the server that forks the runs ends as soon as it is started; it may have said why above")


def start_server() -> None:
    """If there is none: with Ctrl-C blocked, until it has imported `warm` and is in a session of its own."""
    resource_tracker.ensure_running()  # first, since it lets Ctrl-C in again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def in_words(code: int) -> str:
    """Of a process that did not say why it ended."""
    if code == -signal.SIGKILL:
        return "killed by SIGKILL: by hand, or for want of memory"
    if code < 0:
        return f"killed by {SIGNALS.get(-code, f'signal {-code}')}"
    return f"left with exit code {code}"
