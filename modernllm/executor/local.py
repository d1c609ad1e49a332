"""Runs on this machine, each in a process that is forked from a server which has torch imported already.

A run that is killed, runs out of memory or leaves the program loses only itself, and nothing of one run (random
state, determinism, hooks, compiled code) reaches another.
"""

from __future__ import annotations

import multiprocessing
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
from modernllm.executor.worker import BUSY, Surroundings, work
from modernllm.interrupt import Interrupt
from modernllm.quantities import Count
from modernllm.runs.directory import CONSOLE, RunDirectory
from modernllm.sweep.plan import Planned

SERVER_LOST = 255
"""What multiprocessing calls the exit code of a process that it can no longer ask the server about."""
TICK = 0.5
TRIES = 5
CALM = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
"""For the server: threads started there would be missing in what is forked from it."""
SIGNALS = {number.value: number.name for number in signal.Signals}


@dataclass
class Worker:
    run: Planned
    process: ForkServerProcess
    answer: Connection
    gpu: int | None

    def reap(self) -> Ended:
        self.process.join()
        code = self.process.exitcode
        assert code is not None
        ended = Ended(code, in_words(code, self.run.path / CONSOLE))
        with suppress(EOFError):  # it was killed before it could say anything
            ended = Ended(*self.answer.recv()) if self.answer.poll() else ended
        self.answer.close()
        self.process.close()
        return ended

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def in_words(code: int, console: Path) -> str:
    """Of a process that did not say why it ended."""
    if code == -signal.SIGKILL:
        return "killed by SIGKILL: by hand, or for want of memory"
    if code < 0:
        return f"killed by {SIGNALS.get(-code, f'signal {-code}')}; {console} has its output"
    return f"left with exit code {code}; {console} has its output"


class LocalExecutor:
    """`workers` at a time: the cores with a thread each, or `per_gpu` on each GPU, unless it is a number."""

    def __init__(self, *, workers: Count | Literal["auto"], per_gpu: Count):
        self.workers, self.per_gpu = workers, per_gpu

    def places(self, runs: Sequence[Planned]) -> list[int | None]:
        """One a worker: the number of its GPU, or None."""
        from modernllm.precision import pick_device, usable_cores

        gpus: list[int | None] = []
        if runs and pick_device(runs[0].config["trainer"]["device"]).type == "cuda":
            import torch

            gpus += list(range(torch.cuda.device_count())) * self.per_gpu
        number = (len(gpus) or usable_cores()) if isinstance(self.workers, str) else self.workers
        return [gpus[i % len(gpus)] if gpus else None for i in range(number)]

    def __call__(self, runs: Sequence[Planned], observer: Observer) -> int | None:
        from modernllm.precision import usable_cores

        free = deque(self.places(runs))
        threads = max(1, usable_cores() // len(free))
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
                        free.append(worker.gpu)
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


Serve = Callable[[Planned, int | None, int], Worker]


@contextmanager
def serving() -> Iterator[Serve]:
    """What starts a worker. The fork server is started by the first one, and by the next after it was killed, with
    CALM variables and with this package on its path.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["modernllm.executor.warm"])
    package = str(Path(__file__).resolve().parents[2])
    here = CALM | {"PYTHONPATH": os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))}
    before = dict(os.environ)
    os.environ.update(here)
    try:
        yield partial(start, context, before)
    finally:
        for name in here:
            os.environ.pop(name)
        os.environ.update({name: before[name] for name in here if name in before})


def start(
    context: ForkServerContext, environment: Mapping[str, str], run: Planned, gpu: int | None, threads: int
) -> Worker:
    """OSError if no process can be forked."""
    if gpu is not None:
        visible = environment.get("CUDA_VISIBLE_DEVICES", "")
        environment = {**environment, "CUDA_VISIBLE_DEVICES": visible.split(",")[gpu] if visible else str(gpu)}
    answer, theirs = context.Pipe(duplex=False)
    surroundings = Surroundings(os.getcwd(), environment, threads)
    process = context.Process(target=work, args=(run, surroundings, theirs), name=run.run_id)
    for _ in range(TRIES):
        try:
            process.start()
            break
        except (EOFError, ConnectionError):  # the server was killed at this moment: a new one is started
            time.sleep(TICK)
    else:
        raise OSError("the server that forks the runs ends as soon as it is started; it may have said why above")
    theirs.close()
    return Worker(run, process, answer, gpu)
