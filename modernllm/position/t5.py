from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from modernllm.linear import Role
from modernllm.position import ScoreBias
from modernllm.quantities import Count


class T5(ScoreBias):
    """score(i, j) + B[bucket(i - j), h], one trained table for all layers  (Raffel et al., 2020)

    The first half of the buckets hold one distance each, the others logarithmic ranges up to `max_distance`, and the
    last all beyond. The table starts at zero, where it is no position encoding; T5 draws it small.
    """

    def __init__(
        self,
        dim: Count,
        n_heads: Count,
        head_dim: Count,
        context_length: Count,
        buckets: Count = 32,
        max_distance: Count = 128,
    ):
        super().__init__(dim, n_heads, head_dim, context_length)
        self.n_exact = buckets // 2
        if buckets < 2 or max_distance <= self.n_exact:
            raise ValueError(
                f"position=t5 gives half of model.position.buckets={buckets} to one distance each: at least 2 "
                f"buckets, and a model.position.max_distance={max_distance} beyond {self.n_exact}, are needed"
            )
        self.buckets, self.max_distance = buckets, max_distance
        self.table = nn.Parameter(torch.zeros(buckets, n_heads))
        self.roles: dict[str, Role] = {"table": "bias"}

    def of_distance(self, distance: Int[Tensor, "#b t s"]) -> Float[Tensor, "#b h t s"]:
        return nn.functional.embedding(self.bucket(distance), self.table).permute(0, 3, 1, 2)

    def bucket(self, distance: Int[Tensor, "#b t s"]) -> Int[Tensor, "#b t s"]:
        """The past only: what lies ahead, and is never seen, falls into bucket 0."""
        past = distance.clamp(min=0)
        share = torch.log(past.clamp(min=1) / self.n_exact) / math.log(self.max_distance / self.n_exact)
        far = self.n_exact + (share * (self.buckets - self.n_exact)).long()
        return torch.where(past < self.n_exact, past, far.clamp(max=self.buckets - 1))
