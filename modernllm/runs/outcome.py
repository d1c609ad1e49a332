"""How a run ended, as one word, from its recorded numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

Outcome = Literal["ok", "degraded", "stalled", "diverged", "nonfinite"]
"""From good to bad."""

STALL_PROGRESS = 0.2
"""A run that has covered less of the way from the unigram to the bigram loss has learned hardly more than counts."""
STALL_STEPS = 100
"""A healthy small run has 0.17 of that way behind it at 40 steps and 0.40 at 80: earlier nothing can be said."""
STALL_GAP = 0.1
"""Nats between the two floors below which the way is too short to measure."""


@dataclass(frozen=True)
class Verdict:
    """`outcome` is None where it cannot be told; `reason` says why it is what it is."""

    outcome: Outcome | None
    reason: str
    progress: float | None


def progress(loss: float, unigram: float, bigram: float) -> float | None:
    """(H1 - CE) / (H1 - H2): 0 at the unigram loss, 1 at the bigram loss; None where the two lie together."""
    if unigram - bigram < STALL_GAP or not math.isfinite(loss):
        return None
    return (unigram - loss) / (unigram - bigram)


def judge(
    *,
    val_loss: float,
    initial_loss: float,
    losses: list[float],
    unigram: float,
    bigram: float,
    first_nonfinite_step: int | None = None,
    skipped_steps: int = 0,
) -> Verdict:
    """`losses` are the training losses of all steps, `val_loss` the last and `initial_loss` the first validation loss.

    Losses are nats per token on one text.
    """
    gone = progress(val_loss, unigram, bigram)
    if first_nonfinite_step is not None:
        return Verdict("nonfinite", f"first non-finite step: {first_nonfinite_step}", gone)
    if not math.isfinite(val_loss):
        return Verdict("nonfinite", "the validation loss is not finite", gone)
    recent = [loss for loss in losses[-max(10, len(losses) // 20) :] if math.isfinite(loss)]  # skipped steps may not be
    smoothed = float(np.mean(recent)) if recent else -math.inf
    if len(losses) >= 10 and max(smoothed, val_loss) > initial_loss:
        worst = max(smoothed, val_loss)
        return Verdict("diverged", f"loss {worst:.3f}, above {initial_loss:.3f} at initialisation", gone)
    if len(losses) < STALL_STEPS:
        return Verdict(None, f"{len(losses)} steps are too few to tell: {STALL_STEPS} are needed", gone)
    if gone is None:
        return Verdict(None, "unigram and bigram floor of this text lie too close to tell a stall", gone)
    if gone < STALL_PROGRESS:
        return Verdict("stalled", _way(gone), gone)
    if skipped_steps:
        return Verdict("degraded", f"{skipped_steps} steps were skipped", gone)
    return Verdict("ok", _way(gone), gone)


def _way(gone: float) -> str:
    return f"{round(gone, 2) + 0.0:.0%} of the way from the unigram to the bigram loss"
