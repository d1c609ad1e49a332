"""Which arm is better: only under one yardstick, each at its own best learning rate, seed by seed.

The statistics are the referee's. What is judged was also what chose the learning rates, so this is exploration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from statistics import fmean, stdev

import numpy as np

from modernllm.claims.judgement import Judgement
from modernllm.claims.rules import Superiority
from modernllm.claims.statistics.multiplicity import bonferroni_level
from modernllm.claims.tuning import Choice, best_lr
from modernllm.report.page.arms import Arm, Yardstick
from modernllm.report.page.reading import Record

MARGIN = 0.02
"""Nats: the smallest difference of interest, a few times what seeds move a loss at these sizes."""
ALL_PAIRS = 6
"""Arms of which every pair is compared; among more, each with the best one."""


@dataclass(frozen=True)
class Standing:
    """An arm at its best learning rate: of the rates with the most seeds, the one of the lowest mean."""

    arm: Arm
    choice: Choice
    losses: dict[int, float]
    """By seed, capped at the start; a mean where an arm has several runs of a seed."""
    failed: dict[int, bool]

    @property
    def mean(self) -> float:
        return fmean(self.losses.values())

    @property
    def spread(self) -> float | None:
        """Standard deviation over seeds; None of one."""
        return stdev(self.losses.values()) if len(self.losses) > 1 else None

    @property
    def best(self) -> list[Record]:
        """The usable runs at the best learning rate."""
        return self.arm.at(self.choice.lr)


@dataclass(frozen=True)
class Pair:
    """`better` has the lower mean; `judgement` is about its losses less those of `worse`."""

    better: Standing
    worse: Standing
    judgement: Judgement

    @property
    def told_apart(self) -> bool:
        """Whether the interval of all comparisons together excludes zero."""
        return self.judgement.interval is not None and self.judgement.interval[1] < 0


@dataclass(frozen=True)
class Ranking:
    """Arms under one yardstick, the best first; `unranked` are arms with nothing to rank, each with the reason."""

    yardstick: Yardstick
    standings: tuple[Standing, ...]
    pairs: tuple[Pair, ...]
    unranked: tuple[tuple[Arm, str], ...]

    @property
    def best(self) -> Standing:
        return self.standings[0]

    @cached_property
    def behind(self) -> list[Pair]:
        """The best arm with every other."""
        return [pair for pair in self.pairs if pair.better is self.best]


def rankings(arms: Sequence[Arm]) -> list[Ranking]:
    """One for each yardstick, in the order of the arms."""
    groups: dict[tuple[Yardstick, str], list[Arm]] = {}
    for arm in arms:
        cell = (arm.records[0].identity.get("origin") or {}).get("cell", "")
        groups.setdefault((arm.yardstick, cell), []).append(arm)
    return [_ranking(yardstick, group) for (yardstick, _), group in groups.items()]


def _ranking(yardstick: Yardstick, arms: Sequence[Arm]) -> Ranking:
    standings, unranked = [], []
    for arm in arms:
        if why := _nothing_to_rank(arm):
            unranked.append((arm, why))
        else:
            standings.append(standing(arm))
    standings.sort(key=lambda each: each.mean)
    return Ranking(yardstick, tuple(standings), tuple(pairs(standings)), tuple(unranked))


def _nothing_to_rank(arm: Arm) -> str:
    if not arm.usable:
        return "no run of it finished with a whole record"
    if not all(record.starts for record in arm.usable):
        return "its loss is not finite before the first step"
    return ""


def standing(arm: Arm) -> Standing:
    by_rate = {lr: _by_seed(arm.at(lr)) for lr in arm.rates}
    most = max(len(seeds) for seeds in by_rate.values())
    full = {lr: seeds for lr, seeds in by_rate.items() if len(seeds) == most}
    losses = np.array([[fmean(record.counted for record in runs) for runs in by.values()] for by in full.values()])
    choice = best_lr(list(full), losses)
    chosen = full[choice.lr]
    return Standing(
        arm,
        choice,
        {seed: fmean(record.counted for record in runs) for seed, runs in chosen.items()},
        {seed: all(record.failed for record in runs) for seed, runs in chosen.items()},
    )


def _by_seed(records: Sequence[Record]) -> dict[int, list[Record]]:
    found: dict[int, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.seed):
        found.setdefault(record.seed, []).append(record)
    return found


def pairs(standings: Sequence[Standing]) -> list[Pair]:
    """Of `standings`, which are in order: all pairs of a few arms, else each with the best, where they share a seed."""
    among = (
        list(combinations(standings, 2)) if len(standings) <= ALL_PAIRS else [(standings[0], s) for s in standings[1:]]
    )
    shared = [(a, b, sorted(a.losses.keys() & b.losses.keys())) for a, b in among]
    compared = [(a, b, seeds) for a, b, seeds in shared if seeds]
    return [_pair(a, b, seeds, len(compared)) for a, b, seeds in compared]


def _pair(better: Standing, worse: Standing, seeds: Sequence[int], m: int) -> Pair:
    differences = np.array([better.losses[seed] - worse.losses[seed] for seed in seeds])
    blind = any(better.failed[seed] and worse.failed[seed] for seed in seeds)
    return Pair(better, worse, Superiority(MARGIN).judge(differences, level=bonferroni_level(m), blind=blind))
