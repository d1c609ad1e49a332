"""One knob of one arm, turned until the arm costs what another does."""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, Literal

from modernllm.config.nearest import did_you_mean
from modernllm.config.values import shown
from modernllm.cost import planned_cost
from modernllm.sweep.plan import Planned

Matching = Literal["params", "flops", "cache"]
UNITS: dict[Matching, str] = {
    "params": "non-embedding parameters",
    "flops": "FLOPs a token",
    "cache": "bytes of cache a token",
}
TOLERANCE: dict[Matching, float] = {"params": 0.01, "flops": 0.02, "cache": 0.0}
"""Relative; a cache can be equal to the byte."""
MULTIPLE: dict[Matching, int] = {"params": 8, "flops": 8, "cache": 1}
"""What a knob is rounded to: matrices of other widths are slow."""
KNOBS: dict[Matching, tuple[str, ...]] = {
    "params": ("model.hidden",),
    "flops": ("model.hidden",),
    "cache": ("model.attention.kv_rank", "model.attention.size", "model.n_kv_heads"),
}
"""The first that an arm has and that changes its cost is turned, unless one is declared."""
OTHERS = ("model.hidden", "model.moe.hidden", "model.dim", "model.n_kv_heads", "model.attention.kv_rank")
"""What else might be turned, for the one who is refused."""
LARGEST = 2**20


@dataclass(frozen=True)
class Cost:
    """What one arm costs, as it will be run. Parameters in numbers, the cache in bytes at the full context."""

    parameters: int
    active: int
    non_embedding: int
    flops_per_token: float
    cache_bytes_per_token: float | None
    tokens: int
    step_seconds: float | None = None

    def of(self, mode: Matching) -> float:
        """The number that is matched, never one that the tables dominate. ValueError for the cache of a model that has
        none.
        """
        found = {"params": self.non_embedding, "flops": self.flops_per_token, "cache": self.cache_bytes_per_token}
        if (value := found[mode]) is None:
            raise ValueError(f"matching={mode}: a model of other hands does not say what its cache holds")
        return float(value)


def cost_of(planned: Planned) -> Cost:
    """Counted on a model without memory. ConfigError where it cannot be built."""
    found = planned_cost(planned.config["model"])
    return Cost(
        found["parameters"]["total"],
        found["parameters"]["active"],
        found["parameters"]["non_embedding"],
        found["flops_per_token"]["algorithmic"],
        found["cache_bytes_per_token"],
        planned.tokens,
    )


@dataclass
class Matcher:
    """`(knob, multiple) -> overrides`: those with which the arm `name` costs `target`, as `reference` does."""

    mode: Matching
    name: str
    planned: Planned
    reference: str
    target: float
    tolerance: float

    def __post_init__(self) -> None:
        self._costs: dict[tuple[str, int], float] = {}
        self.now = cost_of(self.planned).of(self.mode)

    def __call__(self, knob: str | None, multiple: int) -> list[str]:
        """None where the arm as it is comes as near. ValueError where none comes within the tolerance."""
        if self.now == self.target:
            return []
        knob = knob or self.usual_knob()
        value = self.solve(knob, multiple)
        best = self.at(knob, value)
        if self.distance(self.now) <= self.distance(best):
            words, best = [], self.now
        else:
            words = [f"{knob}={value}"]
        if self.distance(best) > self.tolerance:
            raise ValueError(
                f"matching={self.mode}: {self.name} has {best:,.0f} {UNITS[self.mode]} with "
                f"{knob}={value if words else shown(_at(self.planned.config, knob))}, {self.reference} has "
                f"{self.target:,.0f}: {self.distance(best):.2%} apart where {self.tolerance:.1%} is allowed; "
                f"{self.way_out(knob, multiple)}"
            )
        return words

    def usual_knob(self) -> str:
        for key in KNOBS[self.mode]:
            if self.turns(key):
                return key
        raise ValueError(
            f"matching={self.mode}: {self.name} has {self.now:,.0f} {UNITS[self.mode]}, {self.reference} has "
            f"{self.target:,.0f}, and {' or '.join(KNOBS[self.mode])} changes nothing about it; declare another knob"
        )

    def turns(self, knob: str) -> bool:
        """Whether the arm has it and it changes what is matched."""
        if not _has(self.planned.config, knob):
            return False
        values = ladder(self.planned, knob, 8)
        try:
            return len({self.at(knob, values(rung)) for rung in (1, 2, 3)}) > 1
        except ValueError:
            return False

    def solve(self, knob: str, multiple: int) -> int:
        """The value whose cost is nearest, of costs that grow with the knob."""
        if not _has(self.planned.config, knob):
            section = knob.rpartition(".")[0]
            names = [f"{section}.{key}" for key in _at(self.planned.config, section)]
            raise ValueError(f"{knob}: the arm {self.name} has no such key{did_you_mean(knob, names)}")
        values = ladder(self.planned, knob, multiple)

        def falls_short(rung: int) -> bool:
            return self.at(knob, values(rung)) < self.target

        first, second = (self.at(knob, values(rung)) for rung in (1, 2))
        # where the cost is linear, as in a width, this is between the two best
        guess = 1 + (self.target - first) / (second - first) if second > first else 1.0
        low = max(1, min(int(guess), LARGEST))
        high = low + 1
        while falls_short(high) and values(high) != values(2 * high):
            low, high = high, 2 * high
        while low > 1 and not falls_short(low):
            low, high = low // 2, low
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if falls_short(middle) else (low, middle)
        return min(values(low), values(high), key=lambda value: self.distance(self.at(knob, value)))

    def at(self, knob: str, value: int) -> float:
        if (knob, value) not in self._costs:
            self._costs[knob, value] = cost_of(with_value(self.planned, knob, value)).of(self.mode)
        return self._costs[knob, value]

    def distance(self, cost: float) -> float:
        return abs(cost / self.target - 1)

    def way_out(self, knob: str, multiple: int) -> str:
        """A finer rounding or another knob that comes near enough."""
        finer = [(knob, step) for step in (4, 2, 1) if step < multiple]
        for key, step in [*finer, *((key, multiple) for key in OTHERS if key != knob)]:
            if self.turns(key):
                value = self.solve(key, step)
                if self.distance(self.at(key, value)) <= self.tolerance:
                    return f"{key}={value} would do ({self.distance(self.at(key, value)):.2%})"
        return f"no knob of {self.name} would do: change {self.reference}, or declare a larger tolerance"


def ladder(planned: Planned, knob: str, multiple: int) -> Callable[[int], int]:
    """The i-th value that a knob may take, from i = 1; the last one again beyond the end."""
    heads = planned.config["model"].get("n_heads", 1)
    if knob == "model.n_kv_heads":
        divisors = [g for g in range(1, heads + 1) if heads % g == 0]
        return lambda i: divisors[min(i, len(divisors)) - 1]
    if knob == "model.dim":  # heads of an even size, which rotations need
        multiple = math.lcm(multiple, 2 * heads)
    return lambda i: min(i * multiple, LARGEST)


def with_value(planned: Planned, key: str, value: int) -> Planned:
    """The same arm with another value: to be counted, not run."""
    config = deepcopy(planned.config)
    section, _, name = key.rpartition(".")
    _at(config, section)[name] = value
    return replace(planned, config=config)


def _has(config: dict[str, Any], key: str) -> bool:
    section, _, name = key.rpartition(".")
    try:
        return name in _at(config, section)
    except (KeyError, TypeError):
        return False


def _at(config: dict[str, Any], key: str) -> Any:
    for part in key.split("."):
        config = config[part]
    return config
