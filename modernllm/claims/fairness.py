"""Arms of equal cost and equal budget, or none at all.

Costs are matched by the width of the feed-forward unless another knob is declared. A plain one has 2 d f parameters and
a gated one 3 d f', so f' = 2/3 f; grouped heads free 2 d^2 (1 - g/h) a layer, which a plain feed-forward takes up with
d (1 - g/h) of width and a gated one with 2/3 of that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

import numpy as np

from modernllm.claims.apart import Apart
from modernllm.claims.matching import MULTIPLE, TOLERANCE, Cost, Matcher, Matching, cost_of, with_value
from modernllm.claims.preflight.arm import undisturbed
from modernllm.claims.preflight.equal import touches
from modernllm.sweep.plan import Planned

BUDGET = ("trainer.steps", "trainer.batch_size", "model.context_length")
"""What decides how many tokens an arm is trained on."""
ROUNDS = 5
"""Times that every arm is timed."""


@dataclass(frozen=True)
class Fairness:
    """`overrides` are what each arm is given beside its own, none where it matched already; `costs` are with them."""

    matching: Matching | Literal["none"]
    overrides: dict[str, list[str]]
    costs: dict[str, Cost]
    held_out: Mapping[str, Apart] = field(default_factory=dict)
    """By arm, where learning rates are chosen."""

    @property
    def mismatch(self) -> dict[str, dict[str, float]]:
        """By arm: how much more it costs than the first one, as a share."""
        (_, first), *others = self.costs.items()
        return {name: _excesses(cost, first) for name, cost in others}

    def to_json(self) -> dict[str, Any]:
        costs = {name: asdict(cost) for name, cost in self.costs.items()}
        held_out = {name: asdict(apart) for name, apart in self.held_out.items()}
        found = {"matching": self.matching, "overrides": self.overrides, "costs": costs, "mismatch": self.mismatch}
        return found | {"held_out": held_out}

    def lines(self) -> list[str]:
        """A table, an arm a line; then what chooses learning rates and what judges."""
        heads = ["arm", "parameters", "active", "non-embedding", "FLOPs/token", "KV bytes/token", "tokens", "ms/step"]
        rows = [[*heads, "given"]]
        rows += [[name, *_cells(cost), " ".join(self.overrides[name]) or "-"] for name, cost in self.costs.items()]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        table = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        return [*table, *dict.fromkeys(apart.sentence for apart in self.held_out.values())]


def match(
    arms: Mapping[str, Planned],
    matching: Matching | Literal["none"],
    *,
    knobs: Mapping[str, str] | None = None,
    multiple: int | None = None,
    tolerance: float | None = None,
    unlike: Collection[str] = (),
    timed: bool = False,
) -> Fairness:
    """What makes every arm cost what the first one does, and what each costs then. `knobs` names by arm the key that is
    turned; `multiple` is what it is rounded to. ValueError, with both numbers and a way out, where an arm stays further
    away than `tolerance`, and for unequal budgets that are not declared `unlike`.
    """
    require_equal_budgets(arms, unlike)
    reference, *others = arms
    overrides: dict[str, list[str]] = {name: [] for name in arms}
    if matching != "none":
        target = cost_of(arms[reference]).of(matching)
        within = TOLERANCE[matching] if tolerance is None else tolerance
        for name in others:
            turn = Matcher(matching, name, arms[name], reference, target, within)
            overrides[name] = turn((knobs or {}).get(name), multiple or MULTIPLE[matching])
    matched = {name: _given(planned, overrides[name]) for name, planned in arms.items()}
    costs = {name: cost_of(planned) for name, planned in matched.items()}
    if timed:
        seconds = step_seconds(matched)
        costs = {name: replace(cost, step_seconds=seconds[name]) for name, cost in costs.items()}
    return Fairness(matching, overrides, costs)


def require_equal_budgets(arms: Mapping[str, Planned], unlike: Collection[str] = ()) -> None:
    """ValueError where arms are trained on unlike numbers of tokens, and no key that decides it is declared (F-99)."""
    tokens = {name: planned.tokens for name, planned in arms.items()}
    if len(set(tokens.values())) > 1 and not any(touches(key, unlike) for key in BUDGET):
        words = ", ".join(f"{name} {number:,}" for name, number in tokens.items())
        raise ValueError(
            f"unequal budgets, in tokens: {words}; give all arms the same {', '.join(BUDGET[:-1])} and {BUDGET[-1]}, "
            f"or declare what differs, as unlike: [{BUDGET[0]}]"
        )


def step_seconds(arms: Mapping[str, Planned]) -> dict[str, float]:
    """Median over training steps of each arm, taken in turns so that a busy machine is busy for all."""
    from modernllm.benchmark.bare import in_turns

    with undisturbed():
        per_token = in_turns({name: planned.config for name, planned in arms.items()}, ROUNDS)
    tokens = {name: planned.tokens / planned.config["trainer"]["steps"] for name, planned in arms.items()}
    return {name: float(np.median(each)) * tokens[name] for name, each in per_token.items()}


def _given(planned: Planned, overrides: list[str]) -> Planned:
    for word in overrides:
        key, _, value = word.partition("=")
        planned = with_value(planned, key, int(value))
    return planned


def _excesses(cost: Cost, first: Cost) -> dict[str, float]:
    numbers = [(key, value, asdict(first)[key]) for key, value in asdict(cost).items()]
    return {key: value / base - 1 for key, value, base in numbers if value is not None and base}


def _cells(cost: Cost) -> list[str]:
    cache, seconds = cost.cache_bytes_per_token, cost.step_seconds
    whole = [cost.parameters, cost.active, cost.non_embedding, cost.flops_per_token]
    return [
        *(f"{number:,.0f}" for number in whole),
        "-" if cache is None else f"{cache:,.0f}",
        f"{cost.tokens:,}",
        "-" if seconds is None else f"{1e3 * seconds:.1f}",
    ]
