from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from modernllm.placement import NormedPlacement, Sublayer
from modernllm.quantities import Count, Natural


class LayerNormScaling(NormedPlacement):
    """x + f(norm(x) / sqrt(l)), l = 1 for the first layer  (Sun et al., 2025)"""

    def __init__(
        self,
        norm: Callable[[], nn.Module],
        branch: Callable[[], nn.Module],
        n_layers: Count,
        layer: Natural,
        site: str,
    ):
        super().__init__(norm, branch, n_layers, layer, site)
        self.scale = (layer + 1) ** -0.5

    def forward(self, x: Tensor, f: Sublayer) -> Tensor:
        return x + self.branch(f(self.scale * self.norm(x)))
