"""Random search (Bergstra and Bengio, 2012): `n` draws, each axis by itself."""

from __future__ import annotations

import random
from collections.abc import Sequence

from modernllm.quantities import Count, Natural
from modernllm.sweep.axes import Axis, crossed

TRIES = 100
"""Draws for each that is wanted: the lists may have no more than have been drawn."""


class RandomSearch:
    """From lists and from intervals, no draw twice; fewer where the lists have no more. The same `seed` draws the
    same runs, and more of them with a larger `n`. Axes in `cross` stand apart: every run is made with each of their
    values.
    """

    def __init__(self, *, n: Count, seed: Natural, cross: list[str]):
        self.n, self.seed, self.cross = n, seed, cross

    def __call__(self, axes: Sequence[Axis]) -> list[tuple[str, ...]]:
        drawn_from = [axis for axis in axes if axis.key not in self.cross]
        generator = random.Random(self.seed)
        jobs: dict[tuple[str, ...], None] = {}
        for _ in range(TRIES * self.n):
            if len(jobs) < self.n:
                jobs[tuple(self._draw(axis, generator) for axis in drawn_from)] = None
        return crossed(list(jobs), [axis for axis in axes if axis.key in self.cross], axes)

    @staticmethod
    def _draw(axis: Axis, generator: random.Random) -> str:
        if axis.interval is None:
            return generator.choice(axis.values)
        return f"{axis.key}={axis.interval.draw(generator):.4g}"
