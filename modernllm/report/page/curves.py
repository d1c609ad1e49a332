"""What the page's own script draws learning curves from: few points a run, and a band over the seeds of each arm."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from modernllm.report.page.arms import Arm
from modernllm.report.page.confounders import speed
from modernllm.report.page.curve import POINTS, Curve, last_finite, short, thinned
from modernllm.report.page.ranking import Standing
from modernllm.report.page.reading import Record

ALL_POINTS = 60_000
"""Of all curves of a page together."""
FEWEST = 60
BUCKETS = 120
"""Points of a band."""


def curves(
    arms: Sequence[Arm],
    standings: Sequence[Standing],
    colour: Mapping[str, str],
    x: str,
    among: Mapping[str, int],
) -> dict[str, Any]:
    """Every run that has a curve; `best` marks those at the best learning rate of their arm. `among` is the number of
    the ranking that an arm is in.
    """
    best = {id(record) for each in standings for record in each.best}
    runs = [(number, record) for number, arm in enumerate(arms) for record in arm.records if len(record.curve.step)]
    points = max(FEWEST, min(POINTS, ALL_POINTS // max(1, len(runs))))
    return {
        "x": x,
        "arms": [{"name": arm.label, "colour": colour[arm.label], "group": among[arm.label]} for arm in arms],
        "runs": [_run(number, record, id(record) in best, points) for number, record in runs],
        "bands": [_band(number, arm, best) for number, arm in enumerate(arms)],
    }


def _run(arm: int, record: Record, best: bool, points: int) -> dict[str, Any]:
    curve = record.curve
    series = {}
    for name, values in (("loss", curve.loss), ("grad_norm", curve.grad_norm)):
        kept = thinned(values, points)
        series[name] = [curve.step[kept].tolist(), short(values[kept])]
    end = last_finite(curve)
    broke = record.word in ("diverged", "nonfinite") and end is not None
    return {
        "arm": arm,
        "lr": record.lr,
        "seed": record.seed,
        "word": record.word,
        "best": best,
        "series": {**series, "val_loss": [curve.val_step.tolist(), short(curve.val_loss)]},
        "end": int(curve.step[end]) if broke and end is not None else None,
        **_scales(record),
    }


def _scales(record: Record) -> dict[str, float | int | None]:
    """By how much a step counts in tokens, FLOPs and seconds; seconds at the mean speed of the run."""
    flops = (record.identity.get("flops_per_token") or {}).get("training")
    rate = speed(record)
    return {
        "tokens": record.tokens_per_step,
        "flops": flops and flops * record.tokens_per_step,
        "time": record.tokens_per_step / rate if rate > 0 else None,
    }


def _band(number: int, arm: Arm, best: set[int]) -> dict[str, Any] | None:
    """Mean and range over the seeds at the best learning rate, of means over equal pieces of training. It ends where
    the first seed ends.
    """
    runs = [record for record in arm.records if id(record) in best]
    lasts = [int(record.curve.step[-1]) for record in runs if len(record.curve.step)]
    if len(lasts) < 2:
        return None
    edges = np.unique(np.linspace(0, min(lasts), min(BUCKETS, min(lasts)) + 1).astype(int))
    found: dict[str, Any] = {"arm": number, "step": edges[1:].tolist(), **_scales(runs[0])}
    for name in ("loss", "grad_norm"):
        pieces = np.stack([_means(record.curve, name, edges) for record in runs])
        alive = np.isfinite(pieces).all(axis=0)
        middle, low, high = (
            short(np.where(alive, of, math.nan)) for of in (pieces.mean(0), pieces.min(0), pieces.max(0))
        )
        found[name] = {"mean": middle, "low": low, "high": high}
    return found


def _means(curve: Curve, name: str, edges: np.ndarray) -> np.ndarray:
    values = curve.loss if name == "loss" else curve.grad_norm
    places = np.searchsorted(curve.step, edges, side="right")
    pieces = [values[low:high] for low, high in pairwise(places)]
    return np.array([piece.mean() if len(piece) else math.nan for piece in pieces])
