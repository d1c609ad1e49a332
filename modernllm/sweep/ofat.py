"""One factor at a time: a baseline of first values, and for each further value the baseline with it alone."""

from __future__ import annotations

from collections.abc import Sequence

from modernllm.sweep.axes import Axis, crossed, listed


class OneFactorAtATime:
    """Axes in `cross` are no factors: every run is made with each of their values."""

    def __init__(self, *, cross: list[str]):
        self.cross = cross

    def __call__(self, axes: Sequence[Axis]) -> list[tuple[str, ...]]:
        factors = [axis for axis in axes if axis.key not in self.cross]
        values = listed(factors, "sweep=ofat")
        baseline = [first for first, *_ in values]
        jobs = [baseline]
        for place, (_, *others) in enumerate(values):
            jobs += [[*baseline[:place], other, *baseline[place + 1 :]] for other in others]
        return crossed(jobs, [axis for axis in axes if axis.key in self.cross], axes)
