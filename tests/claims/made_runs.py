"""Made-up runs for the tests of the referee."""

from __future__ import annotations

from typing import Any

import numpy as np

from modernllm.claims.table import Row

LRS = (1e-3, 3e-3, 1e-2)
TUNING = (100, 101)
EVALUATION = (0, 1, 2, 3, 4, 5)
START = 5.0
NOISE = np.array([0.012, -0.007, 0.004, -0.011, 0.009, -0.003, 0.006, -0.002])
"""By position of the seed, the same for all arms but for `jitter`."""


def row(**changed: Any) -> Row:
    """A healthy run, but for what is changed."""
    return Row(
        **{
            "cell": "fanin", "arm": "pre", "lr": 3e-3, "seed": 0, "loss": 2.2, "initial_loss": START, "outcome": "ok",
            "tokens": 1000, "planned_tokens": 1000, "yardstick": "text",
        }
        | changed
    )  # fmt: skip


def arm(name: str, curve: dict[float, float], jitter: float = 0.0, **changed: Any) -> list[Row]:
    """Runs of an arm at every rate for tuning and evaluation seeds; its seeds spread by NOISE plus ± jitter."""
    return [
        row(arm=name, lr=lr, seed=seed, loss=float(loss + NOISE[i] + jitter * (-1) ** i), **changed)
        for lr, loss in curve.items()
        for seeds in (TUNING, EVALUATION)
        for i, seed in enumerate(seeds)
    ]


def curve(*losses: float) -> dict[float, float]:
    return dict(zip(LRS, losses, strict=True))
