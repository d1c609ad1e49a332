from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.linear import Role, Start
from modernllm.quantities import Positive


class DynamicTanh(nn.Module):
    """g * tanh(a x) + b, one a that starts at `start`: no entry looks at another  (DyT, Zhu et al., 2025)"""

    def __init__(self, dim: int, start: Positive = 0.5):
        super().__init__()
        self.scale = nn.Parameter(start * torch.ones(1))
        self.gain = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.roles: dict[str, Role] = {"scale": "scale", "gain": "gain", "bias": "bias"}
        self.starts = {"scale": Start(mean=start)}

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        y = self.gain * torch.tanh(self.scale * x) + self.bias
        return y.to(x.dtype)
