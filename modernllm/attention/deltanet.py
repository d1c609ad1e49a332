from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.attention.recurrent import Memory, RecurrentAttention, shown
from modernllm.attention.recurrent_scan import Reach, reaches, scan
from modernllm.context import Context
from modernllm.linear import Linear
from modernllm.position import NoPosition
from modernllm.quantities import Count, Natural, Positive, Probability


class DeltaNet(RecurrentAttention):
    """norm_h(S_t q_t), S_t = S_(t-1) (I - b_t k_t k_t^T) + b_t v_t k_t^T, b = sigmoid(W_b x): what was kept under the
    key k_t is replaced  (Schlag et al., 2021; Yang et al., 2024)

    q and k are silu(.) of length 1, v is silu(.), and the norm, over each head, has no gain, as `out` can hold one.
    The paper's short convolutions are left out: they would mix tokens too.
    """

    name = "deltanet"

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
        eps: Positive = 1e-5,
    ):
        super().__init__(dim, n_heads, n_kv_heads, head_dim, layer, position, bias, dropout, qk_norm)
        self.eps = eps
        self.gate = Linear(dim, n_heads, bias, role="gate")

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
        q, k = position.rotate(F.normalize(F.silu(q), dim=-1), F.normalize(F.silu(k), dim=-1), context)
        beta = shown(gate.sigmoid().mT[..., None], context)
        level = beta.new_zeros(1, 1, beta.shape[2])
        reach = reaches(level, level[..., :1], context.segments)
        y, matrix = scan(q, k, corrections(F.silu(v), beta), matrix, reach)
        memory.parts = (matrix,)
        return F.rms_norm(y, (self.head_dim,), eps=self.eps)

    def flops(self, length: int) -> float:
        """What is kept under the key is read too."""
        return 6.0 * self.n_heads * self.head_dim**2

    def state(self, batch: int, length: int) -> Memory:
        """S, transposed."""
        return Memory(self.zeros(batch, self.n_heads, self.head_dim, self.head_dim))


def corrections(v: Float[Tensor, "b h t n"], beta: Float[Tensor, "b h t 1"]) -> Callable[..., Tensor]:
    """u_t = b_t (v_t - S_(t-1) k_t), for which S_t = sum_j <= t u_j k_j^T; within a part they solve a triangular
    system, u_t + b_t sum_(j < t) (k_t . k_j) u_j = b_t (v_t - S_before k_t)  (the UT transform; Yang et al., 2024).
    """

    def written(keys: Tensor, matrix: Tensor, reach: Reach) -> Tensor:
        rate, wanted = beta[:, :, reach.part], v[:, :, reach.part]
        system = rate * (keys @ keys.mT) * reach.within  # its diagonal is not read
        news = rate * (wanted - keys @ matrix * reach.old)
        return torch.linalg.solve_triangular(system, news, upper=False, unitriangular=True)

    return written
