"""Which arm is better: only under one yardstick, each at its own best learning rate, seed by seed.

The statistics are the referee's. What is judged was also what chose the learning rates, so this is exploration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
BySeed = dict[int, list[Record]]
ALL_PAIRS = 6
"""Arms of which every pair is compared; among more, each with the best one."""


@dataclass(frozen=True)
class Standing:
    """An arm at its best learning rate: of the rates with at least half of the most seeds, the one with the lowest
    mean over the seeds that all of these have; where they share none, of those with the most, over their own.
    """

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
    def lost(self) -> bool:
        """Whether no run of it learned anything, even at its best rate."""
        return all(self.failed.values())

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
    """Arms under one yardstick, and in one `cell` of a claim, the best first; `unranked` are arms with nothing to rank,
    each with the reason.
    """

    yardstick: Yardstick
    cell: str
    standings: tuple[Standing, ...]
    pairs: tuple[Pair, ...]
    unranked: tuple[tuple[Arm, str], ...]

    @property
    def best(self) -> Standing:
        return self.standings[0]

    @property
    def tunes(self) -> bool:
        """Whether these are the runs of a claim that choose learning rates and judge nothing."""
        return bool(self.cell) and self.held_out == "tuning"

    @property
    def held_out(self) -> str:
        return self.arms[0].records[0].held_out

    @property
    def rows(self) -> list[tuple[Arm, Standing | None]]:
        """Every arm with its standing, where it has one: those that are ranked, then the others."""
        return [*((each.arm, each) for each in self.standings), *((arm, None) for arm, _ in self.unranked)]

    @property
    def arms(self) -> list[Arm]:
        return [arm for arm, _ in self.rows]

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
    return [_ranking(yardstick, cell, group) for (yardstick, cell), group in groups.items()]


def names(rankings: Sequence[Ranking]) -> list[str]:
    """What sets each apart from the others, in as few words as do; "" of a single one."""
    found = [""] * len(rankings)
    for of in APART:
        told = [of(ranking) for ranking in rankings]
        if len(set(found)) < len(found) and len(set(told)) > 1:
            found = [" · ".join(filter(None, pair)) for pair in zip(found, told, strict=True)]
    if len(set(found)) < len(found):  # the same words for texts that are not the same
        return [f"{name or 'runs'} ({number})" for number, name in enumerate(found, 1)]
    return found


def _choice(ranking: Ranking, group: str) -> str:
    return str(ranking.arms[0].records[0].identity["choices"].get(group) or "")


APART: tuple[Callable[[Ranking], str], ...] = (
    lambda ranking: ranking.cell,
    lambda ranking: ranking.held_out,
    lambda ranking: _choice(ranking, "data"),
    lambda ranking: _choice(ranking, "tokenizer"),
    lambda ranking: f"{ranking.yardstick.tokens:,} tokens",
)


def _ranking(yardstick: Yardstick, cell: str, arms: Sequence[Arm]) -> Ranking:
    standings, unranked = [], []
    for arm in arms:
        if why := _nothing_to_rank(arm):
            unranked.append((arm, why))
        else:
            standings.append(standing(arm))
    standings.sort(key=lambda each: each.mean)
    return Ranking(yardstick, cell, tuple(standings), tuple(pairs(standings)), tuple(unranked))


def _nothing_to_rank(arm: Arm) -> str:
    if not arm.usable:
        return "no run of it finished with a whole record"
    if not all(record.starts for record in arm.usable):
        return "its loss is not finite before the first step"
    return ""


def standing(arm: Arm) -> Standing:
    by_rate = _tried({lr: _by_seed(arm.at(lr)) for lr in arm.rates})
    shared = sorted(set.intersection(*(set(seeds) for seeds in by_rate.values())))
    losses = np.array([[_loss(by[seed]) for seed in shared or by] for by in by_rate.values()])
    choice = best_lr(list(by_rate), losses)
    chosen = by_rate[choice.lr]
    return Standing(
        arm,
        choice,
        {seed: _loss(runs) for seed, runs in chosen.items()},
        {seed: all(record.failed for record in runs) for seed, runs in chosen.items()},
    )


def _tried(by_rate: Mapping[float, BySeed]) -> Mapping[float, BySeed]:
    """Those that may be chosen, also if they lost a run or two."""
    most = max(len(seeds) for seeds in by_rate.values())
    enough = {lr: seeds for lr, seeds in by_rate.items() if 2 * len(seeds) >= most}
    if set.intersection(*(set(seeds) for seeds in enough.values())):
        return enough
    return {lr: seeds for lr, seeds in by_rate.items() if len(seeds) == most}


def _loss(runs: Sequence[Record]) -> float:
    return fmean(record.counted for record in runs)


def _by_seed(records: Sequence[Record]) -> BySeed:
    found: BySeed = {}
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
