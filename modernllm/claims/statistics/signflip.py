"""The exact sign-flip test: without an effect, each seed's difference could as well have had the other sign."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from modernllm.claims.statistics.paired import Number

MOST_SEEDS = 24
"""2^23 sums fit into memory; beyond, the t-interval stands alone."""


def sign_flip_p(differences: Float[np.ndarray, "*batch n"]) -> Number:
    """Share of the 2^n sign patterns whose |sum| reaches the observed one (two-sided). ValueError above 24 seeds."""
    n = differences.shape[-1]
    if not 1 <= n <= MOST_SEEDS:
        raise ValueError(f"{n} seeds: the exact sign-flip test takes 1 to {MOST_SEEDS}")
    sums = differences[..., :1]  # the first sign may stay: |sum| is the same with all signs turned round
    for i in range(1, n):
        sums = np.concatenate([sums + differences[..., i : i + 1], sums - differences[..., i : i + 1]], axis=-1)
    rounding = 1e-12 * np.abs(differences).sum(-1, keepdims=True)
    observed = np.abs(differences.sum(-1, keepdims=True))
    return (np.abs(sums) >= observed - rounding).mean(-1)


def sign_flip_floor(n: int) -> float:
    """2 / 2^n, the smallest p that n seeds can reach: 0.25 for 3, 0.0625 for 5, 0.03125 for 6."""
    return 2.0 / 2.0**n
