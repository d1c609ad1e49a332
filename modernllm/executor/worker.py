"""One run in a process of its own: what the child does between being forked and its exit code."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from contextlib import suppress
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from modernllm.executor.forking import Surroundings
from modernllm.runs.directory import CONSOLE
from modernllm.sweep.plan import Planned

BUSY = 256
"""Another process is at work on this run. No process can end with this code by itself: they stop at 255."""
LONGEST = 2000
"""Letters of a reason: a pipe that nobody reads yet takes so many without a halt."""
PATIENCE = 30.0
"""Seconds that a run has to save itself once its sweep is gone."""


def work(run: Planned, surroundings: Surroundings, answer: Connection) -> None:
    """Do the run, with its output in a file beside its record; answer with its exit code and what went wrong."""
    threading.Thread(target=follow_the_sweep, daemon=True).start()
    try:
        surroundings.enter()
        run.path.mkdir(parents=True, exist_ok=True)
        write_to(run.path / CONSOLE)
        code, reason = attempt(run, surroundings.threads)
    except OSError as error:  # no room and no right to write: there is no file for it either
        code, reason = 1, str(error)
    answer.send((code, reason[:LONGEST]))
    os._exit(min(code, 255))  # nothing that a run left behind may hold it up or change its code


def write_to(path: Path) -> None:
    """Standard output and errors, of this process and of those that it starts."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    sys.stdout = os.fdopen(1, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, encoding="utf-8", errors="replace", closefd=False)


def follow_the_sweep() -> None:
    """When the process that planned this run is gone, save and end, as after SIGTERM."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(PATIENCE)
    os._exit(128 + signal.SIGTERM)


def attempt(run: Planned, threads: int) -> tuple[int, str]:
    """The exit code of the run, and what went wrong where something did."""
    from modernllm import experiment
    from modernllm.report.summary import result
    from modernllm.runs.directory import RunningElsewhere

    config: dict[str, Any] = dict(run.config)
    config["trainer"] = config["trainer"] | {"threads": config["trainer"]["threads"] or threads}
    try:
        code, done = experiment.run(config, run.asked)
        with suppress(OSError):  # the disk is full, and the record is there
            print(*result(done), sep="\n")
        return code, ""
    except RunningElsewhere as error:
        return BUSY, str(error)
    except KeyboardInterrupt:
        return experiment.SIGNALLED + signal.SIGINT, "interrupted"
    except (Exception, SystemExit) as error:  # whoever leaves the program from inside a run has not finished it
        with suppress(OSError):
            traceback.print_exc()
        known = isinstance(error, ValueError | OSError)
        return 1, str(error) if known else f"{type(error).__name__}: {error}"
