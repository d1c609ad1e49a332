"""What else differs between arms than what is compared: whatever stands here could be the reason instead."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from modernllm.report.page.arms import Arm
from modernllm.report.page.reading import Record

UNLIKE = {"clipped steps": 0.1, "tokens/s": 0.25}
"""Numbers that are never quite equal: by how much they have to differ; speeds, as a share of the fastest."""


@dataclass(frozen=True)
class Confounder:
    """One value for each arm in words; `suspect` where they differ by enough to matter."""

    name: str
    values: tuple[str, ...]
    suspect: bool


def confounders(arms: Sequence[Arm]) -> list[Confounder]:
    """Of the usable runs of each arm."""
    found = [Confounder(name, *_told(name, arms, of, shown)) for name, (of, shown) in MEASURES.items()]
    for name, of in STATED.items():
        values = tuple(_values(of(record) for record in arm.usable) for arm in arms)
        found.append(Confounder(name, values, len(set(values)) > 1))
    rates = tuple(" ".join(f"{lr:g}" for lr in arm.rates) or "-" for arm in arms)
    seeds = tuple(_values(record.seed for record in sorted(arm.usable, key=lambda r: r.seed)) for arm in arms)
    found += [Confounder("learning rates tried", rates, len(set(rates)) > 1)]
    found += [Confounder("seeds", seeds, len(set(seeds)) > 1)]
    return found


def _told(
    name: str, arms: Sequence[Arm], of: Callable[[Record], float], shown: Callable[[float], str]
) -> tuple[tuple[str, ...], bool]:
    numbers = [[value for record in arm.usable if math.isfinite(value := of(record))] for arm in arms]
    middles = [median(values) if values else math.nan for values in numbers]
    known = [value for value in middles if math.isfinite(value)]
    apart = max(known, default=0.0) - min(known, default=0.0)
    if name == "tokens/s":
        apart /= max(known, default=1.0) or 1.0
    return tuple(shown(value) if math.isfinite(value) else "-" for value in middles), apart > UNLIKE.get(name, 0.0)


def _values(values: Iterable[object]) -> str:
    return ", ".join(dict.fromkeys(str(value) for value in values if value is not None)) or "-"


def speed(record: Record) -> float:
    return float(record.status.get("tokens_per_s") or math.nan)


def _warmup(record: Record) -> str:
    """As a share of the steps."""
    value, steps = record.config["schedule"].get("warmup"), record.config["trainer"]["steps"]
    if value is None:
        return "none"
    return f"{value if isinstance(value, float) else value / steps:.0%}"


def _tokens(record: Record) -> str | None:
    """Of runs that went on to the end: those that broke are counted as such."""
    return None if record.word == "nonfinite" else f"{record.status.get('tokens', 0):,}"


def _code(record: Record) -> str:
    code = record.identity.get("code") or {}
    return f"{str(code.get('commit') or 'unknown')[:8]}{' with changes' if code.get('dirty') else ''}"


def _dead(record: Record) -> str:
    return " ".join(f"{group}={choice}" for group, choice in record.identity.get("dead_switches", {}).items()) or "none"


MEASURES: dict[str, tuple[Callable[[Record], float], Callable[[float], str]]] = {
    "clipped steps": (lambda record: record.clipped, "{:.0%}".format),
    "skipped steps": (lambda record: record.skipped, "{:.0f}".format),
    "tokens/s": (speed, "{:,.0f}".format),
}
"""Medians over the runs of an arm."""
STATED: dict[str, Callable[[Record], object]] = {
    "tokens trained on": _tokens,
    "precision": lambda record: (record.identity.get("numerics") or {}).get("precision", "unknown"),
    "device": lambda record: record.identity.get("device", "unknown"),
    "warm-up": _warmup,
    "dead switches": _dead,
    "code": _code,
    "torch": lambda record: (record.identity.get("versions") or {}).get("torch", "unknown"),
    "telemetry": lambda record: record.identity["choices"].get("telemetry", "unknown"),
}
"""All values that the runs of an arm have."""
