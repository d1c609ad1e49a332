"""Which runs a sweep has, made with `sweep()`: `axes -> jobs`, each job its overrides in the order of the axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from modernllm.sweep.axes import Axis

Job = tuple[str, ...]


class Sweep(Protocol):
    def __call__(self, axes: Sequence[Axis]) -> list[Job]: ...
