"""A training step done again, operator by operator, up to the first one whose output is not finite."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.batch import Batch
from modernllm.evaluation import kept_buffers
from modernllm.linear import parameter_roles
from modernllm.nonfinite.magnitude import Magnitude, is_broken, measurable
from modernllm.nonfinite.place import Place, behind, kind_of, mask, way
from modernllm.nonfinite.trace import Operation, Trace
from modernllm.objective import Objective
from modernllm.precision import Precision, autocast
from modernllm.update import Measured


@dataclass(frozen=True)
class Moment:
    """What a step begins with beside the weights: the states of the generators by device, and the loss scale's; where a
    run has several ranks, `others` are the generators of all but the first.
    """

    generators: dict[str, Tensor]
    scale: dict[str, Any]
    others: list[dict[str, Tensor]] = field(default_factory=list)

    @classmethod
    def now(cls, device: torch.device, scale: dict[str, Any]) -> Moment:
        """The generator of CUDA and of MPS is known on the host, so that this does not wait."""
        states = {"cpu": torch.get_rng_state()}
        if device.type != "cpu":
            states[device.type] = torch.get_device_module(device).get_rng_state(device)
        return cls(states, scale)

    def restore(self, device: torch.device) -> None:
        """Put the generators of this machine back; one that it has not is passed over."""
        torch.set_rng_state(self.generators["cpu"])
        if device.type != "cpu" and device.type in self.generators:
            torch.get_device_module(device).set_rng_state(self.generators[device.type], device)


@dataclass(frozen=True)
class Step:
    """All that forward and backward of one training step depend on, beside the weights in `objective`."""

    objective: Objective
    batch: Batch
    rows: int
    """Of a micro-batch."""
    precision: Precision
    began: Moment

    def micro_batches(self) -> Iterator[tuple[int, Batch]]:
        """Each with the rank that has it; that rank's generators stand where it began."""
        ranks = [self.began.generators, *self.began.others]
        for rank, generators in enumerate(ranks):
            Moment(generators, {}).restore(self.device)
            for micro in self.batch.share(rank, len(ranks)).split(self.rows):
                yield rank, micro

    @property
    def model(self) -> nn.Module:
        return self.objective.model

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device


@dataclass(frozen=True)
class Finding:
    """`place` is None where the step is finite when it is done again. `way` leads from there to the loss or the first
    gradient; `left` is what forward had left for a backward pass that went wrong. Loss and norm as far as it got.
    """

    place: Place | None
    way: list[Operation] = field(default_factory=list)
    left: list[Operation] = field(default_factory=list)
    loss: float = 0.0
    grad_norm: float = 0.0


def examine(step: Step) -> Finding:
    """Do the step again without compiling it and find the first operation whose output is not finite. Changes nothing:
    buffers, gradients and generators are afterwards what they were.
    """
    with undisturbed(step):
        trace = Trace(step.model)
        ended = Search(step, trace)
        with trace.watching(), trace:
            found = ended.run()
        sick = broken_parameter(step.model)
        if sick is None:
            return found
        name, magnitude = sick
        place = Place("start", "parameter", name, name.rpartition(".")[0], "", inputs=[magnitude])
        return Finding(place, found.way, found.left, found.loss, found.grad_norm)


