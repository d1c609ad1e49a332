"""What n seeds can see, and how many seeds an effect needs, given the paired standard deviation."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import numpy as np
from numpy.polynomial.legendre import leggauss
from scipy import optimize, special, stats

from modernllm.claims.statistics.paired import t_quantile

POWER = 0.8
MOST_SEEDS = 10_000
"""Who needs more has no experiment."""
NODES, WEIGHTS = leggauss(100)


def t_power(shift: float, n: int, level: float) -> float:
    """P(|T| > t_{(1 + level) / 2}), T noncentral t with n - 1 degrees of freedom; shift = effect · sqrt(n) / sd."""
    critical = t_quantile((1 + level) / 2, n - 1)
    # the other side has at most Phi(-shift); scipy gives NaN far out there
    other = stats.nct.cdf(-critical, n - 1, shift) if shift < 6 else 0.0
    return float(stats.nct.sf(critical, n - 1, shift) + other)


@lru_cache
def _detectable_shift(n: int, level: float, power: float) -> float:
    high = 4.0
    while t_power(high, n, level) < power:
        high *= 2
    return optimize.root_scalar(lambda shift: t_power(shift, n, level) - power, bracket=(0.0, high)).root


def minimum_detectable_effect(sd: float, n: int, level: float = 0.95, power: float = POWER) -> float:
    """The effect that a two-sided paired t-test finds with this power. Infinite for one seed or an unknown sd."""
    if n < 2 or not sd > 0:
        return math.inf
    return sd * _detectable_shift(n, level, power) / math.sqrt(n)


def seeds_needed(effect: float, sd: float, level: float = 0.95, power: float = POWER) -> int | None:
    """Fewest seeds with which a two-sided paired t-test finds `effect`; None for an unknown sd or above 10,000."""
    return _fewest(lambda n: t_power(effect / sd * math.sqrt(n), n, level), sd, power)


def tost_power(margin: float, sd: float, n: int, alpha: float = 0.05) -> float:
    """P(interval of TOST inside the margin) for arms that do not differ at all.

    Given s the mean is normal, so this is E_s[2 Phi((margin - t · s / sqrt(n)) · sqrt(n) / sd) - 1]+ over the chi
    distribution of s.
    """
    critical = t_quantile(1 - alpha, n - 1)
    reach = margin * math.sqrt(n) / sd
    scale = 1 / math.sqrt(n - 1)
    low = max(0.0, 1 - 12 * scale)  # nearly all of the chi distribution, in units of sd
    high = min(reach / critical, 1 + 12 * scale)  # beyond the first, the interval is wider than the margin
    if high <= low:
        return 0.0
    s = low + (high - low) * (NODES + 1) / 2
    inside = (2 * special.ndtr(reach - critical * s) - 1) * stats.chi.pdf(s, n - 1, scale=scale)
    return float((high - low) / 2 * WEIGHTS @ inside)


def tost_seeds_needed(margin: float, sd: float, alpha: float = 0.05, power: float = POWER) -> int | None:
    """Fewest seeds with which TOST passes for arms that do not differ at all; None as in `seeds_needed`."""
    return _fewest(lambda n: tost_power(margin, sd, n, alpha), sd, power)


def non_inferiority_seeds_needed(margin: float, sd: float, alpha: float = 0.05, power: float = POWER) -> int | None:
    """Fewest seeds with which a one-sided test passes for arms that do not differ at all; None as in `seeds_needed`."""
    return _fewest(
        lambda n: float(stats.nct.sf(t_quantile(1 - alpha, n - 1), n - 1, margin / sd * math.sqrt(n))), sd, power
    )


def _fewest(power_of: Callable[[int], float], sd: float, power: float) -> int | None:
    """Doubling, then halving: power grows with n."""
    if not (sd > 0 and np.isfinite(sd)):
        return None
    high = 2
    while power_of(high) < power:
        if high >= MOST_SEEDS:
            return None
        high = min(2 * high, MOST_SEEDS)
    low = max(high // 2, 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(middle) >= power else (middle, high)
    return high
