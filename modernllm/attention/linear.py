from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.attention.recurrent import Memory, RecurrentAttention, shown
from modernllm.attention.recurrent_scan import reaches, scan
from modernllm.context import Context
from modernllm.position import NoPosition
from modernllm.quantities import Count, Natural, NonNegative, Probability


class LinearAttention(RecurrentAttention):
    """sum_j (f(q_i) . f(k_j)) v_j / sum_j f(q_i) . f(k_j) over j <= i, f(x) = elu(x) + 1  (Katharopoulos et al., 2020)

    A position that turns q and k turns f(q) and f(k) above the line only: below it stays positive (Su et al., 2021).
    """

    name = "linear"

    def __init__(
        self,
        dim: Count,
        n_heads: Count,
        n_kv_heads: Count | None,
        head_dim: Count,
        layer: Natural,
        position: NoPosition,
        bias: bool,
        dropout: Probability,
        qk_norm: Callable[..., nn.Module],
        eps: NonNegative = 1e-6,
    ):
        super().__init__(dim, n_heads, n_kv_heads, head_dim, layer, position, bias, dropout, qk_norm)
        self.eps = eps

    def mix(
        self,
        q: Float[Tensor, "b h t k"],
        k: Float[Tensor, "b h t k"],
        v: Float[Tensor, "b h t k"],
        gate: Float[Tensor, "b t _"],
        context: Context,
        memory: Memory,
    ) -> Float[Tensor, "b h t k"]:
        (position,), (matrix, sums) = self._position, memory.parts
        q, k = elu_plus_one(q), shown(elu_plus_one(k), context)
        level = q.new_zeros(1, 1, q.shape[2])  # nothing is forgotten
        reach = reaches(level, level[..., :1], context.segments)
        ones = torch.ones_like(v[..., :1])
        turned_q, turned_k = position.rotate(q, k, context)
        above, matrix = scan(turned_q, turned_k, lambda keys, old, reach: v[:, :, reach.part], matrix, reach)
        below, sums = scan(q, k, lambda keys, old, reach: ones[:, :, reach.part], sums, reach)
        memory.parts = (matrix, sums)
        return above / (below + self.eps)

    def flops(self, length: int) -> float:
        return 4.0 * self.n_heads * self.head_dim * (self.head_dim + 1)

    def state(self, batch: int, length: int) -> Memory:
        """k v^T and k, each summed over the tokens so far."""
        shape = (batch, self.n_heads, self.head_dim)
        return Memory(self.zeros(*shape, self.head_dim), self.zeros(*shape, 1))


def elu_plus_one(x: Float[Tensor, "*b"]) -> Float[Tensor, "*b"]:
    """e^x below zero and x + 1 above: as F.elu(x) + 1, which is 0 in float32 from -18 on."""
    return x.clamp_max(0).exp() + x.relu()
