"""Runs of a second: a trainer of chosen parts, and whole runs and command lines in this process."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import rich.console
import torch
from models import VOCAB, config, tiny, windows
from torch import nn

from modernllm import cli, experiment
from modernllm.batch import Batch
from modernllm.config.build import build
from modernllm.config.compose import compose_with_choices
from modernllm.logger import LocalLogger
from modernllm.preparation import Asked, Prepared, prepare_run
from modernllm.report.console import Console
from modernllm.runs.directory import RunDirectory, read_rows
from modernllm.runs.record import Run
from modernllm.runs.recorder import Recorder
from modernllm.sweep import request
from modernllm.trainer import Ending, Trainer

TRAIN = Path(__file__).parents[1] / "train.py"

SMALL = (
    "size=nano", "model.dim=32", "model.n_layers=2", "model.context_length=32", "data=synthetic",
    "data.n_documents=40", "logger=local", "trainer.batch_size=4", "trainer.validation_tokens=256",
    "trainer.threads=1",
)  # fmt: skip
"""Overrides of a run whose step takes milliseconds."""


# --- a trainer of chosen parts


def data(step: int) -> Batch:
    """The batch of a step, a pure function of it."""
    return windows(rows=4, seed=1000 + step)


def silent(steps: int = 1) -> Console:
    return Console(steps, rich.console.Console(file=io.StringIO()))


def optimizer(model: nn.Module, choice: str = "adamw") -> Any:
    """As it is shipped, at a rate that suits a tiny model."""
    return build(config(f"optimizer={choice}")["optimizer"] | {"lr": 3e-3}, "optimizer", model=model)


def trainer(
    folder: Path,
    model: nn.Module | None = None,
    train: Callable[[int], Batch] = data,
    every: int | None = None,
    **changed: Any,
) -> Trainer:
    """20 steps of a tiny model in `folder`, with `changed` arguments; telemetry every so many steps."""
    folder.mkdir(exist_ok=True)
    model = model or tiny("model.dropout=0.1")
    shipped = config()
    settings = {key: value for key, value in shipped["trainer"].items() if not key.startswith("_")}
    settings |= {"steps": 20, "batch_size": 4, "device": "cpu", "threads": 1, "eval_every": 10}
    steps = changed.get("steps", settings["steps"])
    parts = {
        "validation": [windows(rows=8, seed=7)],
        "token_bytes": torch.ones(VOCAB, dtype=torch.long),
        "optimizer": optimizer(model),
        "schedule": build(shipped["schedule"], "schedule", steps=steps),
        "telemetry": build(shipped["telemetry"] | {"every": every}, "telemetry", model=model, steps=steps),
        "recorder": Recorder(RunDirectory(folder), LocalLogger(), silent(steps)),
        "seed": 0,
    }
    return Trainer(model=model, train=train, **(settings | parts | changed))


def fit(made: Trainer) -> Ending:
    """Train, and close the files whatever happens."""
    try:
        return made.fit()
    finally:
        made.recorder.directory.release()


def reads_late(made: Trainer, steps: int = 16) -> None:
    """What so many steps left is read back together, however long they take: as on a GPU."""
    made.read_every, made.patience = steps, math.inf


def metrics(folder: Path, key: str = "grad_norm") -> list[dict[str, Any]]:
    """The rows of a run that have `key`, without what a clock measured."""
    rows = [row for row in read_rows(folder / "metrics.jsonl") if key in row]
    return [{name: value for name, value in row.items() if name != "tokens_per_s"} for row in rows]


def telemetry(folder: Path, key: str = "grad_norm") -> list[dict[str, Any]]:
    """The rows of telemetry that have `key`."""
    return [row for row in read_rows(folder / "telemetry.jsonl") if key in row]


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_rows(folder / "events.jsonl") if event["kind"] == kind]


def copied(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Bitwise."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# --- whole runs


def asked(chosen: Mapping[str, str | None], overrides: Sequence[str]) -> Asked:
    """As the command line asks for it."""
    return request.asked(chosen, overrides)


def small(*overrides: str) -> tuple[str, ...]:
    """SMALL and these; without its data where they choose their own."""
    mine = any(override.startswith("data=") for override in overrides)
    return (*(word for word in SMALL if not (mine and word.startswith("data"))), *overrides)


def run(*overrides: str) -> tuple[int, Run]:
    """`experiment.run` of SMALL and these."""
    return run_exactly(*small(*overrides))


def run_exactly(*words: str) -> tuple[int, Run]:
    cfg, chosen = compose_with_choices(words)
    return experiment.run(request.without_settings(cfg), asked(chosen, words))


def prepare(*overrides: str) -> Prepared:
    """What `run` would train, with nothing written."""
    words = small(*overrides)
    cfg, chosen = compose_with_choices(words)
    return prepare_run(request.without_settings(cfg), asked(chosen, words))


def command(monkeypatch: pytest.MonkeyPatch, *words: str) -> int:
    """`python train.py` with these words in this process: its exit code."""
    monkeypatch.setattr(sys, "argv", [str(TRAIN), *words])
    monkeypatch.chdir(Path.cwd())  # the job changes it
    try:
        return cli.main()
    except SystemExit as end:
        return int(end.code or 0)
