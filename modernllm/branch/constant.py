from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from modernllm.quantities import Count, Natural, Positive


class Constant(nn.Module):
    """scale y  (Szegedy et al., 2017, who took 0.1 to 0.3)"""

    def __init__(self, dim: Count, n_layers: Count, layer: Natural, scale: Positive = 0.1):
        super().__init__()
        self.scale = scale

    def forward(self, y: Float[Tensor, "b t d"]) -> Float[Tensor, "b t d"]:
        return self.scale * y
