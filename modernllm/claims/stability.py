"""What a grid of learning rates says about an arm, seed by seed. Axes: arm, learning rate, seed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float


def capped(losses: Float[np.ndarray, "*any"], initial: Float[np.ndarray, "*any"]) -> Float[np.ndarray, "*any"]:
    """min(l, l_0), and l_0 where the loss is not finite: a run that ended worse than it began had learned nothing.

    `initial` is each run's own loss at initialisation (nats). ValueError where that is not finite.
    """
    if not np.isfinite(initial).all():
        raise ValueError(
            f"initial losses {initial} are not all finite: such an arm cannot start, hence not be compared"
        )
    return np.where(np.isfinite(losses), np.minimum(losses, initial), initial)


def lr_regret(losses: Float[np.ndarray, "*batch arm lr seed"]) -> Float[np.ndarray, "*batch arm seed"]:
    """R = mean over the grid of l(lr) - l_best, l_best the best loss of *any* arm at that seed; losses capped.

    An arm that never learns is charged for all that another arm learnt.
    """
    best = losses.min(axis=(-3, -2), keepdims=True)
    return (losses - best).mean(axis=-2)


def lr_sensitivity(losses: Float[np.ndarray, "*batch arm lr seed"]) -> Float[np.ndarray, "*batch arm seed"]:
    """S = mean over the grid of l(lr) - l*, l* the arm's own best loss at that seed (Wortsman et al., 2023).

    Zero for an arm that never learns, so it stands beside R and decides nothing.
    """
    return (losses - losses.min(axis=-2, keepdims=True)).mean(axis=-2)


def max_stable_lr(lrs: Sequence[float], failed: Bool[np.ndarray, "*batch lr seed"]) -> Float[np.ndarray, "*batch seed"]:
    """The largest rate at which the run of a seed did not fail; NaN where all did."""
    rates = np.where(failed, -np.inf, np.asarray(lrs, dtype=float)[:, None]).max(axis=-2)
    return np.where(np.isfinite(rates), rates, np.nan)


def difference_of_differences(
    off_a: Float[np.ndarray, "*any"],
    on_a: Float[np.ndarray, "*any"],
    off_b: Float[np.ndarray, "*any"],
    on_b: Float[np.ndarray, "*any"],
) -> Float[np.ndarray, "*any"]:
    """(off_a - on_a) - (off_b - on_b): by how much more switching it on lowers the loss of a than that of b."""
    return (off_a - on_a) - (off_b - on_b)
