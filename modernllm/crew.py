"""The other ranks of a run: processes of this machine that the first one starts, listens to and outlives.

The first rank is the process of the run itself: it alone holds the run's folder, writes, and answers for how it ended.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import parent_process
from multiprocessing.connection import Connection, Pipe, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import torch

from modernllm.distributed import Lost, OneProcess, joined
from modernllm.executor.forking import SERVER_LOST, Surroundings, begin, fork_server, in_words
from modernllm.interrupt import Interrupt
from modernllm.precision import pick_device, threads_each
from modernllm.preparation import Asked

LEFT = 3
"""Exit code of a rank that only ended because another was gone."""
PATIENCE = 10.0
"""Seconds in which a rank that is gone should be noticed, and those that are done should end."""
SECOND_CALL = 1.0
"""Seconds in which a first rank that is told twice to stop should have heard it."""
LONGEST = 2000
"""Letters of what a rank says at its end: a pipe that nobody reads yet takes so many without a halt."""


BY_OTHERS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Signals that no fault of a program sends."""


class Killed(ChildProcessError):
    """Somebody ended a rank: nothing was wrong with the run."""


@dataclass(frozen=True)
class Seat:
    """Where a process belongs: its rank, the file by which the ranks find each other, and the folder of their run."""

    rank: int
    size: int
    meeting: Path
    directory: Path


@dataclass
class Crew:
    """By rank, from 1: the processes, and what each says."""

    size: int
    processes: dict[int, ForkServerProcess] = field(default_factory=dict)
    lines: dict[int, Connection] = field(default_factory=dict)
    told_twice: bool = False
    _asking: threading.Lock = field(default_factory=threading.Lock)

    def start(self, config: Mapping[str, Any], asked: Asked, directory: Path, meeting: Path) -> None:
        """OSError if no process can be forked."""
        threads = threads_each(config["trainer"]["threads"], self.size)
        with fork_server() as (context, environment):
            for rank in range(1, self.size):
                line, theirs = context.Pipe(duplex=False)
                seat = Seat(rank, self.size, meeting, directory)
                surroundings = Surroundings(os.getcwd(), environment, threads)
                process = context.Process(target=follow, args=(config, asked, seat, surroundings, theirs))
                begin(process)
                theirs.close()
                self.processes[rank], self.lines[rank] = process, line

    def assemble(self) -> None:
        """Wait until all have built what they train. ChildProcessError where one could not."""
        for rank, line in self.lines.items():
            try:
                problem = line.recv()
            except EOFError:
                raise self.lost(f"rank {rank} never began") from None
            if problem:
                raise ChildProcessError(f"rank {rank} of {self.size}: {problem}")

    def codes(self) -> dict[int, int | None]:
        """Exit codes; None of who is at work. The first to ask for one takes it from the server."""
        with self._asking:
            return {rank: process.exitcode for rank, process in self.processes.items()}

    def lost(self, otherwise: str) -> ChildProcessError:
        """Who was the first to go, and why, as far as that can be told in time; `otherwise` is what was noticed."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and None in self.codes().values():
            if any(code not in (None, 0, LEFT) for code in self.codes().values()):
                break
            time.sleep(0.02)
        for rank, code in self.codes().items():
            if code not in (None, 0, LEFT):
                return self.cause(rank, code)
        return ChildProcessError(f"the ranks lost each other: {otherwise}")

    def cause(self, rank: int, code: int) -> ChildProcessError:
        name, line = f"rank {rank} of {self.size}", self.lines[rank]
        with suppress(EOFError, OSError):
            while line.poll():
                if said := line.recv():
                    return ChildProcessError(f"{name}: {said}")
        if code == SERVER_LOST:
            return Killed(f"the server that forked {name} is gone; the same command goes on from the last checkpoint")
        if -code in BY_OTHERS:
            return Killed(f"{name} was {in_words(code)}; the same command goes on from the last checkpoint")
        return ChildProcessError(f"{name} {'was ' * (code < 0)}{in_words(code)}")

    @contextmanager
    def watched(self, give_up: Callable[[ChildProcessError], None]) -> Iterator[None]:
        """Of a rank that is gone the first one hears when it next adds something up, but nccl waits for ever: if it is
        still here after PATIENCE seconds, `give_up(why)` from a thread of its own. And of a second Ctrl-C it hears
        nothing while it waits for a rank that is stopped or busy for ever: the others are ended.
        """
        over, closing = Pipe(duplex=False)
        with over, told_to_stop() as told:
            watch = threading.Thread(target=self._watch, args=(over, told, give_up), daemon=True)
            watch.start()
            try:
                yield
            finally:
                closing.close()
                watch.join()

    def _watch(self, over: Connection, told: socket.socket, give_up: Callable[[ChildProcessError], None]) -> None:
        there, signals = {process.sentinel: rank for rank, process in self.processes.items()}, 0
        while over not in (gone := wait([over, told, *there])):
            ended = [there.pop(sentinel) for sentinel in gone if isinstance(sentinel, int)]
            if any(self.codes()[rank] for rank in ended) and not over.poll(PATIENCE):
                give_up(self.lost("nothing is heard of them"))
            if told in gone:
                signals += sum(number in Interrupt.SIGNALS for number in told.recv(64))
                if signals > 1 and not over.poll(SECOND_CALL):
                    self.told_twice = True
                    self.end()

    def dismiss(self) -> None:
        """They are done and end by themselves; or else they are ended."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline and None in self.codes().values():
            time.sleep(0.005)
        self.end()

    def end(self) -> None:
        with self._asking:
            for process in self.processes.values():
                process.kill()
                process.join()

    @contextmanager
    def answered_for(self) -> Iterator[None]:
        """What goes wrong inside ends them all, and a loss is told by its cause."""
        try:
            yield
        except Lost as error:
            if self.told_twice:
                raise KeyboardInterrupt from error
            cause = self.lost(str(error))  # as long as nobody was ended from here
            self.end()
            raise cause from error
        except BaseException:
            self.end()
            raise


