"""Observers: they read what a step leaves behind and change nothing. Made with `telemetry(model, steps)`.

The trainer calls `before` and `after` around a step that is `due`, `probe` between steps where `probe_due`, and records
the rows that it gets; nothing waits for the device but the probe.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.batch import Batch
from modernllm.loss_scale import DynamicScale, NoScale
from modernllm.optimizer import Optimizer
from modernllm.precision import Precision
from modernllm.quantities import Count, Natural
from modernllm.telemetry.alarms import Alarm, Watch
from modernllm.telemetry.memory import peak_megabytes
from modernllm.telemetry.noise_scale import NoiseScale
from modernllm.telemetry.observer import rounded, told
from modernllm.telemetry.probe import Probe, probe_batch
from modernllm.telemetry.sharpness import sharpness
from modernllm.telemetry.weights import Moved, Weights

Row = dict[str, Any]
Scale = NoScale | DynamicScale


class NoTelemetry:
    """Nothing is looked at beside the loss and the gradient norm of every step."""

    def __init__(self, model: nn.Module, steps: Count): ...

    def start(self, optimizer: Optimizer, validation: list[Batch], precision: Precision) -> None: ...

    def remember(self, rows: Iterable[Row]) -> None: ...

    def due(self, step: int) -> bool:
        return False

    def probe_due(self, step: int) -> bool:
        return False

    def give_up_probing(self) -> None: ...

    def before(self, step: int) -> None: ...

    def accumulated(self, step: int, micro: Batch, n_targets: int, scale: Scale) -> None: ...

    def after(self, step: int) -> None: ...

    def row(self, step: int, gradients: Float[Tensor, " n"]) -> Row:
        return {}

    def probe(self) -> Row:
        return {}

    def alarms(self, row: Row) -> list[Alarm]:
        return []


class Elsewhere(NoTelemetry):
    """On every rank but the first, which looks for all; they pause where it does."""

    def __init__(self, there: NoTelemetry):
        self.there = there

    def probe_due(self, step: int) -> bool:
        return self.there.probe_due(step)


class Telemetry(NoTelemetry):
    """Gradients, weights and updates of each layer and tensor every `every` steps (a hundredth of the run unless set)
    and at the first and last; a probe of `probe_tokens` validation tokens every `probe_every` (a twentieth, but no more
    often than every 50 unless set), at initialisation and after the last.

    `sharpness` is the number of power iterations at each probe, 0 for none; `noise_scale` needs micro-batches.
    """

    def __init__(
        self,
        model: nn.Module,
        steps: Count,
        every: Count | None,
        probe_every: Count | None,
        probe_tokens: Count,
        sharpness: Natural,
        noise_scale: bool,
    ):
        self.model, self.steps = model, steps
        self.every = every or max(1, steps // 100)
        self.probe_every = probe_every or max(50, steps // 20)
        self.probe_tokens, self.iterations = probe_tokens, sharpness
        self.weights = Weights(model)
        self.noise = NoiseScale(self.weights.parameters) if noise_scale else None
        self.watch = Watch()
        self.probing = True
        self.moved: dict[int, Moved] = {}

    def start(self, optimizer: Optimizer, validation: list[Batch], precision: Precision) -> None:
        """What the program knows and the configuration does not."""
        self.optimizer, self.precision = optimizer, precision
        self.look = Probe(self.model, precision)
        self.batch = probe_batch(validation, self.probe_tokens)

    def remember(self, rows: Iterable[Row]) -> None:
        """Rows of an interrupted run: what was warned of is not said again."""
        self.moved.clear()
        self.watch = Watch()
        for row in rows:
            self.watch.consider(row)

    def due(self, step: int) -> bool:
        return step in (1, self.steps) or step % self.every == 0

    def probe_due(self, step: int) -> bool:
        return step in (0, self.steps) or step % self.probe_every == 0

    def give_up_probing(self) -> None:
        self.probing = False

    def before(self, step: int) -> None:
        """Before the optimizer of a step that counts from 1."""
        if self.due(step):
            self.weights.before()

    def accumulated(self, step: int, micro: Batch, n_targets: int, scale: Scale) -> None:
        """After the backward of a micro-batch, of a step of `n_targets`; gradients are `scale` times too large."""
        if self.noise and self.due(step):
            self.noise.accumulated(step, micro.n_targets, n_targets, scale.scale(torch.ones(())))

    def after(self, step: int) -> None:
        if self.due(step):
            self.moved[step] = self.weights.after(self.optimizer)

    def row(self, step: int, gradients: Float[Tensor, " n"]) -> Row:
        """Of a step that was due, from the norms of its gradients; waits for the device, which has done the step."""
        layers, tensors = self.weights.series(gradients, self.moved.pop(step))
        noise = self.noise.series(step, gradients) if self.noise else {}
        memory = told({"memory": {"peak_mb": peak_megabytes(self.batch.tokens.device)}})
        return rounded({**layers, **noise, **memory, "tensors": tensors})

    def probe(self) -> Row:
        """What the model is like now; nothing if it cannot bear the look."""
        if not self.probing:
            return {}
        row: Row = self.look(self.batch)
        if self.iterations:
            row |= told({"sharpness": {"hessian": sharpness(self.model, self.batch, self.iterations)}})
        return rounded(row)

    def alarms(self, row: Row) -> list[Alarm]:
        """What is alarming about a recorded row, each kind once."""
        return self.watch.consider(row)
