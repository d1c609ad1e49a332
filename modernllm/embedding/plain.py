from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from modernllm.linear import Role
from modernllm.quantities import Count


class Embedding(nn.Module):
    """E[token]"""

    role: Role = "embedding"

    def __init__(self, vocab_size: Count, dim: Count):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, dim))
        self.roles: dict[str, Role] = {"weight": self.role}

    def forward(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        return F.embedding(tokens, self.weight)