@contextmanager
def told_to_stop() -> Iterator[socket.socket]:
    """Where the number of every signal to this process can be read, a byte each, while its main thread is busy."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if threading.current_thread() is not threading.main_thread():  # elsewhere Python forbids it
            yield ours
            return
        theirs.setblocking(False)
        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        try:
            yield ours
        finally:
            signal.set_wakeup_fd(before)


@contextmanager
def together(
    config: Mapping[str, Any], asked: Asked, directory: Path, give_up: Callable[[ChildProcessError], None]
) -> Iterator[OneProcess]:
    """The group in which this process is the first of `trainer.ranks`. ChildProcessError names the rank that was lost;
    `give_up` is for the case that nothing can be raised here. Outside, all others have ended.
    """
    size = config["trainer"]["ranks"]
    if size == 1:
        yield OneProcess()
        return
    crew, device = Crew(size), pick_device(config["trainer"]["device"])
    with tempfile.TemporaryDirectory(prefix="modernllm-ranks-") as folder, crew.answered_for():
        meeting = Path(folder) / "meeting"

        def leave(why: ChildProcessError) -> None:
            shutil.rmtree(folder, ignore_errors=True)
            give_up(why)

        crew.start(config, asked, directory, meeting)
        crew.assemble()
        # inside too: whoever still waits in a group that is left would be waited for
        with crew.watched(leave), joined(0, size, meeting, device) as group, crew.answered_for():
            yield group
        crew.dismiss()


def follow(config: dict[str, Any], asked: Asked, seat: Seat, surroundings: Surroundings, line: Connection) -> None:
    """A rank beside the first, in a process of its own: what it does from its first line to its exit code."""
    for number in Interrupt.SIGNALS:  # while it trains they are noted, and all ranks stop together
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=end_with_the_first, args=(seat.meeting.parent,), daemon=True).start()
    code = 0
    try:
        from modernllm.experiment import accompany

        surroundings.enter()
        torch.set_num_threads(surroundings.threads)
        if pick_device(config["trainer"]["device"]).type == "cuda":
            torch.cuda.set_device(seat.rank)
        accompany(config, asked, seat, ready=lambda: line.send(""))
    except Lost:
        code = LEFT
    except BaseException as error:  # a component may raise what it likes
        traceback.print_exc()
        with suppress(OSError):
            line.send(f"{type(error).__name__}: {error}"[:LONGEST])
        code = 1
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def end_with_the_first(folder: Path) -> None:
    """Nothing of a run is left when the process that answers for it is gone, nor the folder where its ranks met."""
    parent = parent_process()
    assert parent is not None
    wait([parent.sentinel])
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(LEFT)
