from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.quantities import Positive


class NonParametric(nn.Module):
    """(x - mean(x)) / sqrt(var(x) + eps), nothing to learn  (OLMo 1, Groeneveld et al., 2024)"""

    def __init__(self, dim: int, eps: Positive = 1e-5):
        super().__init__()
        self.dim, self.eps = dim, eps

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        return F.layer_norm(x, (self.dim,), eps=self.eps)
