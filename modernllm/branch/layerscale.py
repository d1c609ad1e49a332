from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.linear import Role, Start
from modernllm.quantities import Count, Natural, Positive


class LayerScale(nn.Module):
    """g * y, a vector g that starts at `start`  (CaiT, Touvron et al., 2021)"""

    def __init__(self, dim: Count, n_layers: Count, layer: Natural, start: Positive = 0.1):
        super().__init__()
        self.scale = nn.Parameter(start * torch.ones(dim))
        self.roles: dict[str, Role] = {"scale": "scale"}
        self.starts = {"scale": Start(mean=start)}

    def forward(self, y: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        return self.scale * y
