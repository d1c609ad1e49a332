"""Who does the runs of a sweep, made with `executor()`: `(runs, observer) -> the signal that stopped it, or None`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from modernllm.sweep.plan import Planned


@dataclass(frozen=True)
class Ended:
    """How the process of a run ended: its exit code (minus the signal's number if one killed it), and why in words."""

    code: int
    reason: str


@runtime_checkable
class Observer(Protocol):
    """Is told what happens to the runs, and may look around at every tick, about twice a second."""

    def waiting(self, run: Planned, reason: str) -> None: ...

    def started(self, run: Planned) -> None: ...

    def ended(self, run: Planned, how: Ended) -> None: ...

    def tick(self) -> None: ...


@runtime_checkable
class Executor(Protocol):
    def __call__(self, runs: Sequence[Planned], observer: Observer) -> int | None: ...
