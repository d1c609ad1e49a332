"""What arrives in W&B of real runs, as its own reader tells, and that a workspace asks for nothing else."""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from offline_runs import nobody_at_home, offline_files, read
from running import run
from torch import Tensor, nn

from modernllm.logger import mirrored
from modernllm.report.workspace.subject import subject
from modernllm.runs.record import Run

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # wandb-workspaces is written for pydantic 1
    from modernllm.report.workspace import sections as tables
    from modernllm.report.workspace.workspace import as_json, workspace

WORDS = (
    "logger=wandb", "logger.mode=offline", "trainer.steps=6", "trainer.eval_every=3", "telemetry.every=2",
    "telemetry.probe_every=3",
)  # fmt: skip
FULL = ("telemetry=full", "trainer.micro_batch=2")
NAME = re.compile(r"\w+(/[\w.]+)?")
"""A section and what is in it; never a section within a section."""


class Stack(nn.Module):
    """Layers of somebody else's."""

    def __init__(self, vocab_size: int, context_length: int, dim: int, n_layers: int, n_heads: int):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, dim)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(dim, dim), nn.ReLU()) for _ in range(n_layers))
        self.head = nn.Linear(dim, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


TARGET = f"{__name__}.Stack"
EXTERNAL = ("family=external", f"model.module._target_={TARGET}", f"allow_targets=[{TARGET}]")
KINDS = {
    "experts": ("moe=topk", *FULL),
    "gates": ("activation=geglu", "attention=gated"),
    "rectifiers": ("activation=relu", *FULL),
    "other hands": (*EXTERNAL, *FULL),
    "not finite": ("optimizer.lr=1e39", "schedule=constant", "schedule.warmup=0", *FULL),
}
TELLING = {
    "experts": "router_max_load/layer.01",
    "gates": "gate_closed/layer.00.feedforward",
    "rectifiers": "units_dead/layer.01",
    "other hands": "grad_norm/layer.01",
    "not finite": "stream_rms/layer.01",
}
"""What the telemetry of a kind has."""
QUICK = "experts"
kinds = pytest.mark.parametrize(
    "kind", [QUICK, *(pytest.param(k, marks=pytest.mark.slow) for k in KINDS if k != QUICK)]
)


@dataclass(frozen=True)
class Made:
    done: Run
    seen: dict[str, Any]

    @property
    def names(self) -> set[str]:
        return {name for row in self.seen["history"] for name in row if not name.startswith("_")}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Made]]:
    """A run of each kind, made when it is first asked for."""
    with pytest.MonkeyPatch.context() as patch:
        nobody_at_home(tmp_path_factory.mktemp("home"), patch)

        @cache
        def of(kind: str) -> Made:
            _, done = run(*WORDS, *KINDS[kind], f"out={tmp_path_factory.mktemp('runs')}")
            (file,) = offline_files(done.path)
            return Made(done, read(file))

        yield of


@kinds
def test_a_run_in_wandb(kind: str, made: Callable[[str], Made]) -> None:
    of = made(kind)
    assert TELLING[kind] in of.names
    everything_recorded_arrives_and_groups_into_panels(of)
    tokens_are_the_axis_of_everything(of)
    the_summary_is_the_runs_own(of, ENDS if kind == "not finite" else set())
    the_configuration_is_there_to_group_by(of)
    a_workspace_asks_for_nothing_that_is_not_there(of)


def everything_recorded_arrives_and_groups_into_panels(of: Made) -> None:
    recorded = [*of.done.metrics, *map(mirrored.telemetry, of.done.telemetry)]
    assert of.names == set(mirrored.names(recorded))
    assert [name for name in of.names if not NAME.fullmatch(name)] == []
    steps = [row["step"] for row in of.seen["history"]]
    assert steps == sorted({row["step"] for row in recorded})


