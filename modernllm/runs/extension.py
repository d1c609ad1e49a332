"""More steps for a finished run, where its schedule allows: the longer run is what it would have been anyway."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modernllm import checkpoint
from modernllm.config.build import build
from modernllm.config.check import check
from modernllm.runs.directory import RECORDS, RunDirectory
from modernllm.runs.identity import RUN_LEVEL, WATCHING
from modernllm.runs.record import Run, load_run

CHANGEABLE = {
    "resume",
    "allow_targets",
    "out",
    "study",
    "cache",
    "overwrite",
    "trainer.steps",
    *(f"trainer.{key}" for key in RUN_LEVEL),
}


@dataclass(frozen=True)
class Extension:
    """`config` is the finished run's with more steps, `step` the last one that both runs share."""

    origin: Run
    config: dict[str, Any]
    step: int

    def seed(self, directory: RunDirectory) -> None:
        """Give the longer run what the shorter one did, up to the step that they share."""
        source = checkpoint.path_of(self.origin.path / "checkpoints", self.step)
        directory.checkpoints.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, directory.checkpoints)
        best = source.with_name("best.safetensors")
        if best.exists() and _best_step(self.origin) <= self.step:
            shutil.copy2(best, directory.checkpoints)
        for name in RECORDS:
            if (self.origin.path / name).exists():
                shutil.copy2(self.origin.path / name, directory.path)
        told = RunDirectory(self.origin.path).nonfinite  # the steps that events of the record name, to be replayed
        if told.is_dir():
            shutil.copytree(told, directory.nonfinite, dirs_exist_ok=True)
        directory.truncate(self.step)
        old, new = self.origin.config["trainer"]["steps"], self.config["trainer"]["steps"]
        message = f"goes on from step {self.step} of {self.origin.run_id}: {new} steps instead of {old}"
        directory.event("extended", self.step, message)


def extend(folder: str, composed: Mapping[str, Any], overrides: Mapping[str, str]) -> Extension:
    """The run in `folder` with the number of steps that `composed` has. ValueError where that is another run."""
    try:
        origin = load_run(folder)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"resume={error}") from None
    if origin.word not in ("ok", "degraded", "stalled", "diverged", "undecided"):
        raise ValueError(f"resume={folder}: that run is {origin.word}; a run that finished can be extended")
    # a folder from elsewhere names what it likes: only this command line says what may be named beside our own
    check(origin.config | {"allow_targets": composed["allow_targets"]})
    changed = [key for key in overrides if key not in CHANGEABLE and key.partition(".")[0] not in WATCHING]
    if changed or "trainer.steps" not in overrides:
        given = f"{', '.join(changed)} cannot change, leave that out" if changed else "trainer.steps=... is missing"
        raise ValueError(f"resume={folder} gives the run there more steps: {given}")
    config = deepcopy(origin.config)
    # a run of before there was another list of windows, or another rank
    config["trainer"] = {"held_out": "evaluation", "ranks": 1} | config["trainer"]
    for key in overrides:
        section, _, name = key.partition(".")
        if section in WATCHING or not name:
            config[section] = composed[section]
        else:
            config[section][name] = composed[section][name]
    config["resume"] = str(folder)
    old, new = origin.config["trainer"]["steps"], config["trainer"]["steps"]
    if new <= old:
        raise ValueError(f"trainer.steps={new}: the run in {folder} has {old} steps already: name more")
    config["schedule"]["warmup"] = _warmup(origin)
    return Extension(origin, config, _shared_step(origin, config))


def _warmup(origin: Run) -> int | float:
    """In steps: a share of more steps would be a longer warm-up."""
    share = origin.config["schedule"]["warmup"]
    if isinstance(share, int):
        return share
    peak = build(origin.config["schedule"], "schedule", steps=origin.config["trainer"]["steps"]).peak
    return peak if share else 0


def _best_step(origin: Run) -> int | float:
    """Whose weights are kept as the best: those of the start are not."""
    rows = [row for row in origin.metrics if row["step"] and row.get("val_loss", math.inf) < math.inf]
    return min(rows, key=lambda row: row["val_loss"])["step"] if rows else math.inf


def _shared_step(origin: Run, config: dict[str, Any]) -> int:
    """The newest checkpoint that can be read of those before which the longer schedule differs nowhere."""
    short = build(origin.config["schedule"], "schedule", steps=origin.config["trainer"]["steps"])
    long = build(config["schedule"], "schedule", steps=config["trainer"]["steps"])
    there = checkpoint.complete(origin.path / "checkpoints")
    steps = [checkpoint.step_of(path) for path in there]
    shared = [path for path, n in zip(there, steps, strict=True) if all(short(s) == long(s) for s in range(1, n + 1))]
    for path in filter(checkpoint.is_readable, shared):
        return checkpoint.step_of(path)
    if shared or not there:
        raise ValueError(f"resume={origin.path}: there is no checkpoint from which it could go on, or none can be read")
    kind = Path(config["schedule"]["_target_"]).suffix[1:]
    raise ValueError(
        f"trainer.steps={config['trainer']['steps']}: the {kind} schedule of {origin.run_id} depends on the number of "
        f"steps, so its checkpoints ({', '.join(map(str, steps))}) are those of a shorter run; "
        "schedule=constant and schedule=inverse_sqrt can be extended, schedule=wsd from before its decay"
    )
