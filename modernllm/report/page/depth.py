"""What telemetry says by layer, of the runs that the figures show. Absent is absent."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from modernllm.report.page.reading import Record
from modernllm.runs.directory import from_json

SERIES = ("grad_norm", "stream_rms", "attention_entropy", "attention_max_logit")
Rows = Sequence[Mapping[str, Any]]


def telemetry(record: Record) -> Rows:
    """Rows with the series that are shown. A damaged line, or a half-written one, ends them."""
    path = Path(record.path) / "telemetry.jsonl"
    if not path.exists():
        return []
    rows = []
    for line in path.read_bytes().splitlines():
        head, cut, _ = line.partition(b', "tensors": {')  # nine tenths of a row, and nothing here is about tensors
        try:
            row = json.loads(head + b"}" if cut else line)
            rows.append(from_json({key: row[key] for key in ("step", *SERIES) if key in row}))
        except (ValueError, KeyError, TypeError):
            break
    return rows


def by_layer(row: Mapping[str, Any], series: str) -> dict[str, float]:
    """A number for each layer, from the first to the last; the mean over heads, NaN where one is not finite."""
    layers: dict[str, list[float]] = {}
    for place, value in row.get(series, {}).items():
        if place.startswith("layer.") or place == "start":
            layers.setdefault(place.removeprefix("layer.").partition(".")[0], []).append(value)
    means = {name: sum(values) / len(values) for name, values in layers.items()}
    return {name: value if math.isfinite(value) else math.nan for name, value in means.items()}


def last(rows: Rows, series: str) -> dict[str, float]:
    """By layer, at the end."""
    return by_layer(next((row for row in reversed(rows) if series in row), {}), series)


def heat(rows: Rows, series: str, columns: int = 60) -> tuple[list[int], list[str], np.ndarray]:
    """Steps, layers and values [layer step] over training, at most so many columns."""
    having = [row for row in rows if series in row]
    having = [having[i] for i in np.unique(np.linspace(0, len(having) - 1, min(columns, len(having))).astype(int))]
    layers = list(by_layer(having[-1], series)) if having else []
    values = [[by_layer(row, series).get(layer, math.nan) for row in having] for layer in layers]
    return [row["step"] for row in having], layers, np.array(values)
