"""torch's fused AdamW with the lists that its kernel takes kept from step to step.

`torch.optim.AdamW.step` collects them anew from dictionaries and counts each tensor's steps by an operator of its own:
3 % of a small model's step, during which the processor does nothing else. State, kernel and bits are torch's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Lists:
    """What the kernel takes of a group's parameters at `places`, which are of one device and type; `steps` are the
    entries of `ages`.
    """

    places: list[int]
    parameters: list[Tensor]
    means: list[Tensor]
    squares: list[Tensor]
    ages: Float[Tensor, " n"]
    steps: tuple[Tensor, ...]


class FusedAdamW(torch.optim.AdamW):
    """A step changes nothing where `found_inf` is 1, and nobody waits for the device to know."""

    found_inf: Tensor | None = None

    def __init__(self, groups: list[dict[str, Any]], lr: float, betas: tuple[float, float], eps: float):
        super().__init__(groups, lr=lr, betas=betas, eps=eps, fused=True)
        self.kept: dict[int, tuple[list[bool], list[Lists]]] = {}

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        for number, group in enumerate(self.param_groups):
            gradients = [parameter.grad for parameter in group["params"]]
            beta1, beta2 = group["betas"]
            for of in self._lists(number, [gradient is not None for gradient in gradients]):
                of.ages.add_(1.0 if self.found_inf is None else 1.0 - self.found_inf)
                torch._fused_adamw_(
                    of.parameters,
                    [gradients[place] for place in of.places],
                    of.means,
                    of.squares,
                    [],
                    of.steps,
                    lr=group["lr"],
                    beta1=beta1,
                    beta2=beta2,
                    weight_decay=group["weight_decay"],
                    eps=group["eps"],
                    amsgrad=False,
                    maximize=False,
                    grad_scale=None,
                    found_inf=self.found_inf,
                )

    step.hooked = True  # type: ignore[attr-defined] # torch would wrap it for hooks and profilers: another 1 %

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        self.kept.clear()

    def _lists(self, number: int, present: list[bool]) -> list[Lists]:
        """Of a group's parameters with a gradient, made anew when these are others than before."""
        before, lists = self.kept.get(number, ([], []))
        if present != before:
            parameters = self.param_groups[number]["params"]
            alike: dict[tuple[torch.device, torch.dtype], list[int]] = {}
            for place in (place for place, is_present in enumerate(present) if is_present):
                alike.setdefault((parameters[place].device, parameters[place].dtype), []).append(place)
            lists = [self._listed(places, [parameters[place] for place in places]) for places in alike.values()]
            self.kept[number] = present, lists
        return lists

    def _listed(self, places: list[int], parameters: list[Tensor]) -> Lists:
        """With a state where there is none yet."""
        for parameter in parameters:
            if not self.state[parameter]:
                self.state[parameter] = {
                    "step": torch.zeros((), device=parameter.device),
                    "exp_avg": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                    "exp_avg_sq": torch.zeros_like(parameter, memory_format=torch.preserve_format),
                }
        states = [self.state[parameter] for parameter in parameters]
        ages = torch.stack([state["step"] for state in states])
        steps = ages.unbind()
        for state, step in zip(states, steps, strict=True):
            state["step"] = step
        means, squares = ([state[name] for state in states] for name in ("exp_avg", "exp_avg_sq"))
        return Lists(places, parameters, means, squares, ages, steps)
