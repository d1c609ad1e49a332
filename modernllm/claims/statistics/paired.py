"""Two arms compared seed by seed: mean, spread and t-interval of their difference."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from scipy import special

Number = float | np.ndarray
"""One number, or one for each leading index."""
Truth = bool | np.bool_ | np.ndarray
"""Likewise."""

NO_SPREAD = 1e-9
"""Differences this close together (relative to 1 or to their mean) are copies of one another, not a sample."""


class Interval(NamedTuple):
    low: Number
    high: Number

    def inside(self, margin: float) -> Truth:
        """Whether it lies in the open interval (-margin, margin)."""
        return (-margin < np.asarray(self.low)) & (np.asarray(self.high) < margin)


@dataclass(frozen=True)
class Paired:
    """n differences by their mean and their standard deviation (n - 1 below the line; NaN for one seed)."""

    mean: Number
    sd: Number
    n: int

    @property
    def spreads(self) -> Truth:
        """Whether there is a spread to estimate from: two seeds or more, and not all the same."""
        return np.asarray(self.sd) > NO_SPREAD * np.maximum(1.0, np.abs(self.mean))  # NaN > x is False

    @property
    def error(self) -> Number:
        """sd / sqrt(n), the standard error of the mean; infinite where nothing spreads."""
        return np.where(self.spreads, self.sd, np.inf) / np.sqrt(self.n)

    def interval(self, level: float) -> Interval:
        """mean ± t_{(1 + level) / 2, n - 1} · sd / sqrt(n), two-sided.

        The whole line where nothing spreads. With sd = 0 the formula would give one point, hence certainty, where
        there is none: seeds that agree to the last digit were not repeats.
        """
        half = t_quantile((1 + level) / 2, self.n - 1) * self.error
        return Interval(self.mean - half, self.mean + half)

    def t(self, against: float = 0.0) -> Number:
        """(mean - against) / error; 0 where nothing spreads."""
        return (np.asarray(self.mean) - against) / self.error

    def p_value(self) -> Number:
        """Two-sided p of mean = 0; 1 where nothing spreads."""
        return 2 * t_tail(np.abs(self.t()), self.n - 1)

    def p_below(self, bound: float) -> Number:
        """One-sided p of mean >= bound: small where the mean lies clearly below."""
        return t_tail(-self.t(bound), self.n - 1)

    def p_above(self, bound: float) -> Number:
        """One-sided p of mean <= bound: small where the mean lies clearly above."""
        return t_tail(self.t(bound), self.n - 1)


def paired(differences: Float[np.ndarray, "*batch n"]) -> Paired:
    """ValueError without a seed, or with a number that is not finite: cap such runs first."""
    n = differences.shape[-1]
    if n == 0:
        raise ValueError("no seeds: a comparison needs one difference a seed")
    if not np.isfinite(differences).all():
        raise ValueError(f"differences {differences} are not all finite: non-finite runs count as their initial loss")
    mean = differences.mean(-1)
    return Paired(mean, differences.std(-1, ddof=1) if n > 1 else np.full_like(mean, np.nan)[()], n)


def t_quantile(p: float, df: int) -> float:
    """Of Student's t; infinite without a degree of freedom."""
    return float(special.stdtrit(df, p)) if df > 0 else np.inf


def t_tail(t: Number, df: int) -> Number:
    """P(T >= t) of Student's t; 1/2 without a degree of freedom."""
    return special.stdtr(df, -t) if df > 0 else np.full_like(t, 0.5)
