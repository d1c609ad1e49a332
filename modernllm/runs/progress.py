"""How far a run is, from the end of its metrics, without reading the whole file."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from modernllm.runs.directory import from_json

TAIL = 1 << 16
"""Bytes from the end, in which the row of a step always stands."""


@dataclass(frozen=True)
class Progress:
    step: int
    loss: float
    tokens_per_s: float


def progress(run: Path) -> Progress | None:
    """The last step that was recorded; None before the first."""
    try:
        with (run / "metrics.jsonl").open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    for line in reversed(lines[:-1]):  # what follows the last newline is still being written
        try:
            row = from_json(json.loads(line))
            if "grad_norm" in row:
                return Progress(row["step"], row["loss"], row["tokens_per_s"])
        except (ValueError, KeyError, TypeError):  # cut at its start by the tail, or damaged
            continue
    return None
