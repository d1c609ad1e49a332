from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from modernllm.linear import Linear
from modernllm.quantities import Count

Score = Literal["softmax", "sigmoid"]

SCORES: dict[Score, Callable[[], nn.Module]] = {"softmax": partial(nn.Softmax, dim=-1), "sigmoid": nn.Sigmoid}


class Router(Linear):
    """One logit an expert, W x in float32 whatever the matrix products are in: a rounded logit is another expert."""

    def __init__(self, dim: Count, n_experts: Count):
        super().__init__(dim, n_experts, bias=False, role="gate")

    def forward(self, input: Float[Tensor, "b t d"]) -> Float[Tensor, "b t e"]:
        kind = torch.promote_types(self.weight.dtype, torch.float32)
        with torch.autocast(input.device.type, enabled=False):
            return F.linear(input.to(kind), self.weight.to(kind))


def best(preference: Float[Tensor, "b t e"], k: int, n_groups: int, groups: int) -> Int[Tensor, "b t k"]:
    """The k best experts of the `groups` best of `n_groups` groups; a group is as good as the sum of its k / groups
    best experts  (DeepSeek-V3). It depends on the token alone, so it cannot see the future.
    """
    by_group = preference.unflatten(-1, (n_groups, -1))
    standing = by_group.topk(min(max(1, k // groups), by_group.shape[-1])).values.sum(-1)
    chosen = torch.zeros_like(standing, dtype=torch.bool).scatter(-1, standing.topk(groups).indices, True)
    return by_group.masked_fill(~chosen[..., None], float("-inf")).flatten(-2).topk(k).indices
