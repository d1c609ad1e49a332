from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.quantities import Positive


class RMSNorm(nn.Module):
    """g * x / sqrt(mean(x^2) + eps)  (Zhang and Sennrich, 2019)"""

    def __init__(self, dim: int, eps: Positive = 1e-6):
        super().__init__()
        self.eps = eps
        self.gain = nn.Parameter(torch.ones(dim))
        self.roles = {"gain": "gain"}

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        # torch's fused kernel wants both in one dtype; the mean square is float32 whatever that is
        return F.rms_norm(x, self.gain.shape, self.gain.to(x.dtype), self.eps)
