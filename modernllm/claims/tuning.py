"""The learning rate of an arm: chosen on tuning seeds, and only trusted inside its grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float


@dataclass(frozen=True)
class Choice:
    """`losses` are the means over the tuning seeds, in the order of the sorted `grid`."""

    lr: float
    grid: tuple[float, ...]
    losses: tuple[float, ...]

    @property
    def interior(self) -> bool:
        """Whether the grid goes on both below and above the best rate; never with fewer than three rates."""
        return self.grid[0] < self.lr < self.grid[-1]

    @property
    def trials(self) -> int:
        return len(self.grid)

    def extension(self) -> float | None:
        """The rate beyond the edge that the best one stands at, by the ratio of the grid there; None inside.

        Try it for every arm: tuning effort stays equal. ValueError for one rate, which has no ratio.
        """
        if self.interior:
            return None
        if len(self.grid) < 2:
            raise ValueError(f"the grid {list(self.grid)} has one learning rate: give at least three")
        near, beyond = (self.grid[1], self.grid[0]) if self.lr == self.grid[0] else self.grid[-2:]
        return float(f"{beyond * beyond / near:.3g}")


def best_lr(lrs: Sequence[float], losses: Float[np.ndarray, "lr seed"]) -> Choice:
    """The rate with the lowest mean of capped losses over the tuning seeds; the smaller one of two that tie.

    ValueError for rates that repeat or are not positive.
    """
    if len(set(lrs)) != len(lrs) or min(lrs) <= 0:
        raise ValueError(f"learning rates {list(lrs)}: write each once, all positive")
    order = np.argsort(lrs)
    means = losses.mean(axis=1)[order]
    grid = tuple(float(lrs[i]) for i in order)
    return Choice(grid[int(means.argmin())], grid, tuple(float(mean) for mean in means))
