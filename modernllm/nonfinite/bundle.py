"""A step that went wrong in one file: what it takes to do it again on another machine.

Plain tensors and plain containers, written whole or not at all, loaded with `weights_only=True`.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import torch
import yaml

from modernllm import checkpoint
from modernllm.batch import Batch
from modernllm.nonfinite.examine import Moment, Step
from modernllm.nonfinite.magnitude import Magnitude
from modernllm.nonfinite.place import Place
from modernllm.runs.directory import RunDirectory


@dataclass(frozen=True)
class Bundle:
    """`number` is the step, counted from 1, and `config` rebuilds its model; `place` is what was found there, `machine`
    where that was. In `optimizer` is its state, in `model` that of the model: of before the step, or of after it where
    it was the optimizer that went wrong.
    """

    number: int
    config: dict[str, Any]
    model: dict[str, Any]
    optimizer: dict[str, Any]
    batch: Batch
    rows: int
    began: Moment
    place: Place | None
    machine: dict[str, str]


def save(directory: RunDirectory, number: int, step: Step, optimizer: Any, place: Place | None) -> Path:
    """Write `nonfinite/step-<number>.pt` into a run's folder. OSError, naming it and the room there is."""
    config = directory.path / "config.yaml"
    content = {
        "config": yaml.safe_load(config.read_text(encoding="utf-8")) if config.exists() else {},
        "model": step.model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "batch": {field.name: getattr(step.batch, field.name) for field in fields(Batch)},
        "rows": step.rows,
        "began": asdict(step.began),
        "place": place and asdict(place),
        "machine": {"torch": str(torch.__version__), "device": step.device.type},
    }
    return checkpoint.save(directory.nonfinite, number, content)


def load(path: Path) -> Bundle:
    """Of a run's folder its newest, or the file itself. FileNotFoundError where there is none, ValueError where the
    file is something else.
    """
    if path.is_dir():
        found = checkpoint.complete(RunDirectory(path).nonfinite)
        if not found:
            raise FileNotFoundError(f"{path} has no step to replay: no nonfinite/step-*.pt is in it")
        path = found[0]
    try:
        content = checkpoint.load(path)
        return Bundle(
            number=content["step"],
            config=content["config"],
            model=content["model"],
            optimizer=content["optimizer"],
            batch=Batch(**content["batch"]),
            rows=content["rows"],
            began=Moment(**content["began"]),
            place=_place(content["place"]),
            machine=content["machine"],
        )
    except FileNotFoundError:
        raise
    except Exception as error:  # whatever a truncated or foreign archive raises
        said = str(error).partition("\n")[0]
        raise ValueError(f"{path} is no step to replay: {type(error).__name__}: {said}") from None


def _place(content: dict[str, Any] | None) -> Place | None:
    if content is None:
        return None
    inputs: dict[str, Any] = {"inputs": [Magnitude(**tensor) for tensor in content["inputs"]]}
    return Place(**content | inputs)
