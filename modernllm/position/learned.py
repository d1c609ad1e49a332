from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.context import Context
from modernllm.position import NoPosition
from modernllm.quantities import Count


class Learned(NoPosition):
    """x_p + P[p], one trained vector a position  (Gehring et al., 2017; GPT-2)"""

    def __init__(self, dim: Count, n_heads: Count, head_dim: Count, context_length: Count):
        super().__init__(dim, n_heads, head_dim, context_length)
        self.table = nn.Parameter(torch.zeros(context_length, dim))
        self.roles = {"table": "position"}

    def embed(self, x: Float[Tensor, "b t d"], context: Context) -> Float[Tensor, "b t d"]:
        if x.shape[1] > len(self.table):  # positions count from 0, so a longer row needs a longer table
            self._refuse(x.shape[1])
        if context.states is not None and int(context.positions.max()) >= len(self.table):
            self._refuse(int(context.positions.max()) + 1)
        return x + nn.functional.embedding(context.positions, self.table)

    def _refuse(self, n_positions: int) -> None:
        raise ValueError(
            f"position=learned has {len(self.table)} positions and met {n_positions}: train with a larger "
            "model.context_length, or choose a position encoding without a table"
        )
