"""The finished runs of a claim, one row each, and whether they are all there."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, get_args

import numpy as np
from jaxtyping import Bool, Float

from modernllm.claims.stability import capped
from modernllm.runs.outcome import Outcome

FAILED = ("stalled", "diverged", "nonfinite")
"""Outcomes of a run that did not learn."""


class Key(NamedTuple):
    """Which run of the plan: `cell` names the conditions that all its arms share."""

    cell: str
    arm: str
    lr: float
    seed: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """A *finished* run; one that crashed or was interrupted has no row, which makes the table incomplete.

    Losses are in nats per token: at the last planned step (NaN where there is none), and before the first.
    """

    cell: str
    arm: str
    lr: float
    seed: int
    loss: float
    initial_loss: float
    outcome: str | None
    """An `Outcome`; None where it cannot be told, as for very short runs."""
    tokens: int
    """Trained on; fewer than planned only where the run ended as nonfinite."""
    planned_tokens: int
    yardstick: str
    """Hash of tokenizer and validation windows: losses compare only under one."""

    @property
    def key(self) -> Key:
        return Key(self.cell, self.arm, self.lr, self.seed)

    @property
    def counted_loss(self) -> float:
        """NaN, to be capped, for a nonfinite run: what its last good weights would score is not what it reached."""
        return math.nan if self.outcome == "nonfinite" else self.loss

    @property
    def failed(self) -> bool:
        """Stalled, diverged or nonfinite, or no better than at the start."""
        return self.outcome in FAILED or not self.counted_loss < self.initial_loss


@dataclass(frozen=True)
class Block:
    """Runs of one arm by learning rate and seed; losses are capped."""

    losses: Float[np.ndarray, "lr seed"]
    failed: Bool[np.ndarray, "lr seed"]
    outcomes: tuple[str, ...]
    """One word a run, "undecided" where there is none."""


class Table:
    """Rows by their keys. ValueError for what must not be compared: a run twice, one that stopped before its planned
    tokens, an unknown outcome, an initial loss that is not finite, and a seed of a cell that was measured with two
    yardsticks.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows: dict[Key, Row] = {}
        yardsticks: dict[tuple[str, int], Row] = {}
        for row in rows:
            if row.key in self.rows:
                raise ValueError(f"{row.key} stands in the table twice: one run, one row")
            _check(row)
            first = yardsticks.setdefault((row.cell, row.seed), row)
            if first.yardstick != row.yardstick:
                raise ValueError(
                    f"{row.key} and {first.key} have other tokenizers or validation windows "
                    f"({row.yardstick}, {first.yardstick}): their losses do not compare"
                )
            self.rows[row.key] = row

    def lrs(self, cell: str, arm: str, seeds: Sequence[int]) -> tuple[float, ...]:
        """The learning rates at which the arm has a run of any of these seeds, sorted."""
        return tuple(sorted({k.lr for k in self.rows if k.cell == cell and k.arm == arm and k.seed in seeds}))

    def block(self, cell: str, arm: str, lrs: Sequence[float], seeds: Sequence[int]) -> Block:
        """ValueError, naming the runs, where one is missing, and where seeds changed nothing."""
        keys = [Key(cell, arm, lr, seed) for lr in lrs for seed in seeds]
        missing = [key for key in keys if key not in self.rows]
        if missing or not keys:
            names = ", ".join(str(tuple(key)) for key in missing[:5]) or f"all of {cell}, {arm}"
            raise ValueError(f"{len(missing)} of {len(keys)} runs are missing: {names}; no seed is ever left out")
        found = [self.rows[key] for key in keys]
        shape = (len(lrs), len(seeds))
        failed = np.array([row.failed for row in found]).reshape(shape)
        losses = capped(np.array([row.counted_loss for row in found]), np.array([row.initial_loss for row in found]))
        losses = losses.reshape(shape)
        for lr, values, gone in zip(lrs, losses, failed, strict=True):
            if len(seeds) > 1 and not gone.any() and len(set(values)) == 1:
                raise ValueError(
                    f"{cell}, {arm}, lr {lr:g}: the loss is {values[0]!r} at every seed of {list(seeds)}; "
                    "seeds that change nothing are no repeats"
                )
        return Block(losses, failed, tuple(row.outcome or "undecided" for row in found))


def losses(table: Table, cell: str, arm: str, lr: float, seeds: Sequence[int]) -> Float[np.ndarray, " seed"]:
    """Capped losses of one arm at one learning rate, a number for every seed. Errors of `Table.block`."""
    return table.block(cell, arm, [lr], seeds).losses[0]


@dataclass(frozen=True)
class Census:
    """Planned = usable + missing; rows found = usable + spare copies + foreign."""

    planned: int
    usable: int
    missing: tuple[Key, ...]
    duplicated: tuple[Key, ...]
    foreign: tuple[Key, ...]
    """Not in the plan."""
    spare: int
    """Copies beyond the first of duplicated runs."""

    @property
    def complete(self) -> bool:
        return not (self.missing or self.duplicated or self.foreign)

    @property
    def line(self) -> str:
        return (
            f"{self.planned} runs planned: {self.usable} usable, {len(self.missing)} missing; "
            f"beside them {self.spare} copies, {len(self.foreign)} foreign"
        )


def census(planned: Iterable[Key], rows: Iterable[Row]) -> Census:
    """Hold the rows that were found against the plan."""
    plan, found = set(planned), Counter(row.key for row in rows)
    return Census(
        planned=len(plan),
        usable=len(plan & set(found)),
        missing=tuple(sorted(plan - set(found))),
        duplicated=tuple(sorted(key for key, copies in found.items() if copies > 1)),
        foreign=tuple(sorted(set(found) - plan)),
        spare=sum(copies - 1 for key, copies in found.items() if key in plan),
    )


def _check(row: Row) -> None:
    if row.outcome not in (None, *get_args(Outcome)):
        raise ValueError(f"{row.key}: outcome {row.outcome!r} is none of {', '.join(get_args(Outcome))}")
    if not math.isfinite(row.initial_loss):
        raise ValueError(f"{row.key}: initial loss {row.initial_loss}; an arm that cannot start cannot be compared")
    if row.tokens != row.planned_tokens and row.outcome != "nonfinite":
        raise ValueError(
            f"{row.key} was trained on {row.tokens} of {row.planned_tokens} planned tokens: "
            "unequal budgets are not compared; let it finish"
        )
