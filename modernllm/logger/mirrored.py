"""What of a run a tracker is shown: the same for the mirror that logs it and for the dashboard that asks for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

COST = ("parameters", "flops_per_token", "cache_bytes_per_token")
HERE = ("sample", "pid", "host", "time")
"""What status.json has beside the results."""


def configuration(config: Mapping[str, Any], identity: Mapping[str, Any]) -> dict[str, Any]:
    """What runs are grouped, filtered and plotted by: the configuration, the names of its choices, what they cost, and
    the cell and arm of a claim's run.
    """
    return {**config, **{key: identity[key] for key in ("choices", "origin", *COST) if key in identity}}


def telemetry(row: Mapping[str, Any]) -> dict[str, Any]:
    """Of layers; what is of single tensors stays in the directory, and so does a number that is not finite, since a
    tracker would keep it as the last.
    """
    return _finite({key: value for key, value in row.items() if key != "tensors"})


def summary(results: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in results.items() if key not in HERE}


def flatten(values: Mapping[str, Any]) -> dict[str, Any]:
    """Nested dicts joined by "/", which makes a section of panels in W&B; an empty one as "{}"."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict) and value:
            flat |= {f"{key}/{inner}": item for inner, item in flatten(value).items()}
        else:
            flat[str(key)] = "{}" if value == {} else value
    return flat


def names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Of everything that is logged in `rows`, each once, in order."""
    return list(dict.fromkeys(name for row in rows for name in flatten(row)))


def _finite(values: Mapping[str, Any]) -> dict[str, Any]:
    found = {key: _finite(value) if isinstance(value, dict) else value for key, value in values.items()}
    return {key: value for key, value in found.items() if value != {} and not _is_sick(value)}


def _is_sick(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