def tokens_are_the_axis_of_everything(of: Made) -> None:
    defined = {metric.get("name") or metric["glob_name"]: metric["step_metric"] for metric in of.seen["metric"]}
    assert set(defined.values()) == {"tokens"}
    for name in of.names - {"step", "tokens"}:
        assert [pattern for pattern in defined if fnmatchcase(name, pattern)], name
    per_step = of.done.config["trainer"]["batch_size"] * of.done.config["model"].get("context_length", 32)
    assert all(row["tokens"] == row["step"] * per_step for row in of.seen["history"])


ENDS = {"loss", "grad_norm", "val_loss", "val_bits_per_byte", "progress"}
"""What may not be finite in a summary: what the run itself ended with."""


def the_summary_is_the_runs_own(of: Made, ends: set[str]) -> None:
    summary = of.seen["summary"]
    broken = {name for name, value in summary.items() if value in ("NaN", "Infinity", "-Infinity")}
    assert broken <= ends
    assert ("val_loss" in broken) == math.isnan(of.done.val_loss)
    assert math.isfinite(summary["best/val_loss"])
    assert summary["outcome"] == of.done.status["outcome"]
    rows = map(mirrored.flatten, map(mirrored.telemetry, of.done.telemetry))
    last = {name: value for row in rows for name, value in row.items() if "/" in name}
    assert all(math.isfinite(value) for value in last.values())
    assert {name: summary[name] for name in last} == last


def the_configuration_is_there_to_group_by(of: Made) -> None:
    seen = of.seen["run"]["config"]["update"]
    assert seen["optimizer"]["lr"] == of.done.config["optimizer"]["lr"]
    assert seen["choices"] == of.done.identity["choices"]
    assert seen["parameters"]["total"] == of.done.identity["parameters"]["total"]
    assert of.seen["run"]["run_group"] == "default"


def a_workspace_asks_for_nothing_that_is_not_there(of: Made) -> None:
    view = json.loads(as_json(workspace(subject(str(of.done.path.parent), root=Path()))))["spec"]["section"]
    panels = [panel for section in view["panelBankConfig"]["sections"] for panel in section["panels"]]
    drawn = [name for panel in panels for name in panel["config"].get("metrics", [])]
    assert len(drawn) > 20
    for panel in panels:
        config = panel["config"]
        there = of.seen["summary"] if panel["viewType"] == "Bar Chart" else of.names
        assert {*config.get("metrics", [])} <= {*there}, config
        assert panel["viewType"] != "Run History Line Plot" or config["xAxis"] == "tokens"
        for accessor in filter(None, (config.get("xAxis"), config.get("yAxis"))):
            assert ":" not in accessor or is_there(accessor, of.seen), accessor
    (runs,) = view["runSets"]
    for column in runs["runFeed"]["columnOrder"]:
        assert is_there(column, of.seen), column
    (group,) = runs["filters"]["filters"]
    assert group["value"] == of.seen["run"]["run_group"]


def is_there(accessor: str, seen: dict[str, Any]) -> bool:
    """`config:model.value.dim`, `summary:val_loss`, or an attribute of the run."""
    section, _, name = accessor.partition(":")
    if section == "run":
        return name == "displayName"
    if section == "summary":
        return name in seen["summary"]
    value: Any = seen["run"]["config"]["update"]
    first, value_word, *rest = name.split(".")
    for part in (first, *rest):
        value = value[part]
    return value_word == "value" and value is not None


@pytest.mark.slow
def test_every_panel_that_there_can_be_is_of_something_that_is_logged(made: Callable[[str], Made]) -> None:
    """A misspelt name would never be missed: panels of what is not logged are left out."""
    logged = {name for kind in KINDS for name in made(kind).names}
    summed = {name for kind in KINDS for name in made(kind).seen["summary"]}
    assert {*tables.LOSSES, *tables.STABLE, *tables.COSTS} <= logged
    assert {*tables.ENDINGS} <= summed
    assert {*tables.DEPTH} <= {name.partition("/")[0] for name in logged if "/layer." in name}
