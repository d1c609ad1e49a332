from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from modernllm.context import Context
from modernllm.position import NoPosition
from modernllm.quantities import Count, Positive


class Sinusoidal(NoPosition):
    """x_p + (sin(p w_i), cos(p w_i))_i with w_i = base^(-2i/d)  (Vaswani et al., 2017)"""

    def __init__(self, dim: Count, n_heads: Count, head_dim: Count, context_length: Count, base: Positive = 10_000.0):
        super().__init__(dim, n_heads, head_dim, context_length)
        self.dim, self.base = dim, base

    def prepare(self, context: Context) -> None:
        context.position = self.table(context.positions)

    def table(self, positions: Int[Tensor, "#b t"]) -> Float[Tensor, "#b t d"]:
        """sin in the even entries, cos in the odd ones; computed in float32 whatever the model's dtype."""
        even = torch.arange(0, self.dim, 2, device=positions.device)
        angle = positions[..., None] * self.base ** (-even / self.dim)
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[..., : self.dim]

    def embed(self, x: Float[Tensor, "b t d"], context: Context) -> Float[Tensor, "b t d"]:
        return x + context.position.to(x.dtype)
