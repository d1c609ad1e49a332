"""Several contrasts in one claim: the chance of any false one stays at alpha."""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

ALPHA = 0.05
"""Error rate of a claim, all its contrasts together."""


def bonferroni_level(contrasts: int, alpha: float = ALPHA) -> float:
    """1 - alpha / m, the level of each of m intervals."""
    if contrasts < 1:
        raise ValueError(f"contrasts={contrasts}: a claim has at least one")
    return 1 - alpha / contrasts


def bonferroni(p: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
    """min(1, m · p)."""
    return np.minimum(1.0, p * len(p))


def holm(p: Float[np.ndarray, " m"]) -> Float[np.ndarray, " m"]:
    """Adjusted p-values max_{j <= i} min(1, (m - j + 1) · p_(j)), in the given order (Holm, 1979)."""
    order = np.argsort(p, kind="stable")
    steps = np.minimum(1.0, p[order] * np.arange(len(p), 0, -1))
    adjusted = np.empty_like(p)
    adjusted[order] = np.maximum.accumulate(steps)
    return adjusted
