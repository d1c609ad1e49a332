"""Observers: they read what a step leaves behind and change nothing. Made with `telemetry(model, steps)`."""

from __future__ import annotations

import re

import torch
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.linear import parameter_roles
from modernllm.quantities import Count


class Telemetry:
    """Gradient norms by layer, every `every` steps (a hundredth of the run unless set) and at the first and last."""

    def __init__(self, model: nn.Module, steps: Count, every: Count | None):
        self.steps = steps
        self.every = every or max(1, steps // 100)
        names = [layer_of(name) for name, _, _ in parameter_roles(model)]
        self.layers = list(dict.fromkeys(names))
        self.members = torch.tensor([self.layers.index(name) for name in names])

    def due(self, step: int) -> bool:
        return step in (1, self.steps) or step % self.every == 0

    def by_layer(self, norms: Float[Tensor, " n"]) -> dict[str, float]:
        """Norm of each layer's gradient from the norms of its tensors: squares add up to the whole's."""
        squares = torch.zeros(len(self.layers), dtype=torch.float64)
        squares.index_add_(0, self.members, norms.detach().cpu().double() ** 2)
        return dict(zip(self.layers, squares.sqrt().tolist(), strict=True))


def layer_of(parameter: str) -> str:
    """`blocks.3.sublayers.attention.q.weight` -> `block.3`, by the first number in the name; else its owner."""
    block = re.search(r"\.(\d+)\.", parameter)
    first, *rest = parameter.split(".")
    return f"block.{block[1]}" if block else ".".join(rest[:-1]) if first == "module" else first
