"""Initialisations: `init(model, seed)` draws every parameter by its role, from a stream keyed by its name.

Two models share the initial value of every parameter whose name, shape and role they share, whatever else
they are made of, so that differences between them are paired.
"""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

from modernllm.linear import Role, parameter_roles
from modernllm.quantities import Positive


def named_generator(seed: int, name: str) -> torch.Generator:
    """A CPU generator of its own for `name`: nothing drawn elsewhere shifts it."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


class Init:
    """Gains 1, biases 0, everything else N(0, std(role)^2)."""

    def __call__(self, model: nn.Module, seed: int) -> None:
        n_layers = len(model.blocks)  # type: ignore[arg-type]
        for name, parameter, role in parameter_roles(model):
            with torch.no_grad():
                if role == "gain":
                    parameter.fill_(1.0)
                elif role == "bias":
                    parameter.zero_()
                else:
                    std = self.std(role, parameter, n_layers)
                    value = torch.empty(parameter.shape).normal_(0.0, std, generator=named_generator(seed, name))
                    parameter.copy_(value)

    def std(self, role: Role, parameter: Tensor, n_layers: int) -> float:
        raise NotImplementedError


class FanIn(Init):
    """W ~ N(0, 1/fan_in), so that a matrix keeps the scale of its input at any width  (LeCun et al., 1998)

    Token and position vectors have entries of variance 1; a table that is the head too is drawn as the head is.
    """

    def std(self, role: Role, parameter: Tensor, n_layers: int) -> float:
        return 1.0 if role in ("embedding", "position") else parameter.shape[-1] ** -0.5


class GPT2(Init):
    """W ~ N(0, 0.02^2), and 0.02 / sqrt(2 L) for the 2 L matrices that write into the stream  (Radford et al., 2019)

    0.02 is a number for widths near 768, where it is 0.55 / sqrt(fan_in); at width 64 it is 0.16 / sqrt(fan_in).
    """

    def __init__(self, base: Positive = 0.02):
        self.base = base

    def std(self, role: Role, parameter: Tensor, n_layers: int) -> float:
        return self.base * (2 * n_layers) ** -0.5 if role == "stream" else self.base
