"""What a command would do, known before anything is done: its runs by name, what there is of them, what they cost."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modernllm.config.errors import ConfigError
from modernllm.report.varying import varying
from modernllm.runs.plans import Intended, write_intent

if TYPE_CHECKING:
    from torch import nn

    from modernllm.preparation import Asked, Text


SOME = 259
"""Tokens in the vocabulary of a model that is only sketched: its text may not be there yet to say how many."""


@dataclass(frozen=True)
class Planned:
    """One run of a command: what was asked for, what that resolves to, and where its record is or will be."""

    config: dict[str, Any] = field(repr=False)
    asked: Asked = field(repr=False)
    run_id: str
    path: Path
    text: dict[str, str]
    """Hashes of corpus, tokenizer and validation windows."""
    dead: dict[str, str]
    """Group -> the choice that nothing reads."""

    @property
    def tokens(self) -> int:
        trainer = self.config["trainer"]
        return trainer["steps"] * trainer["batch_size"] * self.config["model"]["context_length"]

    @property
    def words(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.asked.overrides.items()) or "default"

    @property
    def intended(self) -> Intended:
        """As it is written down before it is started."""
        asked = self.asked
        identity = {
            "run_id": self.run_id,
            "choices": dict(asked.choices),
            "overrides": dict(asked.overrides),
            "dead_switches": dict(self.dead),
            "origin": dict(asked.origin),
            **self.text,
        }
        return Intended(self.run_id, self.config, identity)


class Planner:
    """`(config, asked) -> Planned`: what many runs of one command have in common is read and built once."""

    def __init__(self) -> None:
        self._texts: dict[str, Text] = {}
        self._models: dict[str, tuple[nn.Module, list[str]]] = {}

    def __call__(self, cfg: Any, asked: Asked) -> Planned:
        """ConfigError or ValueError where the run could not be built."""
        from modernllm.config.build import resolve
        from modernllm.data.windows import Windows
        from modernllm.experiment import intend
        from modernllm.preparation import name_run, settle

        config, meant, extension = intend(cfg, asked)
        device = settle(config)
        dead = self.build(config)  # first: to read a text may take long
        text = self.text(config)
        Windows(text.data.train, config["model"]["context_length"], config["trainer"]["batch_size"], config["seed"])
        run_id, _ = name_run(config, meant, text, device, dead)
        path = Path(config["out"]) / config["study"] / run_id
        named = {group: meant.choices[group] for group in dead}
        given = resolve(cfg) if extension else config  # what is run must have the seed that was drawn here
        return Planned(given, asked, run_id, path, text.hashes, named)

    def text(self, config: dict[str, Any]) -> Text:
        """What a run reads. ValueError where there is too little of it."""
        from modernllm.preparation import read_text

        model, trainer = config["model"], config["trainer"]
        key = _key([config["data"], config["tokenizer"], config["cache"], model["vocab_size"],
                    model["context_length"], trainer["validation_tokens"], trainer["held_out"]])  # fmt: skip
        if key not in self._texts:
            self._texts[key] = read_text(config)
        text = self._texts[key]
        model["vocab_size"] = model["vocab_size"] or text.data.tokenizer.vocab_size
        return text

    def build(self, config: dict[str, Any]) -> list[str]:
        """Every part of the run that needs no text, the model without memory; its dead switches."""
        from modernllm.config.build import build

        key = _key(config["model"])
        if key not in self._models:
            self._models[key] = sketch(config["model"] | {"vocab_size": config["model"]["vocab_size"] or SOME})
        model, dead = self._models[key]
        build(config["init"], "init")
        build(config["optimizer"], "optimizer", model=model)
        build(config["schedule"], "schedule", steps=config["trainer"]["steps"])
        build(config["telemetry"], "telemetry", model=model, steps=config["trainer"]["steps"])
        build(config["logger"], "logger")
        return dead


def sketch(node: dict[str, Any]) -> tuple[nn.Module, list[str]]:
    """The model on the meta device, or in memory where its code looks at numbers; and its dead switches."""
    import torch

    from modernllm.config.build import build_model

    try:
        with torch.device("meta"):
            return build_model(node)
    except (NotImplementedError, RuntimeError):
        return build_model(node)


def _key(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


@dataclass(frozen=True)
class Plan:
    """`runs` are what was asked for, in its order; the same run may stand there more than once."""

    runs: Sequence[Planned]
    retry: bool
    overwrite: bool

    @cached_property
    def unique(self) -> list[Planned]:
        first: dict[Path, Planned] = {}
        for run in self.runs:
            first.setdefault(run.path, run)
        return list(first.values())

    @cached_property
    def status(self) -> dict[Path, dict[str, Any]]:
        """status.json of each run, {} of one that was never started."""
        from modernllm.runs.directory import RunDirectory

        return {run.path: RunDirectory(run.path).status() for run in self.unique}

    def of(self, *words: str) -> list[Planned]:
        return [run for run in self.unique if self.status[run.path].get("status", "new") in words]

    @cached_property
    def done(self) -> list[Planned]:
        """What is not run: finished before, or failed before and not to be tried again."""
        if self.overwrite:
            return []
        return self.of("finished") if self.retry else self.of("finished", "failed")

    @cached_property
    def todo(self) -> list[Planned]:
        done = {run.path for run in self.done}
        return [run for run in self.unique if run.path not in done]

    def keep(self, command: Sequence[str]) -> None:
        """Write down in each study what is meant to be there, but for runs that go on with another one."""
        studies: dict[Path, list[Intended]] = {}
        for run in self.unique:
            if not run.config.get("resume"):
                studies.setdefault(run.path.parent, []).append(run.intended)
        for study, runs in studies.items():
            write_intent(study, command, runs)


def make_plan(jobs: Sequence[tuple[Any, Asked]], retry: bool, overwrite: bool) -> Plan:
    """ConfigError names every job that cannot be built, by what it does not share with the others."""
    planner, runs = Planner(), []
    problems: dict[str, list[str]] = {}
    names = varying([asked.overrides for _, asked in jobs])
    for place, (cfg, asked) in enumerate(jobs):
        try:
            runs.append(planner(cfg, asked))
        except (Exception, SystemExit) as error:  # a component may raise what it likes
            said = str(error) if isinstance(error, ValueError | OSError) else f"{type(error).__name__}: {error}"
            words = " ".join(f"{key}={column[place]}" for key, column in names.items())
            problems.setdefault(said, []).append(words)
    if problems:
        raise ConfigError.of(list(_listed(problems, len(jobs))))
    return Plan(runs, retry, overwrite)


def _listed(problems: dict[str, list[str]], n_jobs: int) -> Iterator[str]:
    """A line for every job; one for all where all have the same problem."""
    for said, jobs in problems.items():
        if len(jobs) == n_jobs:
            yield said
        else:
            yield from (f"{words}: {said}" for words in dict.fromkeys(jobs))
