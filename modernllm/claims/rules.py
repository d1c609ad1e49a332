"""The decision rules of a claim, fixed before its first run: from one number a seed to a word.

Intervals are two-sided t-intervals; a claim with m contrasts judges each at level 1 - 0.05 / m. The *inner* interval
has the level 2 · level - 1 (90 % for 95 %), so that each of its sides errs as often as the outer one does in all.
Margins are open (an interval that touches one is not inside) and 0 itself is "no difference". No rule can say two
things at once; one seed, or seeds without any spread, have no interval and are always inconclusive.

`blind` means that at some seed two arms failed to learn. Their difference, near zero, says nothing about sameness: no
verdict that rests on "no difference" is given then, one that rests on a difference is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, cast

import numpy as np
from jaxtyping import Float

from modernllm.claims.judgement import Judgement, Word
from modernllm.claims.statistics.equivalence import non_inferiority_p, tost
from modernllm.claims.statistics.paired import Number, Paired, Truth, paired
from modernllm.claims.statistics.power import (
    minimum_detectable_effect,
    non_inferiority_seeds_needed,
    seeds_needed,
    tost_seeds_needed,
)
from modernllm.claims.statistics.signflip import MOST_SEEDS, sign_flip_floor, sign_flip_p
from modernllm.claims.statistics.timing import ratio_of_medians
from modernllm.quantities import Positive

NOTHING = "no effect of interest"


class Rule(ABC):
    """`decide` is the rule, for many repetitions at once; `judge` applies it to one sample and shows its grounds."""

    kind: ClassVar[str]
    tuned: ClassVar[bool] = False
    """Whether it is about quality, hence only fair between arms at their own best learning rates."""

    def __init__(self, margin: Positive) -> None:
        if not 0 < margin < np.inf:
            raise ValueError(f"margin={margin}: the smallest effect of interest is a positive finite number")
        self.margin = margin

    @abstractmethod
    def decide(self, sample: Paired, level: float, blind: bool = False) -> np.ndarray:
        """'supported', 'refuted' or 'inconclusive' for each repetition."""

    def flags(self, sample: Paired, level: float) -> list[str]:
        """What a reader should know beside the word."""
        del sample, level
        return []

    def obstacle(self, sample: Paired, level: float, blind: bool) -> str | None:
        """Why it is inconclusive, where that is not for want of seeds."""
        withheld = self.decide(sample, level) if blind else "inconclusive"
        if withheld == "inconclusive":
            return None
        return f"{withheld}, but for seeds at which two arms failed and so are alike: choose conditions they learn in"

    def p_value(self, sample: Paired) -> Number:
        """Of the t-test behind the rule, before any correction."""
        return sample.p_value()

    def smallest_margin(self, sample: Paired, level: float) -> float | None:
        """The narrowest margin that would have passed, for rules that show sameness."""
        del sample, level
        return None

    def seeds_needed(self, sd: float, level: float) -> int | None:
        """To find an effect of the margin with a power of 80 %."""
        return seeds_needed(self.margin, sd, level)

    def futile(self, sample: Paired) -> bool:
        """Whether it is vain to go on looking for a difference: the plain 90 % interval lies inside the margin."""
        return bool(sample.interval(0.9).inside(self.margin))

    def judge(self, differences: Float[np.ndarray, " n"], *, level: float, blind: bool = False) -> Judgement:
        """ValueError for a level outside (0.5, 1), no seed, or a number that is not finite."""
        sample, level = paired(differences), check_level(level)
        known = bool(sample.spreads)
        sd = float(sample.sd) if sample.n > 1 else None
        flips = sample.n <= MOST_SEEDS
        verdict = cast(Word, str(self.decide(sample, level, blind)))
        obstacle = self.obstacle(sample, level, blind) if known and verdict == "inconclusive" else None
        flags = self.flags(sample, level) if known else []
        if blind and verdict == "inconclusive":  # what seems to be nothing may be two failures
            flags = [flag for flag in flags if flag != NOTHING]
        flags += ["no spread"] if sample.n > 1 and not known else []
        flags += ["two arms failed at some seed"] if blind else []
        return Judgement(
            verdict=verdict,
            kind=self.kind,
            n=sample.n,
            mean=float(sample.mean),
            sd=sd,
            level=level,
            interval=_ends(sample, level),
            inner=_ends(sample, inner_level(level)),
            margin=self.margin,
            mde=minimum_detectable_effect(sd, sample.n, level) if known and sd else None,
            seeds_needed=self.seeds_needed(sd, level) if known and sd else None,
            p=float(self.p_value(sample)) if known else None,
            sign_flip_p=float(sign_flip_p(differences)) if flips else None,
            sign_flip_floor=sign_flip_floor(sample.n) if flips else None,
            smallest_margin=self.smallest_margin(sample, level) if known else None,
            blind=blind,
            obstacle=obstacle,
            flags=tuple(flags),
            values=tuple(float(value) for value in differences),
        )


class Superiority(Rule):
    """The variant is better: Δ = loss(variant) - loss(reference) is below zero, by enough to matter.

    supported: CI_hi < 0, and either |mean| >= δ or CI inside (-δ, δ), which is flagged *negligible*.
    refuted: CI_lo > 0 (*reversed*), or CI inside (-δ, δ) and containing 0 (*no effect of interest*).
    """

    kind = "superiority"
    tuned = True

    def decide(self, sample: Paired, level: float, blind: bool = False) -> np.ndarray:
        low, high = interval = sample.interval(level)
        within = interval.inside(self.margin)
        nothing = within & (low <= 0) & (high >= 0) & (not blind)
        return words((high < 0) & ((np.abs(sample.mean) >= self.margin) | within), (low > 0) | nothing)

    def flags(self, sample: Paired, level: float) -> list[str]:
        low, high = interval = sample.interval(level)
        flags = ["reversed"] if low > 0 else []
        if interval.inside(self.margin):
            flags += [NOTHING if low <= 0 <= high else "negligible"]
        return flags


class Equivalence(Rule):
    """The arms match: Δ lies within (-δ, δ), shown by TOST.

    supported: inner CI inside (-δ, δ).
    refuted: CI_lo > δ or CI_hi < -δ; too different is too different, be it for the better.
    """

    kind = "equivalence"
    tuned = True

    def decide(self, sample: Paired, level: float, blind: bool = False) -> np.ndarray:
        low, high = sample.interval(level)
        same = sample.interval(inner_level(level)).inside(self.margin) & (not blind)
        return words(same, (low > self.margin) | (high < -self.margin))

    def flags(self, sample: Paired, level: float) -> list[str]:
        low, high = sample.interval(level)
        return ["measurably worse"] if low > 0 else ["measurably better"] if high < 0 else []

    def p_value(self, sample: Paired) -> Number:
        return tost(sample, self.margin).p

    def smallest_margin(self, sample: Paired, level: float) -> float:
        return float(tost(sample, self.margin, 1 - level).smallest_margin)

    def seeds_needed(self, sd: float, level: float) -> int | None:
        """For TOST to pass with a power of 80 % where the arms do not differ at all."""
        return tost_seeds_needed(self.margin, sd, 1 - level)

    def futile(self, sample: Paired) -> bool:
        """Never: a small difference is what is looked for."""
        del sample
        return False


class NonInferiority(Equivalence):
    """The variant is not worse by δ or more: Δ = loss(variant) - loss(reference) stays below δ.

    supported: upper end of the inner CI < δ, which is one-sided at 5 % for 95 %.
    refuted: CI_lo > δ.
    """

    kind = "non_inferiority"

    def decide(self, sample: Paired, level: float, blind: bool = False) -> np.ndarray:
        no_worse = (sample.interval(inner_level(level)).high < self.margin) & (not blind)
        return words(no_worse, sample.interval(level).low > self.margin)

    def p_value(self, sample: Paired) -> Number:
        return non_inferiority_p(sample, self.margin)

    def smallest_margin(self, sample: Paired, level: float) -> float:
        """May be negative: the variant is better by that."""
        return float(sample.interval(inner_level(level)).high)

    def seeds_needed(self, sd: float, level: float) -> int | None:
        return non_inferiority_seeds_needed(self.margin, sd, 1 - level)


class Stability(Rule):
    """The variant is more stable: D > 0, its LR regret (or an interaction) subtracted from that of the reference.

    supported: CI_lo > 0 and mean >= margin (0.1 nats).
    refuted: CI_hi < 0 (*reversed*), or inner CI inside (-negligible, negligible) while the levels that the theory
    calls critical (depth, initial scale, learning rate, warm-up) were covered.
    """

    kind = "stability"
    short: ClassVar[str] = "there, but below the margin"
    """Of an effect that is not `present`."""

    def __init__(self, margin: Positive = 0.1, negligible: Positive = 0.05, covers_critical: bool = False) -> None:
        super().__init__(margin)
        if not 0 < negligible <= margin:
            raise ValueError(f"negligible={negligible}: choose it above 0 and at most margin={margin}")
        self.negligible = negligible
        self.covers_critical = covers_critical

    def decide(self, sample: Paired, level: float, blind: bool = False) -> np.ndarray:
        nothing = sample.interval(inner_level(level)).inside(self.negligible) & self.covers_critical & (not blind)
        return words(self.present(sample, level), (sample.interval(level).high < 0) | nothing)

    def present(self, sample: Paired, level: float) -> Truth:
        return (sample.interval(level).low > 0) & (np.asarray(sample.mean) >= self.margin)

    def flags(self, sample: Paired, level: float) -> list[str]:
        low, high = sample.interval(level)
        flags = ["reversed"] if high < 0 else []
        flags += [self.short] if low > 0 and not self.present(sample, level) else []
        if self._within(sample, level):
            flags += [NOTHING] if self.covers_critical else ["critical levels not covered"] if high >= 0 else []
        return flags

    def obstacle(self, sample: Paired, level: float, blind: bool) -> str | None:
        low, high = sample.interval(level)
        if self._within(sample, level) and not self.covers_critical:
            return f"within {self.negligible:g} of 0, which refutes only where covers_critical is true"
        if low > 0 and high < self.margin:
            return f"between 0 and the margin of {self.margin:g} neither word fits"
        return super().obstacle(sample, level, blind)

    def _within(self, sample: Paired, level: float) -> bool:
        return bool(sample.interval(inner_level(level)).inside(self.negligible))

    def futile(self, sample: Paired) -> bool:
        return bool(sample.interval(0.9).inside(self.negligible))


class Interaction(Stability):
    """One factor's effect depends on another by more than the margin: D = (a_off - a_on) - (b_off - b_on).

    supported: CI_lo > margin (0.1 nats), the whole interval and not only the mean.
    refuted: CI_hi < 0 (*reversed*), or inner CI inside (-negligible, negligible) while the levels that the theory
    calls critical were covered.
    """

    kind = "interaction"
    short = "there, but not surely beyond the margin"

    def present(self, sample: Paired, level: float) -> Truth:
        return np.asarray(sample.interval(level).low) > self.margin


class Exact:
    """Every value lies in [low, high]: an identity, a shape, bytes, a slope. Supported or refuted, nothing between."""

    kind = "exact"
    tuned = False

    def __init__(self, low: float, high: float) -> None:
        if not low <= high:
            raise ValueError(f"low={low} high={high}: write the smaller one first")
        self.low, self.high = low, high

    def judge(self, values: Float[np.ndarray, " n"], *, level: float = 0.95, blind: bool = False) -> Judgement:
        """ValueError for no value or one that is not finite: a measurement that failed says neither."""
        del blind
        if values.size == 0 or not np.isfinite(values).all():
            raise ValueError(f"values {values}: an exact check needs finite numbers")
        holds = bool(((self.low <= values) & (values <= self.high)).all())
        middle, half = (self.low + self.high) / 2, (self.high - self.low) / 2
        return Judgement(
            verdict="supported" if holds else "refuted",
            kind=self.kind,
            n=len(values),
            mean=float(values[np.abs(values - middle).argmax()]),
            level=level,
            margin=half,
            values=tuple(float(value) for value in values),
            flags=(f"within {self.low:g} to {self.high:g}" if holds else f"not within {self.low:g} to {self.high:g}",),
        )


class Cost:
    """The variant is cheaper: median(variant) / median(reference) of timings taken in turns, by bootstrap.

    supported: CI_hi < 1. refuted: CI_lo > 1.
    """

    kind = "cost"
    tuned = False

    def judge(self, variant: Float[np.ndarray, " n"], reference: Float[np.ndarray, " m"], *, level: float) -> Judgement:
        """Errors of `ratio_of_medians`."""
        ratio, (low, high) = ratio_of_medians(variant, reference, check_level(level))
        return Judgement(
            verdict=cast(Word, str(words(high < 1, low > 1))),
            kind=self.kind,
            n=len(variant),
            mean=ratio,
            level=level,
            interval=(float(low), float(high)),
            margin=0.0,
            values=(),
        )


def words(supported: Truth, refuted: Truth) -> np.ndarray:
    """The two never hold together: our own invariant."""
    assert not np.any(np.logical_and(supported, refuted))
    return np.where(supported, "supported", np.where(refuted, "refuted", "inconclusive"))


def inner_level(level: float) -> float:
    """Of the interval each of whose sides errs with probability 1 - level."""
    return 2 * level - 1


def check_level(level: float) -> float:
    if not 0.5 < level < 1:
        raise ValueError(f"level={level}: a confidence lies between 0.5 and 1, as 0.95")
    return level


def _ends(sample: Paired, level: float) -> tuple[float, float] | None:
    if not sample.spreads:
        return None
    low, high = sample.interval(level)
    return float(low), float(high)
