from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.linear import Role, Start
from modernllm.quantities import Count, Natural


class ReZero(nn.Module):
    """a y, a number a that starts at 0  (Bachlechner et al., 2020)

    Every residual block starts as the identity, and at the first step a is all in it that has a gradient. The authors
    have no norms (placement=none), and in their code the sublayers of a layer share one a.
    """

    def __init__(self, dim: Count, n_layers: Count, layer: Natural):
        super().__init__()
        self.scale = nn.Parameter(torch.zeros(1))
        self.roles: dict[str, Role] = {"scale": "scale"}
        self.starts = {"scale": Start(mean=0.0)}

    def forward(self, y: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        return self.scale * y
