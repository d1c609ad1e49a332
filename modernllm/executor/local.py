"""Runs on this machine, each in a process that is forked from a server which has torch imported already.

A run that is killed, runs out of memory or leaves the program loses only itself, and nothing of one run (random
state, determinism, hooks, compiled code) reaches another.
"""

from __future__ import annotations

import os
import signal
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Literal

from modernllm.executor import Ended, Observer
from modernllm.executor.forking import SERVER_LOST, begin, fork_server, in_words
from modernllm.executor.worker import BUSY, Surroundings, work
from modernllm.interrupt import Interrupt
from modernllm.quantities import Count
from modernllm.runs.directory import CONSOLE, RunDirectory
from modernllm.sweep.plan import Planned

TICK = 0.5
Place = tuple[int, ...]
"""The GPUs of one worker, one a rank; none on a CPU."""


@dataclass
class Worker:
    run: Planned
    process: ForkServerProcess
    answer: Connection
    place: Place

    def reap(self) -> Ended:
        self.process.join()
        code = self.process.exitcode
        assert code is not None
        output = "" if code == -signal.SIGKILL else f"; {self.run.path / CONSOLE} has its output"
        ended = Ended(code, in_words(code) + output)
        with suppress(EOFError):  # it was killed before it could say anything
            ended = Ended(*self.answer.recv()) if self.answer.poll() else ended
        self.answer.close()
        self.process.close()
        return ended

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


class LocalExecutor:
    """`workers` at a time: the cores with a thread each, or `per_gpu` on each GPU, unless it is a number. A run of
    several ranks takes a core or a GPU for each of them.
    """

    def __init__(self, *, workers: Count | Literal["auto"], per_gpu: Count):
        self.workers, self.per_gpu = workers, per_gpu

    def places(self, runs: Sequence[Planned]) -> list[Place]:
        """One a worker."""
        from modernllm.precision import pick_device, usable_cores

        ranks, gpus = most_ranks(runs), list[Place]()
        if runs and pick_device(runs[0].config["trainer"]["device"]).type == "cuda":
            import torch

            sets = range(0, torch.cuda.device_count() - ranks + 1, ranks)
            gpus += [tuple(range(first, first + ranks)) for first in sets] * self.per_gpu
        number = (len(gpus) or max(1, usable_cores() // ranks)) if isinstance(self.workers, str) else self.workers
        return [gpus[i % len(gpus)] if gpus else () for i in range(number)]

    def __call__(self, runs: Sequence[Planned], observer: Observer) -> int | None:
        from modernllm.precision import usable_cores

        free = deque(self.places(runs))
        threads = max(1, usable_cores() // (len(free) * most_ranks(runs)))
        queue = Queue(runs, observer)
        running: dict[int, Worker] = {}
        with Interrupt() as interrupt, serving() as serve:
            try:
                while queue or running:
                    while free and not interrupt.signal and (run := queue.next()):
                        worker = serve(run, free.popleft(), threads)
                        running[worker.process.sentinel] = worker
                        observer.started(run)
                    if interrupt.signal and not queue.closed:
                        queue.close()
                        for worker in running.values():
                            worker.process.terminate()
                    for sentinel in self._gone(running):
                        worker = running.pop(sentinel)
                        free.append(worker.place)
                        queue.done(worker.run, worker.reap())
                    observer.tick()
            except BaseException:  # told twice to stop, or an error of our own
                for worker in running.values():
                    worker.kill()
                raise
        return interrupt.signal

    @staticmethod
    def _gone(running: dict[int, Worker]) -> list[int]:
        if not running:
            time.sleep(TICK)  # all that is left is being run by others
            return []
        return [int(sentinel) for sentinel in wait(list(running), timeout=TICK)]  # type: ignore[arg-type]


def most_ranks(runs: Sequence[Planned]) -> int:
    """Processes of the largest run."""
    return max((run.config["trainer"]["ranks"] for run in runs), default=1)


class Queue:
    """Runs that are still to be started; one that another process holds is tried again until that one is done."""

    def __init__(self, runs: Sequence[Planned], observer: Observer):
        self._runs = deque(runs)
        self._observer = observer
        self._waited: set[Path] = set()
        self._lost: set[Path] = set()
        self.closed = False

    def __bool__(self) -> bool:
        return bool(self._runs)

    def close(self) -> None:
        """Nothing more is started."""
        self._runs.clear()
        self.closed = True

    def next(self) -> Planned | None:
        """The first run that nobody is at work on, if there is one."""
        for _ in range(len(self._runs)):
            run = self._runs.popleft()
            status = RunDirectory(run.path).status()
            if status.get("status") == "running":
                self._wait_for(run, "another process is at work on it")
            elif run.path in self._waited and status.get("status") in ("finished", "failed"):
                failed = status["status"] == "failed"
                self._observer.ended(run, Ended(int(failed), str(status.get("reason") or "") if failed else ""))
            else:
                return run
        return None

    def done(self, run: Planned, how: Ended) -> None:
        if how.code == BUSY and not self.closed:
            self._wait_for(run, how.reason)
        elif how.code == SERVER_LOST and run.path not in self._lost and not self.closed:
            self._lost.add(run.path)  # it sees nobody above it, saves itself, and is gone on with
            self._wait_for(run, "the server that forked it is gone")
        else:
            self._observer.ended(run, how)

    def _wait_for(self, run: Planned, reason: str) -> None:
        self._runs.append(run)
        if run.path not in self._waited:
            self._waited.add(run.path)
            self._observer.waiting(run, reason)


Serve = Callable[[Planned, Place, int], Worker]


@contextmanager
def serving() -> Iterator[Serve]:
    """What starts a worker."""
    with fork_server() as (context, environment):
        yield partial(start, context, environment)


def start(
    context: ForkServerContext, environment: Mapping[str, str], run: Planned, place: Place, threads: int
) -> Worker:
    """OSError if no process can be forked."""
    if place:
        visible = environment.get("CUDA_VISIBLE_DEVICES", "")
        names = [visible.split(",")[gpu] if visible else str(gpu) for gpu in place]
        environment = {**environment, "CUDA_VISIBLE_DEVICES": ",".join(names)}
    answer, theirs = context.Pipe(duplex=False)
    surroundings = Surroundings(os.getcwd(), environment, threads)
    process = context.Process(target=work, args=(run, surroundings, theirs), name=run.run_id)
    begin(process)
    theirs.close()
    return Worker(run, process, answer, place)
