from __future__ import annotations

import torch
from jaxtyping import Complex, Float, Int
from torch import Tensor

from modernllm.context import Context
from modernllm.position import NoPosition
from modernllm.quantities import Count, Positive


class RoPE(NoPosition):
    """Each pair (x_2i, x_2i+1) of q and k turned by p base^(-2i/k), so that q_m . k_n depends on m - n  (Su et al., 2021)

    Neighbours are a pair (the interleaved layout of the paper), which makes turning one complex product.
    """

    def __init__(
        self, dim: Count, n_heads: Count, head_dim: Count, context_length: Count, base: Positive = 10_000.0
    ):
        super().__init__(dim, n_heads, head_dim, context_length)
        if head_dim % 2:
            raise ValueError(
                f"position=rope turns pairs: model.head_dim={head_dim} is odd; choose an even model.head_dim "
                "(by default model.dim / model.n_heads) or another position encoding"
            )
        self.head_dim, self.base = head_dim, base

    def prepare(self, context: Context) -> None:
        context.position = self.turns(context.positions)

    def turns(self, positions: Int[Tensor, "#b t"]) -> Complex[Tensor, "#b 1 t pairs"]:
        """exp(i phase), computed in float32 whatever the model's dtype: bf16 keeps 513 of 1024 positions apart."""
        even = torch.arange(0, self.head_dim, 2, device=positions.device)
        phase = positions[:, None, :, None] * self.base ** (-even / self.head_dim)
        return torch.polar(torch.ones_like(phase), phase)

    def rotate(
        self, q: Float[Tensor, "b h t k"], k: Float[Tensor, "b g t k"], context: Context
    ) -> tuple[Float[Tensor, "b h t k"], Float[Tensor, "b g t k"]]:
        return _turn(q, context.position), _turn(k, context.position)


def _turn(x: Tensor, turns: Tensor) -> Tensor:
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    pairs = torch.view_as_complex(wide.unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)
