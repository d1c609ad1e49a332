"""What is alarming about a row of telemetry, in words; each kind once a run, and not for one bad moment."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

Row = dict[str, Any]

GRADIENT_RATIO = 30.0
"""Healthy networks have a ratio of 2 to 10 between the layer of the largest and that of the smallest gradient."""
COLLAPSED = 0.05
"""Normalised entropy of an attention that looks at a single key  (Zhai et al., 2023)."""
MAX_LOGIT = 1e3
"""Wortsman et al. (2023): runs above 1e4 diverged, and to hold it at 1e3 hurt already."""
DEAD = 0.5
DRIFT = 30.0
"""Nats that log Z moved away from 0 since the first probe, or the mean logit."""
ALIKE = 0.99
"""Mean cosine of two tokens of one text."""
NEAR_EPS = 0.5
IDLE = 0.5


class Alarm(NamedTuple):
    about: str
    message: str


class Watch:
    """`consider(row)` every row of a run in order. A sign counts once `patience` rows in a row have shown it."""

    def __init__(self) -> None:
        self.told: set[str] = set()
        self.seen: dict[str, int] = {}
        self.first_logits: dict[str, float] = {}

    def consider(self, row: Row) -> list[Alarm]:
        self.first_logits = self.first_logits or row.get("logits", {})
        found = []
        for about, (series, patience, sign) in SIGNS.items():
            if about in self.told or series not in row:
                continue
            message = sign(row[series], self.first_logits)
            self.seen[about] = self.seen.get(about, 0) + 1 if message else 0
            if message and self.seen[about] >= patience:
                self.told.add(about)
                found.append(Alarm(about, message))
        return found


def gradients_by_depth(norms: dict[str, float], first: dict[str, float]) -> str | None:
    deep = {place: norm for place, norm in norms.items() if place.startswith("layer.") and math.isfinite(norm)}
    if len(deep) < 2:
        return None
    largest, smallest = max(deep, key=lambda place: deep[place]), min(deep, key=lambda place: deep[place])
    if not deep[largest] or deep[largest] < GRADIENT_RATIO * deep[smallest]:
        return None
    if not deep[smallest]:
        return f"{spoken(smallest)} has no gradient, {spoken(largest)} has one of norm {deep[largest]:.2g}"
    return f"{spoken(largest)} gradient norm {deep[largest] / deep[smallest]:.0f}x {spoken(smallest)}"


def attention_collapse(entropies: dict[str, float], first: dict[str, float]) -> str | None:
    heads: dict[str, list[bool]] = {}
    for place, entropy in entropies.items():
        heads.setdefault(place.rpartition(".head.")[0], []).append(entropy < COLLAPSED)
    collapsed = {layer: found for layer, found in heads.items() if any(found)}
    if not collapsed:
        return None
    worst = max(collapsed, key=lambda layer: sum(collapsed[layer]) / len(collapsed[layer]))
    others = len(collapsed) - 1
    more = f", and in {others} more layer{'s' * (others > 1)}" if others else ""
    found = collapsed[worst]
    return f"attention entropy collapsed in {sum(found)} of {len(found)} heads of {spoken(worst)}{more}"


def attention_logits(largest: dict[str, float], first: dict[str, float]) -> str | None:
    place = _above(largest, MAX_LOGIT)
    return place and f"largest attention logit {largest[place]:.3g} in {spoken(place)}"


def dead_units(shares: dict[str, float], first: dict[str, float]) -> str | None:
    place = _above(shares, DEAD)
    return place and f"{shares[place]:.0%} of the units of {spoken(place)} are dead: no token turns them on"


def logit_drift(now: dict[str, float], first: dict[str, float]) -> str | None:
    known = [name for name in ("log_z", "mean") if name in now and name in first]
    moved = {name: now[name] - first[name] for name in known if abs(now[name]) > abs(first[name])}
    name = max(moved, key=lambda name: abs(moved[name]), default="")
    if not name or not DRIFT < abs(moved[name]) < math.inf:
        return None
    called = {"log_z": "log Z", "mean": "mean logit"}[name]
    return f"the output logits drift: {called} from {first[name]:.1f} at the start to {now[name]:.1f}"


def rank_collapse(cosines: dict[str, float], first: dict[str, float]) -> str | None:
    alike = [place for place, cosine in cosines.items() if place != "start" and cosine > ALIKE]
    if not alike:
        return None
    place, n_layers = alike[-1], len([place for place in cosines if place != "start"])
    return (
        f"all tokens of a text have become alike in {len(alike)} of {n_layers} layers: mean cosine "
        f"{cosines[place]:.4f} after {spoken(place)}"
    )


def near_eps(shares: dict[str, float], first: dict[str, float]) -> str | None:
    place = _above({place: share for place, share in shares.items() if place.startswith("layer.")}, NEAR_EPS)
    return place and f"{shares[place]:.0%} of Adam's second moments in {spoken(place)} are near its eps"


def idle_experts(shares: dict[str, float], first: dict[str, float]) -> str | None:
    place = _above(shares, IDLE)
    return place and f"{shares[place]:.0%} of the experts of {spoken(place)} get no token of the probe"


Sign = Callable[[dict[str, float], dict[str, float]], str | None]

SIGNS: dict[str, tuple[str, int, Sign]] = {
    "gradients_by_depth": ("grad_norm", 3, gradients_by_depth),
    "attention_collapse": ("attention_entropy", 2, attention_collapse),
    "attention_logits": ("attention_max_logit", 1, attention_logits),
    "dead_units": ("units_dead", 2, dead_units),
    "logit_drift": ("logits", 1, logit_drift),
    "rank_collapse": ("token_cosine", 2, rank_collapse),
    "near_eps": ("near_eps", 3, near_eps),
    "idle_experts": ("router_idle", 2, idle_experts),
}
"""By kind: the series that shows it, how many rows must agree, and the sentence that a row deserves."""


def spoken(place: str) -> str:
    """`layer.03.head.1` -> layer 3 head 1"""
    return " ".join(part.lstrip("0") or "0" if part.isdigit() else part for part in place.split("."))


def _above(values: dict[str, float], bound: float) -> str | None:
    """Where the largest finite value is, if it is above."""
    finite = {place: value for place, value in values.items() if math.isfinite(value)}
    place = max(finite, key=lambda place: finite[place], default=None)
    return place if place is not None and finite[place] > bound else None
