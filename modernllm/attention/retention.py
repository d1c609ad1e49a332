from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import torch
import torch.nn.functional as F
from annotated_types import Gt, Lt
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.attention.recurrent import Memory, RecurrentAttention, shown
from modernllm.attention.recurrent_scan import reaches, scan
from modernllm.context import Context
from modernllm.linear import Linear
from modernllm.position import NoPosition
from modernllm.quantities import Count, Natural, Positive, Probability

Horizon = Annotated[float, Gt(1), Lt(float("inf"))]


class Retention(RecurrentAttention):
    """swish(W_g x) * norm_h(sum over j <= i of gamma_h^(i - j) (q_i . k_j / sqrt(k)) v_j)  (RetNet; Sun et al., 2023)

    gamma_h = 1 - 2^-h / horizon for the heads h = 0, 1, ...; the paper's 2^(-5 - h) is a horizon of 32 tokens. The norm
    is over each head and has no gain: the paper's is GroupNorm, the authors' code divides by the root mean square.
    Values are as wide as keys (twice as wide in the paper).
    """

    name = "retention"

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
        horizon: Horizon = 32.0,
        eps: Positive = 1e-6,
    ):
        super().__init__(dim, n_heads, n_kv_heads, head_dim, layer, position, bias, dropout, qk_norm)
        self.horizon, self.eps = horizon, eps
        self.gate = Linear(dim, n_heads * head_dim, bias, role="gate")

    def mix(
        self,
        q: Float[Tensor, "b h t k"],
        k: Float[Tensor, "b h t k"],
        v: Float[Tensor, "b h t k"],
        gate: Float[Tensor, "b t _"],
        context: Context,
        memory: Memory,
    ) -> Float[Tensor, "b h t k"]:
        (position,), (matrix,) = self._position, memory.parts
        q, k = position.rotate(q, k * self.head_dim**-0.5, context)
        log_decay = self.log_decay(v)
        level = log_decay * context.positions[:, None]  # padding lets no time pass
        reach = reaches(level, level[..., :1] - log_decay, context.segments)
        y, matrix = scan(q, shown(k, context), lambda keys, old, reach: v[:, :, reach.part], matrix, reach)
        memory.parts = (matrix,)
        y = F.rms_norm(y, (self.head_dim,), eps=self.eps)
        return F.silu(self.heads(gate)) * y

    def log_decay(self, like: Tensor) -> Float[Tensor, "h 1"]:
        heads = torch.arange(self.n_heads, device=like.device, dtype=like.dtype)
        return torch.log1p(-torch.exp2(-heads) / self.horizon)[:, None]

    def flops(self, length: int) -> float:
        return 4.0 * self.n_heads * self.head_dim**2

    def state(self, batch: int, length: int) -> Memory:
        """k v^T, summed over the tokens so far, each decayed since."""
        return Memory(self.zeros(batch, self.n_heads, self.head_dim, self.head_dim))
