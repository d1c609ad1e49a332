"""That two arms do not differ by as much as a margin is shown by an interval inside it, not by a large p."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from modernllm.claims.statistics.paired import Interval, Number, Paired


class Tost(NamedTuple):
    """`interval` has the confidence 1 - 2 alpha and lies inside the margin exactly when p < alpha."""

    p: Number
    interval: Interval
    smallest_margin: Number
    """The interval's farther end in absolute value: every wider margin would have passed."""


def tost(sample: Paired, margin: float, alpha: float = 0.05) -> Tost:
    """Two one-sided t-tests, mean > -margin and mean < margin; p is the larger of the two (Schuirmann, 1987)."""
    interval = sample.interval(1 - 2 * alpha)
    p = np.maximum(sample.p_above(-margin), sample.p_below(margin))
    return Tost(p, interval, np.maximum(np.abs(interval.low), np.abs(interval.high)))


def non_inferiority_p(sample: Paired, margin: float) -> Number:
    """One-sided p of mean >= margin, for differences whose positive side is worse."""
    return sample.p_below(margin)
