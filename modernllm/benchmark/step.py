"""Tokens per second of a training step: our trainer, telemetry and record included, beside others taking turns."""

from __future__ import annotations

import io
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import rich.console
import torch

from modernllm.benchmark.peers import PEERS, ours, plain_loop
from modernllm.config.build import resolve
from modernllm.config.compose import compose_with_choices
from modernllm.experiment import make_trainer
from modernllm.precision import Precision
from modernllm.preparation import Asked, Prepared, prepare_run
from modernllm.report.console import Console
from modernllm.runs.directory import RunDirectory
from modernllm.runs.recorder import Recorder
from modernllm.trainer import Trainer

Loop = Callable[[int], None]


def compare_steps(size: str, precision: Precision, rounds: int, seconds: float) -> Iterator[dict[str, Any]]:
    """A row for every peer: `ratio` is the median over the rounds of our tokens/s over theirs, `design` what we were
    given to be the same transformer.

    Each round gives everyone about `seconds` of this process's CPU time, in turn, so that a machine that slows down
    slows down all. One thread.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        pairs = list(_pairs(size, precision, Path(folder)))
        loops = dict.fromkeys(loop for _, _, *both in pairs for loop in both)  # a trainer may stand beside two peers
        n_tokens = _tokens_per_step(size)
        for loop in loops:
            loop(2)
        n_steps = max(2, round(seconds / _seconds(pairs[0][2], 3) * 3))
        speeds: dict[Loop, list[float]] = {loop: [] for loop in loops}
        for _ in range(rounds):
            for loop, spent in speeds.items():
                spent.append(n_steps * n_tokens / _seconds(loop, n_steps))
    for name, design, trainer, peer in pairs:
        ratios = [a / b for a, b in zip(speeds[trainer], speeds[peer], strict=True)]
        yield {
            "name": name,
            "design": " ".join(design),
            "size": size,
            "precision": precision,
            "ratio": statistics.median(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
            "ours": statistics.median(speeds[trainer]),
            "theirs": statistics.median(speeds[peer]),
        }


def _seconds(loop: Loop, n_steps: int) -> float:
    start = time.process_time()
    loop(n_steps)
    return time.process_time() - start


def _overrides(size: str, precision: Precision) -> list[str]:
    # far from the last step: a run's end is no part of a step
    settings = ["trainer.threads=1", "trainer.steps=1000000", "telemetry.every=10", "tokenizer=byte", "logger=local"]
    return [f"size={size}", f"trainer.precision={precision}", "data=synthetic", *settings]


def _tokens_per_step(size: str) -> int:
    config = resolve(compose_with_choices(_overrides(size, "fp32"))[0])
    return config["trainer"]["batch_size"] * config["model"]["context_length"]


def _pairs(size: str, precision: Precision, folder: Path) -> Iterator[tuple[str, tuple[str, ...], Loop, Loop]]:
    """Name, our design, our trainer and what it is compared with: a plain loop of the same model first, then the
    peers of the same width and depth.
    """
    trainers: dict[tuple[str, ...], tuple[Prepared, Loop]] = {}

    def ours_as(design: tuple[str, ...]) -> tuple[Prepared, Loop]:
        if design not in trainers:
            words = [*_overrides(size, precision), *design]
            prepared, trainer = silent_trainer(words, folder / str(len(trainers)))
            trainers[design] = prepared, partial(_train, trainer)
        return trainers[design]

    prepared, train = ours_as(())
    again = _prepared(_overrides(size, precision))
    yield "plain loop, same model", (), train, plain_loop(*ours(again.model), again.windows, precision)
    shape = prepared.config["model"]
    sizes = [shape[key] for key in ("vocab_size", "dim", "n_layers", "n_heads", "context_length")]
    for name, peer in PEERS.items():
        yield name, peer.design, ours_as(peer.design)[1], plain_loop(*peer.make(*sizes), prepared.windows, precision)


def _train(trainer: Trainer, n_steps: int) -> None:
    trainer.clock = time.perf_counter()
    for _ in range(n_steps):
        trainer.advance()


def silent_trainer(words: list[str], folder: Path) -> tuple[Prepared, Trainer]:
    """A trainer of these overrides before its first step, that records into `folder` and says nothing."""
    prepared = _prepared(words)
    directory = RunDirectory(folder)
    directory.acquire()
    console = Console(1, rich.console.Console(file=io.StringIO()))
    trainer = make_trainer(prepared, Recorder(directory, prepared.logger, console))
    trainer.model.train()
    return prepared, trainer


def _prepared(words: list[str]) -> Prepared:
    cfg, choices = compose_with_choices(words)
    return prepare_run(resolve(cfg), Asked({group: str(choice) for group, choice in choices.items()}, choices, {}))
