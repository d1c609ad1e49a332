"""What a plan would cost, from steps that are done here and now."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any

from modernllm.sweep.plan import Plan, Planned

STEPS = 3
"""Training steps that a speed is taken from, after one that warms up."""
MEASURED = 6
"""Kinds of runs that are timed; the others are scaled by what they compute."""
STATES = {"sgd": 1, "lion": 1}
"""Numbers that an optimizer keeps for each parameter, where it is not Adam's two."""


def estimate(plan: Plan, places: Sequence[Any]) -> Iterator[str]:
    """Tokens, time with so many runs at once, and disk of what is to be run, in lines."""
    runs = plan.todo
    if not runs:
        yield "nothing to do"
        return
    seconds = durations(runs)
    total, longest = sum(seconds), max(seconds)
    wall = max(total / len(places), longest)
    yield f"{sum(run.tokens for run in runs):,} tokens"
    yield f"about {in_words(wall)} with {len(places)} at a time ({in_words(total)} of work), from steps measured here"
    yield f"about {sum(map(disk, runs)) / 1e6:,.0f} MB on disk"


def durations(runs: Sequence[Planned]) -> list[float]:
    """Seconds of each run by itself, without its start: its tokens times seconds per token of its kind, in a share of
    the time where ranks share the work.
    """
    kinds: dict[str, Planned] = {}
    for run in runs:
        kinds.setdefault(_kind(run), run)
    flops: dict[str, float] = {kind: _cost(kind)["flops_per_token"]["training"] for kind in kinds}
    timed = {kind: seconds_per_token(run) for kind, run in list(kinds.items())[:MEASURED]}
    rates = sorted(seconds / flops[kind] for kind, seconds in timed.items())
    per_token = {kind: rates[len(rates) // 2] * each for kind, each in flops.items()} | timed
    return [(run.tokens + _evaluated(run) / 3) * per_token[_kind(run)] / run.config["trainer"]["ranks"] for run in runs]


@cache
def _cost(kind: str) -> dict[str, Any]:
    """Counted once for all runs of a kind."""
    from modernllm.cost import planned_cost

    model, _ = json.loads(kind)
    return planned_cost(model)


def _evaluated(run: Planned) -> int:
    """Tokens that are only read: a third of what a training step computes."""
    trainer = run.config["trainer"]
    every = trainer["eval_every"] or max(1, trainer["steps"] // 5)
    return (1 + trainer["steps"] // every) * trainer["validation_tokens"]


def _kind(run: Planned) -> str:
    """What two runs share that take the same time for a token."""
    trainer = run.config["trainer"]
    cut = [trainer[key] for key in ("batch_size", "micro_batch", "precision", "device")]
    return json.dumps([run.config["model"], cut], sort_keys=True)


def seconds_per_token(run: Planned) -> float:
    """The fastest of a few whole training steps: what else the machine does is no part of a run."""
    from modernllm.benchmark.bare import bare_step

    step = bare_step(run.config)
    return min([step() for _ in range(1 + STEPS)][1:])


def disk(run: Planned) -> float:
    """Bytes: of each checkpoint with what the optimizer keeps, of the best and the last weights, of a row a step."""
    weights = 4.0 * _cost(_kind(run))["parameters"]["total"]
    states = STATES.get(run.asked.choices["optimizer"], 2)
    trainer = run.config["trainer"]
    return weights * (trainer["keep"] * (1 + states) + 2) + 250 * trainer["steps"]


def in_words(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
