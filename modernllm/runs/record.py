"""A run read back from its folder."""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml
from torch import nn

from modernllm import checkpoint
from modernllm.runs.directory import RunDirectory, read_json
from modernllm.runs.identity import SECTIONS


@dataclass(frozen=True)
class Run:
    """`config` rebuilds it, `identity` says what it was made of (run.json), `metrics`, `telemetry` and `events` what
    happened, `status` how it stands.
    """

    path: Path
    config: dict[str, Any]
    identity: dict[str, Any]
    metrics: list[dict[str, Any]] = field(repr=False)
    events: list[dict[str, Any]] = field(repr=False)
    status: dict[str, Any]
    telemetry: list[dict[str, Any]] = field(repr=False, default_factory=list)

    @property
    def run_id(self) -> str:
        return self.path.name

    @property
    def losses(self) -> list[float]:
        """Training loss of every step."""
        return [row["loss"] for row in self.metrics if "loss" in row]

    @property
    def val_loss(self) -> float:
        """At the last step that the configuration names; NaN where the run did not get there."""
        last = self.config["trainer"]["steps"]
        return next((row["val_loss"] for row in self.metrics if row["step"] == last and "val_loss" in row), math.nan)

    @property
    def outcome(self) -> str | None:
        return self.status.get("outcome")

    @property
    def word(self) -> str:
        """The outcome, or why there is none."""
        if self.status.get("status") != "finished":
            return self.status.get("status", "unknown")
        return self.outcome or "undecided"

    def model(self, allow_targets: Sequence[str] = ()) -> nn.Module:
        """The model with the weights of the newest checkpoint, or the final ones where it was freed, in eval mode; one
        that cannot be read is warned of. FileNotFoundError without either.

        `allow_targets` are classes outside this package that the configuration may name: the folder's own list is not
        taken for granted.
        """
        from modernllm.config.build import build_model  # Hydra only where a model is asked for
        from modernllm.config.check import check

        check(self.config | {"allow_targets": list(allow_targets)})  # a folder from elsewhere names what it likes

        content, passed = checkpoint.load_newest(self.path / "checkpoints")
        for sentence in passed:
            warnings.warn(f"{self.path}: {sentence}", stacklevel=2)
        final = self.path / "checkpoints" / "final.safetensors"
        if content is None and not final.exists():
            raise FileNotFoundError(f"{self.path} has no checkpoint that can be read")
        model, _ = build_model(self.config["model"])
        checkpoint.restore(model, content["model"] if content else checkpoint.read_weights(final, model))
        return model.eval()


SAFE = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The same values, ten times as fast where libyaml is there: a page reads hundreds of configurations."""


def read_config(path: Path) -> dict[str, Any]:
    """ValueError, naming the file, if it is no configuration."""
    try:
        config = yaml.load(path.read_text(encoding="utf-8"), Loader=SAFE)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is damaged: {' '.join(str(error).split())}") from None
    if not isinstance(config, dict) or not all(isinstance(config.get(name), dict) for name in SECTIONS):
        raise ValueError(f"{path} is no configuration of a run: it needs {', '.join(SECTIONS)}")
    return config


IDENTITY = ("run_id", "choices", "overrides", "floors", "corpus", "tokenizer")
"""What is asked of every run.json that is read."""


def read_identity(path: Path) -> dict[str, Any]:
    """ValueError, naming the file, if it says of no run what it is made of."""
    identity = read_json(path)
    if missing := [key for key in IDENTITY if key not in identity]:
        raise ValueError(f"{path} is damaged: it has no {', no '.join(missing)}; overwrite=true runs it again")
    return identity


def load_run(path: str | Path) -> Run:
    """Read a run folder. FileNotFoundError, naming the folder, if it is none; ValueError, naming the file, if it is
    damaged.
    """
    run = load_result(path)
    return replace(run, telemetry=RunDirectory(run.path).telemetry_rows())


def load_result(path: str | Path) -> Run:
    """The same without its telemetry, which is nearly all that there is to read. Errors of `load_run`."""
    path = Path(path).expanduser()
    missing = [name for name in ("config.yaml", "run.json", "status.json") if not (path / name).exists()]
    if missing:
        study = "; it is a study: name one of the runs in it" if next(path.glob("*/config.yaml"), None) else ""
        raise FileNotFoundError(f"{path} is no run folder: it has no {', no '.join(missing)}{study}")
    metrics, events = RunDirectory(path).rows()
    if any("step" not in row for row in metrics):
        raise ValueError(f"{path / 'metrics.jsonl'} is damaged: a row has no step; overwrite=true runs it again")
    return Run(
        path=path,
        config=read_config(path / "config.yaml"),
        identity=read_identity(path / "run.json"),
        metrics=metrics,
        events=events,
        status=RunDirectory(path).status(),
    )
