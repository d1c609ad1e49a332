"""Tokens per second of a training step: our trainer, telemetry and record included, beside others taking turns."""

from __future__ import annotations

import io
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
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
    """A row for every peer: `ratio` is the median over the rounds of our tokens/s over theirs.

    Each round gives everyone about `seconds` of this process's CPU time, in turn, so that a machine that slows down
    slows down all. One thread.
    """
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        entrants = dict(_entrants(size, precision, Path(folder)))
        n_tokens = _tokens_per_step(size)
        n_steps = max(2, round(seconds / _seconds(entrants["trainer"], 3) * 3))
        speeds: dict[str, list[float]] = {name: [] for name in entrants}
        for loop in entrants.values():
            loop(2)
        for _ in range(rounds):
            for name, loop in entrants.items():
                speeds[name].append(n_steps * n_tokens / _seconds(loop, n_steps))
    for name in list(entrants)[1:]:
        ratios = [a / b for a, b in zip(speeds["trainer"], speeds[name], strict=True)]
        yield {
            "name": name,
            "size": size,
            "precision": precision,
            "ratio": statistics.median(ratios),
            "lowest": min(ratios),
            "highest": max(ratios),
            "ours": statistics.median(speeds["trainer"]),
            "theirs": statistics.median(speeds[name]),
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


def _entrants(size: str, precision: Precision, folder: Path) -> Iterator[tuple[str, Loop]]:
    """Our trainer first, then the plain loop of the same model, then the peers of the same width and depth."""
    prepared, trainer = silent_trainer(_overrides(size, precision), folder / "run")

    def train(n_steps: int) -> None:
        trainer.clock = time.perf_counter()
        for _ in range(n_steps):
            trainer.advance()

    yield "trainer", train
    again = _prepared(_overrides(size, precision))
    yield "plain loop, same model", plain_loop(*ours(again.model), again.windows, precision)
    shape = prepared.config["model"]
    sizes = [shape[key] for key in ("vocab_size", "dim", "n_layers", "n_heads", "context_length")]
    for name, make in PEERS.items():
        yield name, plain_loop(*make(*sizes), prepared.windows, precision)


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