class Search:
    """One pass over the micro-batches under `trace`."""

    def __init__(self, step: Step, trace: Trace):
        self.step, self.trace = step, trace
        self.parameters = [(name, parameter) for name, parameter, _ in parameter_roles(step.model)]
        self.scale = float(step.began.scale.get("value", 1.0))
        self.at: dict[str, Any] = {}
        """Which micro-batch it is."""
        self.first: list[str] = []
        """Parameters whose gradients are not finite, in the order in which backward came to them."""

    def run(self) -> Finding:
        batch, total, row = self.step.batch, 0.0, 0
        for number, (rank, micro) in enumerate(self.step.micro_batches(), 1):
            rows = [row, row := row + len(micro.tokens)]
            self.at = {"micro_batch": number, "rank": rank, "rows": rows}
            self.trace.phase = "forward"
            with autocast(self.step.precision, self.step.device):
                nats, auxiliary = self.step.objective(micro)
            loss = (nats + auxiliary) / batch.n_targets
            total += float(nats.detach() / batch.n_targets)
            if is_broken(loss):
                return self.found(self.trace.maker(loss), "", total)
            self.trace.phase = "backward"
            with self.noting():
                (loss * self.scale).backward()
            if self.first:
                return self.found(self.first_operation(), self.first[0], total)
        return self.clip(total)

    @contextmanager
    def noting(self) -> Iterator[None]:
        def note(parameter: Tensor, name: str) -> None:
            if parameter.grad is not None and is_broken(parameter.grad):
                self.first.append(name)

        handles = [
            parameter.register_post_accumulate_grad_hook(lambda p, name=name: note(p, name))
            for name, parameter in self.parameters
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def first_operation(self) -> Operation | None:
        """Of those that made gradients not finite, the one that is first at the end of its way."""
        by_name = dict(self.parameters)
        makers = [self.trace.maker(gradient) for name in self.first for gradient in measurable(by_name[name].grad)]
        ways = [way(maker) for maker in makers if maker is not None]
        return min(ways, key=lambda operations: operations[0].index)[-1] if ways else None

    def found(self, end: Operation | None, parameter: str, loss: float) -> Finding:
        """The place at the beginning of the way to `end`."""
        if end is None:  # made where no operator of torch is seen
            kind = "gradient" if parameter else "loss"
            phase = "backward" if parameter else "forward"
            tensor = f"gradient of {parameter}" if parameter else "loss"
            return Finding(Place(phase, kind, tensor, "", "", **self.at), loss=loss)
        operations = way(end)
        first = operations[0]
        kind = kind_of(first, self.trace.logits)
        names = {"gradient": f"gradient of {parameter}", "logit": "logits", "loss": "loss"}
        place = Place(
            phase=first.phase,
            kind=kind,
            tensor=names.get(kind, first.module),
            module=first.module,
            operation=first.name,
            node=first.node,
            inputs=first.inputs,
            scalars={f"number {i}": value for i, value in enumerate(first.scalars, 1)},
            mask=mask(first),
            **self.at,
        )
        return Finding(place, operations, behind(first), loss)

    def clip(self, loss: float) -> Finding:
        """Everything was finite so far: the norms of the gradients may still not be."""
        with_gradient = [(name, p.grad) for name, p in self.parameters if p.grad is not None]
        norms = torch.stack(torch._foreach_norm([gradient for _, gradient in with_gradient])) / self.scale
        total = float(norms.norm())
        sizes = [(float(norm), name, gradient) for norm, (name, gradient) in zip(norms, with_gradient, strict=True)]
        if torch.tensor(total).isfinite():
            return Finding(None, loss=loss, grad_norm=total)
        norm, name, gradient = max(sizes, key=lambda entry: entry[0])
        place = Place(
            "clip", "gradient", f"gradient of {name}", name.rpartition(".")[0], "norm", inputs=[Magnitude.of(gradient)]
        )
        return Finding(place, loss=loss, grad_norm=norm)


def broken_parameter(model: nn.Module) -> tuple[str, Magnitude] | None:
    """The first one, in the order of the model, that is not finite."""
    for name, parameter, _ in parameter_roles(model):
        if is_broken(parameter):
            return name, Magnitude.of(parameter, name)
    return None


def is_sound(model: nn.Module) -> bool:
    """Whether every parameter is finite. Waits for the device, once."""
    return bool(torch.stack([parameter.detach().isfinite().all() for parameter in model.parameters()]).all())


def after_update(
    model: nn.Module, optimizer: Any, names: Sequence[str], measured: Measured, norms: Float[Tensor, " n"]
) -> Place:
    """Where an update has left what is not finite, from gradients that were; a weight that not every step reads may
    have been there a little longer. It cannot be repeated, since the weights that it began with are gone: inputs are
    the weight and the optimizer's state of it as they are now.
    """
    sick = broken_parameter(model)
    assert sick is not None
    name, weight = sick
    kept = state_of(optimizer, model.get_parameter(name))
    state = [Magnitude.of(value, f"{key} of {name}") for key, value in kept.items() if value.ndim]
    decay = weight_decay(optimizer, model.get_parameter(name))
    inputs = sorted([weight, *state], key=lambda tensor: (not tensor.broken, tensor is weight))
    return Place(
        phase="optimizer",
        kind="parameter" if inputs[0] is weight else "optimizer state",
        tensor=inputs[0].name,
        module=name.rpartition(".")[0],
        operation=type(optimizer).__name__,
        inputs=inputs,
        scalars={
            "step": measured.step,
            "learning rate": measured.lr,
            "gradient norm": float(norms[names.index(name)]),
        }
        | ({"weight decay": decay} if decay else {}),
    )


def state_of(optimizer: Any, parameter: Tensor) -> dict[str, Tensor]:
    """What an optimizer, or one that it is made of, keeps of a parameter."""
    for part in (optimizer, *vars(optimizer).values()):
        if isinstance(part, torch.optim.Optimizer) and parameter in part.state:
            return {key: value for key, value in part.state[parameter].items() if isinstance(value, Tensor)}
    return {}


def weight_decay(optimizer: Any, parameter: Tensor) -> float:
    """That of the parameter's group."""
    groups = [group for group in optimizer.param_groups if any(p is parameter for p in group["params"])]
    return groups[0]["weight_decay"] if groups else 0.0


@contextmanager
def undisturbed(step: Step) -> Iterator[None]:
    """Inside, the generators stand where the step began; outside, everything is as if nothing had been."""
    model, device = step.model, step.device
    now, training = Moment.now(device, {}), model.training
    gradients = {parameter: parameter.grad for parameter in model.parameters()}
    with kept_buffers(model):  # a step counts in some, and adds to averages
        try:
            for parameter in gradients:
                parameter.grad = None
            step.began.restore(device)
            model.train()
            yield
        finally:
            model.train(training)
            now.restore(device)
            for parameter, gradient in gradients.items():
                parameter.grad = gradient
