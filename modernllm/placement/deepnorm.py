from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from modernllm.placement import NormedPlacement, Sublayer
from modernllm.quantities import Count, Natural


class DeepNormPlacement(NormedPlacement):
    """norm(a x + f(x)) with a = (2 L)^(1/4), for a decoder alone; init=deepnorm belongs to it  (Wang et al., 2022)"""

    def __init__(
        self,
        norm: Callable[[], nn.Module],
        branch: Callable[[], nn.Module],
        n_layers: Count,
        layer: Natural,
        site: str,
    ):
        super().__init__(norm, branch, n_layers, layer, site)
        self.alpha = (2 * n_layers) ** 0.25

    def forward(self, x: Tensor, f: Sublayer) -> Tensor:
        return self.norm(self.alpha * x + self.branch(f(x)))
