"""An arm as it would be trained: what is certified is made by the code that makes runs."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.batch import Batch
from modernllm.experiment import make_trainer
from modernllm.init import named_generator
from modernllm.linear import Role, Start, parameter_roles, parameter_starts
from modernllm.logger import LocalLogger
from modernllm.precision import reproducible
from modernllm.preparation import Asked, make_model, prepare_run
from modernllm.report.console import Console
from modernllm.runs.directory import RunDirectory
from modernllm.runs.identity import digest, scientific
from modernllm.runs.recorder import Recorder

STEPS = 3
"""Training steps that are rehearsed: what starts at zero behind another zero learns in the third."""
ROWS, LONGEST = 2, 256
"""Of the fixed batch that outputs at the start are compared on."""


@dataclass(frozen=True)
class Initial:
    """What a parameter starts as, without the numbers."""

    shape: tuple[int, ...]
    role: Role
    own: Start | None
    """The start that its module asks for, whatever the initialisation."""
    hash: str
    drawn: bool
    """Whether its entries differ; constants say nothing about a seed."""


@dataclass(frozen=True)
class Rehearsal:
    """What the first training steps left behind."""

    losses: tuple[float, ...]
    norms: dict[str, tuple[float, ...]]
    """Of the gradient of each parameter, step by step; 0 where there was none."""
    weights: str
    unvisited: frozenset[str]
    """Modules that were only ever called with nothing: experts that no token chose."""

    @property
    def gradient_norms(self) -> list[float]:
        return [float(torch.tensor(each).norm()) for each in zip(*self.norms.values(), strict=True)]


class Arm:
    """`config` is settled and composed. ConfigError, or whatever a foreign model raises, where it cannot be built."""

    def __init__(self, name: str, config: dict[str, Any], asked: Asked):
        self.name, self.asked, self.config = name, asked, unwatched(config)
        self.prepared = prepare_run(self.config, asked)
        self.device = next(self.prepared.model.parameters()).device
        self.starts = initial_values(self.prepared.model)
        self.logits = outputs(self.prepared.model, self.fixed)

    @property
    def dead(self) -> list[str]:
        """Groups that nothing in the model reads."""
        return self.prepared.dead

    @property
    def fixed(self) -> Batch:
        """The same tokens for every arm that has the same validation windows."""
        return Batch(self.prepared.validation.tokens[:ROWS, :LONGEST].to(self.device))

    @property
    def hashes(self) -> dict[str, str]:
        return {key: self.prepared.identity[key] for key in ("corpus", "tokenizer", "validation")}

    @property
    def science(self) -> dict[str, Any]:
        return scientific(self.config, self.hashes, self.device.type, self.dead)

    @property
    def hash(self) -> str:
        return digest(self.science)

    def model(self) -> nn.Module:
        """A fresh one, with the initial values."""
        return make_model(self.config, self.device)[0]

    @cached_property
    def curve(self) -> tuple[float, ...]:
        """Share of the peak learning rate, for every step."""
        schedule = self.prepared.parts["schedule"]
        return tuple(schedule(step) for step in range(1, self.config["trainer"]["steps"] + 1))

    def batches(self, steps: int) -> tuple[str, ...]:
        """Hashes of the tokens and targets of the first steps."""
        return tuple(_hash_of_batch(self.prepared.windows(step)) for step in range(steps))

    @cached_property
    def rehearsal(self) -> Rehearsal:
        """The first steps of the training itself; the prepared model has moved after it."""
        with tempfile.TemporaryDirectory() as folder:
            recorder = Recorder(RunDirectory(Path(folder)), LocalLogger(), Console(STEPS))
            trainer = make_trainer(self.prepared, recorder)
        model, measured = trainer.model.train(), []
        torch.manual_seed(named_generator(self.config["seed"], "dropout").initial_seed())
        with reproducible(trainer.deterministic), visits(model) as (visited, passed_over):
            for _ in range(STEPS):
                measured.append(trainer.train_step())
                trainer.step += 1
        norms = torch.stack([each.norms for each in measured]).T.tolist()
        return Rehearsal(
            losses=tuple(float(each.loss) for each in measured),
            norms={name: tuple(each) for name, each in zip(trainer.update.names, norms, strict=True)},
            weights=_hash(*model.parameters()),
            unvisited=frozenset(passed_over - visited),
        )


def unwatched(config: dict[str, Any]) -> dict[str, Any]:
    """The same run without tracker, telemetry and compiler, none of which changes what is learned."""
    config = deepcopy(config)
    config["telemetry"] = {"_target_": "modernllm.telemetry.NoTelemetry", "_partial_": True}
    config["logger"] = {"_target_": "modernllm.logger.LocalLogger"}
    config["trainer"]["compile"] = False
    return config


def initial_values(model: nn.Module) -> dict[str, Initial]:
    """Of every parameter, by its first name."""
    own = parameter_starts(model)
    return {
        name: Initial(tuple(p.shape), role, own.get(p), _hash(p), bool(p.numel() and (p != p.flatten()[0]).any()))
        for name, p, role in parameter_roles(model)
    }


def outputs(model: nn.Module, batch: Batch) -> Float[Tensor, "b t v"]:
    """Logits in eval mode, in float32."""
    training = model.training
    with torch.no_grad():
        logits = model.eval()(batch).float().cpu()
    model.train(training)
    return logits


@contextmanager
def visits(model: nn.Module) -> Iterator[tuple[set[str], set[str]]]:
    """Names of modules that were called with something, and with nothing, while it lasts."""
    visited: set[str] = set()
    passed_over: set[str] = set()

    def note(name: str):
        def hook(module: nn.Module, given: tuple[Any, ...]) -> None:
            empty = bool(given) and isinstance(given[0], Tensor) and given[0].numel() == 0
            (passed_over if empty else visited).add(name)

        return hook

    hooks = [module.register_forward_pre_hook(note(name)) for name, module in model.named_modules()]
    try:
        yield visited, passed_over
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def undisturbed() -> Iterator[None]:
    """The caller's random state and threads as they were."""
    threads = torch.get_num_threads()
    devices = list(range(torch.cuda.device_count()))
    try:
        with torch.random.fork_rng(devices):
            yield
    finally:
        torch.set_num_threads(threads)


def _hash(*tensors: Tensor) -> str:
    found = hashlib.sha256()
    for tensor in tensors:
        found.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _hash_of_batch(batch: Batch) -> str:
    assert batch.targets is not None
    return _hash(batch.tokens, batch.targets)
