"""What follows from recorded rows: pure functions, right from the first steps on, whatever is not finite in them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

SHORT, LONG = 300, 1500
"""Steps below which no spike score is given, and from which it is that of OLMo 2."""
MIDDLE = (0.1, 0.9)
"""Of training: warm-up moves fast and the end hardly  (ProRes)."""
JUMP = 1.2


class SpikeScore(NamedTuple):
    """`percent` of the `n` values looked at are spikes, `steps` where; `label` says by which rule."""

    percent: float
    n: int
    steps: list[int]
    label: str


def spike_score(values: Sequence[float]) -> SpikeScore | None:
    """Values at least 7 standard deviations from the mean of the last 1000 finite ones (OLMo 2, 2025), in runs below
    1500 steps above 6 of the last 128 (OLMo-core); of the middle 80 % of the run. None for runs below 300 steps.

    A value that is not finite is a spike, and no part of what others are compared with. `steps` count from 1.
    """
    n = len(values)
    if n < SHORT:
        return None
    window, sigmas, two_sided = (1000, 7.0, True) if n >= LONG else (128, 6.0, False)
    first, last = (round(share * n) for share in MIDDLE)
    known = np.array([value for value in values if math.isfinite(value)], dtype=np.float64)
    steps, n_before = [], sum(math.isfinite(value) for value in values[:first])
    for step, value in enumerate(values[first:last], first + 1):
        if not math.isfinite(value):
            steps.append(step)
            continue
        if n_before and _stands_out(value, known[max(0, n_before - window) : n_before], sigmas, two_sided):
            steps.append(step)
        n_before += 1
    percent = 100 * len(steps) / (last - first)
    return SpikeScore(percent, last - first, steps, f"window {window}, {sigmas:g} SD, {len(steps)} of {last - first}")


def _stands_out(value: float, before: np.ndarray, sigmas: float, two_sided: bool) -> bool:
    with np.errstate(over="ignore", invalid="ignore"):  # of numbers at the edge of their range
        mean, deviation = float(before.mean()), float(before.std())
    away = abs(value - mean) if two_sided else value - mean
    rounding = 1e-6 * abs(mean)  # of values that are all one
    return away > rounding and away >= sigmas * deviation


class LossRatio(NamedTuple):
    """The largest loss_t / min_{s<t} loss_s of finite losses and its step, and how many are above 1.2 or not finite."""

    largest: float
    step: int
    jumps: int


def loss_ratio(losses: Sequence[float]) -> LossRatio:
    """(Li, Zhang and He, 2022.) NaN and step 0 with fewer than two finite losses."""
    largest, at, jumps, lowest = math.nan, 0, 0, math.inf
    for step, loss in enumerate(losses, 1):
        if not math.isfinite(loss):
            jumps += 1
            continue
        if 0 < lowest < math.inf:
            ratio = loss / lowest
            jumps += ratio > JUMP
            if not largest >= ratio:
                largest, at = ratio, step
        lowest = min(lowest, loss)
    return LossRatio(largest, at, jumps)


def time_to_divergence(losses: Sequence[float], initial: float) -> int | None:
    """The first step from which the smoothed loss (mean of the last twentieth, at least 10 steps) is above the loss at
    initialisation for good, or a loss is not finite and none after it is; None where neither happens.
    """
    width = max(10, len(losses) // 20)
    since = None
    for step in range(1, len(losses) + 1):
        recent = [loss for loss in losses[max(0, step - width) : step] if math.isfinite(loss)]
        lost = not math.isfinite(losses[step - 1])
        bad = lost or (step >= width and sum(recent) / len(recent) > initial)
        since = (since or step) if bad else None
    return since


def norm_after_clipping(norm: float, clip: float) -> float:
    """What is left of a gradient norm: min(norm, clip)."""
    return norm if not norm > clip else clip


def clip_share(rows: Sequence[Mapping[str, Any]]) -> float:
    """Of the steps in `rows`, how many were clipped; NaN without one."""
    clipped = [bool(row["clipped"]) for row in rows if "clipped" in row]
    return sum(clipped) / len(clipped) if clipped else math.nan


def skipped_steps(rows: Sequence[Mapping[str, Any]]) -> int:
    """Steps that a policy left out because something was not finite."""
    return sum(bool(row.get("skipped", False)) for row in rows)


def noise_scale(rows: Sequence[Mapping[str, Any]], memory: float = 0.9) -> float:
    """S / |G|^2 in tokens from telemetry rows, each an exponential mean first: a batch far below it is mostly noise,
    one far above wasted  (McCandlish et al., 2018). NaN without rows, or while the signal is drowned.
    """
    signal = variance = 0.0
    weight = 0.0
    for row in rows:
        noise = row.get("noise", {})
        s, g = noise.get("variance", math.nan), noise.get("signal", math.nan)
        if math.isfinite(s) and math.isfinite(g):
            signal, variance = (memory * old + (1 - memory) * new for old, new in ((signal, g), (variance, s)))
            weight = memory * weight + 1 - memory
    return variance / signal if weight and signal > 0 else math.nan


def series(rows: Sequence[Mapping[str, Any]], name: str, place: str) -> list[tuple[int, float]]:
    """(step, value) of one place of a series, where it was recorded."""
    return [(row["step"], row[name][place]) for row in rows if place in row.get(name, {})]
