"""The curve of a run with few points, its extremes among them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float, Int

POINTS = 240
"""Of a curve: more than a phone has columns, few enough for 500 runs on one page."""


@dataclass(frozen=True)
class Curve:
    """Training loss and gradient norm by step, validation loss where it was measured; NaN is what was not finite."""

    step: Int[np.ndarray, " n"]
    loss: Float[np.ndarray, " n"]
    grad_norm: Float[np.ndarray, " n"]
    val_step: Int[np.ndarray, " m"]
    val_loss: Float[np.ndarray, " m"]

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]]) -> Curve:
        """From the rows of metrics.jsonl."""
        trained = [row for row in rows if "grad_norm" in row]
        evaluated = [row for row in rows if "val_loss" in row]
        return cls(
            np.array([row["step"] for row in trained], dtype=np.int64),
            _finite([row["loss"] for row in trained]),
            _finite([row["grad_norm"] for row in trained]),
            np.array([row["step"] for row in evaluated], dtype=np.int64),
            _finite([row["val_loss"] for row in evaluated]),
        )


def _finite(values: Sequence[float]) -> np.ndarray:
    array = np.array(values, dtype=np.float64)
    return np.where(np.isfinite(array), array, np.nan)


def thinned(values: Float[np.ndarray, " n"], points: int = POINTS) -> Int[np.ndarray, " k"]:
    """Indices of at most `points` values: the first, the last, and of equal pieces between them the smallest and the
    largest, so that no spike is lost. What is NaN is left out, unless all is.
    """
    n = len(values)
    if n <= points:
        return np.arange(n)
    edges = np.linspace(0, n, (points - 2) // 2 + 1).astype(int)
    kept = {0, n - 1}
    for low, high in pairwise(edges):
        piece = values[low:high]
        if not np.isnan(piece).all():
            kept |= {low + int(np.nanargmin(piece)), low + int(np.nanargmax(piece))}
    return np.array(sorted(kept))


def last_finite(curve: Curve) -> int | None:
    """Index of the last finite training loss."""
    found = np.flatnonzero(np.isfinite(curve.loss))
    return int(found[-1]) if len(found) else None


def short(values: np.ndarray) -> list[float | int | None]:
    """For JSON: five digits, null for NaN."""
    if values.dtype.kind in "iu":
        return values.tolist()
    return [None if math.isnan(x) else float(f"{x:.5g}") for x in values.tolist()]
