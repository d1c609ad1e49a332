"""A search that W&B steers: the command that its agent builds from docs/sweep.yaml is one of ours."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

from modernllm.config.check import check
from modernllm.config.command import Composer, read_command
from modernllm.experiment import arm
from modernllm.logger.wandb_logger import agents_id
from modernllm.sweep.request import asked, without_settings

ROOT = Path(__file__).parents[2]
SWEEP = yaml.safe_load((ROOT / "docs" / "sweep.yaml").read_text())


def agents_command(values: dict[str, Any]) -> list[str]:
    """As wandb's own agent replaces its macros."""
    arguments = create_sweep_command_args({"args": {key: {"value": value} for key, value in values.items()}})
    macros = {"${env}": ["/usr/bin/env"], "${interpreter}": [sys.executable], "${program}": [SWEEP["program"]]}
    macros |= {f"${{{name}}}": words for name, words in arguments.items()}
    return [word for part in create_sweep_command(SWEEP["command"]) for word in macros.get(part, [part])]


@pytest.mark.parametrize("side", [0, -1])
def test_the_agents_command_is_one_of_ours(side: int) -> None:
    listed = {key: each["values"][side] for key, each in SWEEP["parameters"].items() if "values" in each}
    rate = SWEEP["parameters"]["optimizer.lr"]
    assert rate["distribution"] == "log_uniform_values"
    values = {**listed, "optimizer.lr": (rate["min"], rate["max"])[side]}
    command = agents_command(values)
    assert command[:5] == ["/usr/bin/env", sys.executable, "train.py", "size=nano", "study=wandb"]
    assert (ROOT / command[2]).exists()
    assert f"optimizer.lr={values['optimizer.lr']}" in command
    read = read_command(command[3:], many=False)
    assert not read.many
    cfg, chosen = Composer()(read.jobs[0])
    check(cfg)
    assert cfg.optimizer.lr == values["optimizer.lr"]
    assert (cfg.seed, chosen["norm"], chosen["placement"]) == (values["seed"], values["norm"], values["placement"])
    assert cfg.study == "wandb"
    said = asked(chosen, read.jobs[0])
    assert set(without_settings(cfg)) >= {"model", "study"}
    assert "seed" not in arm({"overrides": said.overrides})
    assert f"norm={values['norm']}" in arm({"overrides": said.overrides})


def test_what_is_steered_by_is_recorded() -> None:
    assert SWEEP["metric"] == {"name": "val_loss", "goal": "minimize"}


def test_a_run_takes_the_agents_id_and_only_an_agents() -> None:
    """F-78: an id in the environment of a whole sweep of ours would make one run of all."""
    assert agents_id({"WANDB_SWEEP_ID": "s", "WANDB_RUN_ID": "abc"}) == "abc"
    assert agents_id({"WANDB_RUN_ID": "abc"}) == ""
    assert agents_id({}) == ""
