"""Complex numbers as pairs of real ones. Torch has a fast operator for each of these, which inductor cannot compile."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def polar(magnitude: float, phase: Float[Tensor, "*any"]) -> Float[Tensor, "*any 2"]:
    """magnitude (cos phase, sin phase)"""
    if torch.compiler.is_compiling():
        return magnitude * torch.stack((phase.cos(), phase.sin()), -1)
    return torch.view_as_real(torch.polar(torch.full_like(phase, magnitude), phase))


def product(a: Float[Tensor, "... 2"], b: Float[Tensor, "... 2"]) -> Float[Tensor, "... 2"]:
    """(a_0 b_0 - a_1 b_1, a_0 b_1 + a_1 b_0)"""
    if torch.compiler.is_compiling():
        (a0, a1), (b0, b1) = a.unbind(-1), b.unbind(-1)
        return torch.stack((a0 * b0 - a1 * b1, a0 * b1 + a1 * b0), -1)
    return torch.view_as_real(torch.view_as_complex(a) * torch.view_as_complex(b))
