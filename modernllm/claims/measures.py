"""What is read off the runs of an arm: one number a seed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float

from modernllm.claims.stability import lr_regret, lr_sensitivity, max_stable_lr
from modernllm.claims.table import Table
from modernllm.claims.tuning import Choice, best_lr


@dataclass(frozen=True)
class Measured:
    """Of the arms of a contrast, in its order, on the evaluation seeds. `failed`: no run of an arm and seed learnt."""

    values: Float[np.ndarray, "arm seed"]
    failed: Bool[np.ndarray, "arm seed"]
    outcomes: tuple[tuple[str, ...], ...]
    """Of an arm's runs that count."""
    choices: Mapping[str, Choice] = field(default_factory=dict)
    """By arm, where learning rates were chosen."""
    beside: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)
    """Descriptions by name and arm that decide nothing."""


class Measure(ABC):
    """Called with the names of the arms and both lists of seeds. ValueError where runs for it are missing."""

    @abstractmethod
    def __call__(
        self, table: Table, cell: str, arms: Sequence[str], *, tuning: Sequence[int], evaluation: Sequence[int]
    ) -> Measured: ...


@dataclass(frozen=True)
class BestLoss(Measure):
    """Loss at the arm's own best learning rate, which tuning seeds alone choose; evaluation seeds alone are judged.

    ValueError where arms had unequal numbers of rates to try. Where one arm's grid is extended, extend all.
    """

    def __call__(
        self, table: Table, cell: str, arms: Sequence[str], *, tuning: Sequence[int], evaluation: Sequence[int]
    ) -> Measured:
        choices = {}
        for arm in arms:
            lrs = table.lrs(cell, arm, tuning)
            if not lrs:
                raise ValueError(f"{cell}, {arm}: no run of the tuning seeds {list(tuning)}")
            choices[arm] = best_lr(lrs, table.block(cell, arm, lrs, tuning).losses)
        trials = {arm: choice.trials for arm, choice in choices.items()}
        if len(set(trials.values())) > 1:
            raise ValueError(f"{cell}: arms had unequal numbers of learning rates to try: {trials}; extend all grids")
        blocks = [table.block(cell, arm, [choices[arm].lr], evaluation) for arm in arms]
        return Measured(
            values=np.concatenate([block.losses for block in blocks]),
            failed=np.concatenate([block.failed for block in blocks]),
            outcomes=tuple(block.outcomes for block in blocks),
            choices=choices,
        )


@dataclass(frozen=True)
class LossAt(Measure):
    """Loss at one learning rate, the same for all arms: a condition of the cell, not a choice."""

    lr: float

    def __call__(
        self, table: Table, cell: str, arms: Sequence[str], *, tuning: Sequence[int], evaluation: Sequence[int]
    ) -> Measured:
        del tuning
        blocks = [table.block(cell, arm, [self.lr], evaluation) for arm in arms]
        return Measured(
            values=np.concatenate([block.losses for block in blocks]),
            failed=np.concatenate([block.failed for block in blocks]),
            outcomes=tuple(block.outcomes for block in blocks),
        )


@dataclass(frozen=True)
class Regret(Measure):
    """LR regret over the grid, which is the same for all arms; LR sensitivity and the largest stable rate beside it.

    ValueError where the grids of the arms differ. The best loss is that of any arm *of the contrast*.
    """

    def __call__(
        self, table: Table, cell: str, arms: Sequence[str], *, tuning: Sequence[int], evaluation: Sequence[int]
    ) -> Measured:
        del tuning  # nothing is chosen
        grids = {arm: table.lrs(cell, arm, evaluation) for arm in arms}
        if len(set(grids.values())) > 1:
            raise ValueError(f"{cell}: LR regret needs one grid for all arms, not {grids}")
        lrs = grids[arms[0]]
        blocks = [table.block(cell, arm, lrs, evaluation) for arm in arms]
        losses = np.stack([block.losses for block in blocks])
        failed = np.stack([block.failed for block in blocks])
        stable = [max_stable_lr(lrs, of_arm) for of_arm in failed]
        return Measured(
            values=lr_regret(losses),
            failed=np.asarray(failed.all(axis=1)),
            outcomes=tuple(block.outcomes for block in blocks),
            beside={
                "lr_regret": _by_arm(arms, lr_regret(losses).mean(axis=1)),
                "lr_sensitivity": _by_arm(arms, lr_sensitivity(losses).mean(axis=1)),
                # NaN, hence None, where at some seed no rate was stable
                "smallest_max_stable_lr": _by_arm(arms, np.array([rates.min() for rates in stable])),
            },
        )


def _by_arm(arms: Sequence[str], numbers: np.ndarray) -> dict[str, float | None]:
    return {arm: None if np.isnan(number) else float(number) for arm, number in zip(arms, numbers, strict=True)}
