"""How much faster: timings have outliers on one side only, so medians are compared."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from modernllm.claims.statistics.paired import Interval


class Ratio(NamedTuple):
    ratio: float
    interval: Interval


def ratio_of_medians(
    variant: Float[np.ndarray, " n"],
    reference: Float[np.ndarray, " m"],
    level: float = 0.95,
    resamples: int = 4000,
    seed: int = 0,
) -> Ratio:
    """median(variant) / median(reference) with a percentile bootstrap interval; below 1 the variant is faster.

    The i-th timings were taken in turns (ABAB) and are resampled together, so what slowed the machine for a while
    slows both. ValueError for fewer than 20 pairs or a timing that is not positive and finite.
    """
    if len(variant) != len(reference) or len(variant) < 20:
        raise ValueError(f"{len(variant)} and {len(reference)} timings: take at least 20 of each, in turns")
    if not (np.isfinite([variant, reference]).all() and min(variant.min(), reference.min()) > 0):
        raise ValueError("timings have to be positive and finite")
    picks = np.random.default_rng(seed).integers(len(variant), size=(resamples, len(variant)))
    ratios = np.median(variant[picks], axis=1) / np.median(reference[picks], axis=1)
    low, high = np.quantile(ratios, [(1 - level) / 2, (1 + level) / 2])
    return Ratio(float(np.median(variant) / np.median(reference)), Interval(float(low), float(high)))
