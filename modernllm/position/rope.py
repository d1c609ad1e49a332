from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from modernllm.context import Context
from modernllm.position import NoPosition
from modernllm.quantities import Count, Positive


class RoPE(NoPosition):
    """Each pair of q and k turned by p w_i, w_i = base^(-2i/k), so that q_m . k_n depends on m - n  (Su et al., 2021)

    The pair (i, i + k/2) turns together: the half-split layout of GPT-NeoX and LLaMA.
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
        context.position = self.tables(context.positions)

    def tables(
        self, positions: Int[Tensor, "#b t"]
    ) -> tuple[Float[Tensor, "#b 1 t k"], Float[Tensor, "#b 1 t k"]]:
        """cos and signed sin of the phases, in float32: bf16 keeps only 513 of 1024 positions apart."""
        even = torch.arange(0, self.head_dim, 2, device=positions.device)
        phase = positions[:, None, :, None] * self.base ** (-even / self.head_dim)
        cos, sin = phase.cos(), phase.sin()
        return torch.cat((cos, cos), -1), torch.cat((-sin, sin), -1)

    def rotate(
        self, q: Float[Tensor, "b h t k"], k: Float[Tensor, "b g t k"], context: Context
    ) -> tuple[Float[Tensor, "b h t k"], Float[Tensor, "b g t k"]]:
        cos, sin = (table.to(q.dtype) for table in context.position)
        return _turn(q, cos, sin), _turn(k, cos, sin)


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x * cos + x.roll(x.shape[-1] // 2, -1) * sin
