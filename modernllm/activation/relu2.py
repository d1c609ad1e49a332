from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


class SquaredReLU(nn.Module):
    """max(0, u)^2  (Primer; So et al., 2021)"""

    def forward(self, u: Float[Tensor, "*b f"]) -> Float[Tensor, "*b f"]:
        return F.relu(u).square()
