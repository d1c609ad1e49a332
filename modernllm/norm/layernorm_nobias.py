from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.quantities import Positive


class LayerNormNoBias(nn.Module):
    """g * (x - mean(x)) / sqrt(var(x) + eps)  (PaLM; ModernBERT)"""

    def __init__(self, dim: int, eps: Positive = 1e-5):
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(dim))
        self.roles = {"gain": "gain"}

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        return F.layer_norm(x, self.gain.shape, self.gain, None, self.eps)
