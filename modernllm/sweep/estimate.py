"""What a plan would cost, from steps that are done here and now."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any

from modernllm.sweep.plan import Plan, Planned, sketch

STEPS = 3
"""Training steps that a speed is taken from, after one that warms up."""
MEASURED = 6
"""Kinds of runs that are timed; the others are scaled by what they compute."""
STATES = {"sgd": 1, "lion": 1}
"""Numbers that an optimizer keeps for each parameter, where it is not Adam's two."""


def estimate(plan: Plan, places: Sequence[int | None]) -> Iterator[str]:
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
    """Seconds of each run by itself: tokens of the run times seconds per token of its kind."""
    per_token: dict[str, float] = {}
    flops: dict[str, float] = {}
    found = []
    for run in runs:
        kind = _kind(run)
        if kind not in flops:
            flops[kind] = flops_per_token(run)
            if len(per_token) < MEASURED:
                per_token[kind] = seconds_per_token(run)
        if kind not in per_token:
            rates = [per_token[known] / flops[known] for known in list(per_token)[:MEASURED]]
            per_token[kind] = flops[kind] * sorted(rates)[len(rates) // 2]
        found.append(run.tokens * per_token[kind])
    return found


def _kind(run: Planned) -> str:
    """What two runs share that take the same time for a token."""
    trainer = run.config["trainer"]
    cut = [trainer[key] for key in ("batch_size", "micro_batch", "precision", "device")]
    return json.dumps([run.config["model"], cut], sort_keys=True)


def flops_per_token(run: Planned) -> float:
    from modernllm.runs.identity import forward_flops_per_token

    model, _ = sketch(run.config["model"])
    return 3 * forward_flops_per_token(model, run.config["model"]["context_length"])


def seconds_per_token(run: Planned) -> float:
    """Of whole training steps of the run's own model on random tokens."""
    import torch

    from modernllm.batch import Batch
    from modernllm.config.build import build, build_model
    from modernllm.objective import Objective
    from modernllm.precision import autocast, pick_device

    config: dict[str, Any] = run.config
    trainer, shape = config["trainer"], config["model"]
    torch.set_num_threads(1)
    device = pick_device(trainer["device"])
    model, _ = build_model(shape)
    build(config["init"], "init")(model, 0)
    optimizer = build(config["optimizer"], "optimizer", model=model.to(device))
    rows = trainer["micro_batch"] or trainer["batch_size"]
    tokens = torch.randint(shape["vocab_size"], (rows, shape["context_length"] + 1))
    batch = Batch(tokens[:, :-1], tokens[:, 1:]).to(device)
    objective = Objective(model, trainer["z_loss"])
    times = []
    for _ in range(1 + STEPS):
        started = time.perf_counter()
        with autocast(trainer["precision"], device):
            nats, auxiliary = objective(batch)
        ((nats + auxiliary) / batch.n_targets).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return min(times[1:]) / tokens[:, 1:].numel()


def disk(run: Planned) -> float:
    """Bytes: of each checkpoint with what the optimizer keeps, of the best and the last weights, of a row a step."""
    model, _ = sketch(run.config["model"])
    weights = 4.0 * sum(parameter.numel() for parameter in model.parameters())
    states = STATES.get(run.asked.choices["optimizer"], 2)
    trainer = run.config["trainer"]
    return weights * (trainer["keep"] * (1 + states) + 2) + 250 * trainer["steps"]


def in_words(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
