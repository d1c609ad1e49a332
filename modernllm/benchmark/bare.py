"""A training step of a configuration without a run around it, to be timed."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from modernllm.batch import Batch
from modernllm.config.build import build, build_model
from modernllm.objective import Objective
from modernllm.precision import autocast, pick_device


def bare_step(config: Mapping[str, Any]) -> Callable[[], float]:
    """Does a step on random tokens with the model and the optimizer of a settled configuration; seconds per token.

    Of processor time on a CPU, where other programs may be at work; else of the clock.
    """
    trainer, shape = config["trainer"], config["model"]
    device = pick_device(trainer["device"])
    with torch.random.fork_rng(devices=[]):
        model, _ = build_model(shape)
        build(config["init"], "init")(model, 0)
        rows = trainer["micro_batch"] or trainer["batch_size"]
        tokens = torch.randint(shape["vocab_size"], (rows, shape["context_length"] + 1))
    optimizer = build(config["optimizer"], "optimizer", model=model.to(device))
    batch = Batch(tokens[:, :-1], tokens[:, 1:]).to(device)
    objective = Objective(model, trainer["z_loss"])
    clock = time.process_time if device.type == "cpu" else time.perf_counter

    def step() -> float:
        started = clock()
        with autocast(trainer["precision"], device):
            nats, auxiliary = objective(batch)
        ((nats + auxiliary) / batch.n_targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), trainer["clip"])
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (clock() - started) / batch.n_targets

    return step


def in_turns(configs: Mapping[str, Mapping[str, Any]], repeats: int) -> dict[str, Float[np.ndarray, " n"]]:
    """Seconds per token of every configuration, a step each a round; three rounds before warm up. One thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        steps = {name: bare_step(config) for name, config in configs.items()}
        rounds = [[step() for step in steps.values()] for _ in range(3 + repeats)][3:]
    finally:
        torch.set_num_threads(threads)
    return {name: np.array(column) for name, column in zip(steps, zip(*rounds, strict=True), strict=True)}
