"""What default telemetry costs: the same run with and without, taking turns in one process."""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from modernllm.benchmark.step import silent_trainer
from modernllm.trainer import Trainer

TURN = 5
"""Steps that an arm does before it is the other's turn."""


def telemetry_cost(size: str, telemetry: str, rounds: int) -> dict[str, Any]:
    """`cost` is the median over the rounds of the time with `telemetry` over that without, less 1.

    A round is as many steps as lie between two looks inside the model, at the cadence of the whole run, of which it has
    its share of everything; the arms take turns of a few steps, so that what slows the machine down slows down both.
    CPU time of one thread, evaluation and checkpoints left out.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        arms = [_trainer(size, choice, Path(folder) / choice) for choice in ("none", telemetry)]
        n_steps = next(step for step in range(1, arms[1].steps) if arms[1].telemetry.probe_due(step))
        for arm in arms:
            for _ in range(3):
                arm.advance()
            arm.read_back()
            arm.step = 0  # a round begins after a look and ends with one
            arm.clock = 0.0
        ratios, seconds = [], []
        for number in range(rounds):
            without = with_it = 0.0
            for turn, done in enumerate(range(0, n_steps, TURN)):
                few = min(TURN, n_steps - done)
                took = {which: _advance(arms[which], few) for which in ((0, 1) if (number + turn) % 2 else (1, 0))}
                without, with_it = without + took[0], with_it + took[1]
            ratios.append(with_it / without)
            seconds.append(without / n_steps)
        for arm in arms:
            arm.recorder.directory.release()
    return {
        "size": size,
        "telemetry": telemetry,
        "cost": statistics.median(ratios) - 1,
        "lowest": min(ratios) - 1,
        "highest": max(ratios) - 1,
        "step_seconds": statistics.median(seconds),
        "rounds": rounds,
        "steps_per_round": n_steps,
    }


def _trainer(size: str, telemetry: str, folder: Path) -> Trainer:
    settings = [f"size={size}", f"telemetry={telemetry}", "trainer.eval_every=1000000", "trainer.threads=1"]
    return silent_trainer([*settings, "data=synthetic", "tokenizer=byte", "logger=local"], folder)[1]


def _advance(trainer: Trainer, n_steps: int) -> float:
    """Seconds of its next steps. While it is the other's turn the clock by which it reads back stands still, and is
    what has passed, below zero.
    """
    trainer.clock += time.perf_counter()
    start = time.process_time()
    for _ in range(n_steps):
        trainer.advance()
    took = time.process_time() - start
    trainer.clock -= time.perf_counter()
    return took
