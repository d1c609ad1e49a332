"""From the gradients of a step to new weights: measure, decide, clip, step. Nothing here waits for the device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.distributed import OneProcess
from modernllm.linear import parameter_roles
from modernllm.loss_scale import DynamicScale, NoScale
from modernllm.optimizer import FUSED, Optimizer, is_known

Policy = Literal["stop", "skip", "continue"]

LATCH: dict[Policy, Callable[[Tensor, Tensor], Tensor]] = {
    "stop": torch.maximum,  # set for good: the poisoned step and all after it change nothing
    "skip": lambda latch, poisoned: poisoned,  # this step changes nothing
    "continue": lambda latch, poisoned: torch.zeros_like(poisoned),
}
"""What becomes of the latch when a step is poisoned (1) or not (0)."""


@runtime_checkable
class Adaptive(Protocol):
    """A module that changes by itself after each step; not after one that changed nothing (`held` is 1)."""

    def after_step(self, held: Tensor) -> None: ...


@runtime_checkable
class Counting(Protocol):
    """A module that counts something over the tokens of a step, for its `after_step`: it is added up over the ranks."""

    def tallies(self) -> list[Tensor]: ...


@dataclass(frozen=True)
class Measured:
    """What one step leaves on the device, read back later. `held` is 1 if the weights were left alone, `overflowed`
    if that was the loss scale's doing.
    """

    step: int
    lr: float
    loss: Float[Tensor, ""]
    norms: Float[Tensor, " n"]
    held: Float[Tensor, ""]
    overflowed: Float[Tensor, ""]


class Update:
    """`backward(loss)` for every micro-batch, then one call."""

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        schedule: Callable[[int], float],
        clip: float,
        nonfinite: Policy,
        scale: NoScale | DynamicScale,
        group: OneProcess,
    ):
        self.names, self.parameters, _ = zip(*parameter_roles(model), strict=True)
        self.optimizer, self.schedule, self.clip, self.scale = optimizer, schedule, clip, scale
        self.group = group
        self.peaks = [group["lr"] for group in optimizer.param_groups]
        self.latched = LATCH[nonfinite]
        # modules that learn something by themselves, as a router balances its experts
        self.adaptive = [module.after_step for module in model.modules() if isinstance(module, Adaptive)]
        self.tallies = [module.tallies for module in model.modules() if isinstance(module, Counting)]
        self.latch = self.parameters[0].new_zeros((), dtype=torch.float32)
        self.nothing = torch.zeros_like(self.latch)  # stands for the gradient of what has none

    def backward(self, loss: Float[Tensor, ""]) -> None:
        self.scale.scale(loss).backward()

    def __call__(self, step: int, loss: Float[Tensor, ""]) -> Measured:
        """`step` counts from 1, `loss` is that of this rank. The norm is that of all gradients before clipping, tensor
        by tensor; it and all that follows from it is the same on every rank.
        """
        self.group.join(self.parameters, loss, self.tallies)
        gradients = [p.grad for p in self.parameters]
        present = [gradient for gradient in gradients if gradient is not None]
        self.scale.unscale(present)
        norms = torch.stack(torch._foreach_norm([self.nothing if g is None else g for g in gradients]))
        total = norms.norm()
        sound, bounded = torch.stack((loss, total)).isfinite().unbind()
        overflowed = self.scale.overflowed(bounded | ~sound)
        poisoned = (~(sound & bounded)).float() - overflowed
        self.latch = self.latched(self.latch, poisoned)
        held = torch.maximum(self.latch, overflowed)
        self.shorten(present, total)
        lr = self.set_rate(step)
        self.apply(held)
        for parameter in self.parameters:
            parameter.grad = None
        return Measured(step, lr, loss, norms, held, overflowed)

    def shorten(self, gradients: list[Tensor], norm: Float[Tensor, ""]) -> None:
        """To the norm of `clip` together, as torch.nn.utils.clip_grads_with_norm_, which looks first for gradients on
        other devices. A factor of 1 is left out where it is known.
        """
        factor = (self.clip / (norm + 1e-6)).clamp(max=1.0)
        if not is_known(factor) or factor != 1.0:
            torch._foreach_mul_(gradients, factor)

    def set_rate(self, step: int) -> float:
        """The learning rate of this step, as it was asked for; a group may have its own."""
        share = self.schedule(step)
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * share
        return self.optimizer.lr * share

    def apply(self, held: Float[Tensor, ""]) -> None:
        if self.optimizer.reads_found_inf and held.device.type in FUSED:
            self.optimizer.found_inf = held  # type: ignore[attr-defined]
            self.optimizer.step()
        elif not held:  # waits for the device, which costs nothing on a CPU
            self.optimizer.step()
        for after_step in self.adaptive:
            after_step(held)
