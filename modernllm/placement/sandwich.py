from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from modernllm.placement import NormedPlacement, Sublayer
from modernllm.quantities import Count, Natural


class Sandwich(NormedPlacement):
    """x + norm'(f(norm(x)))  (CogView, Ding et al., 2021; Gemma 2; Peri-LN, Kim et al., 2025)

    The norm of the embedding that Peri-LN leaves open is embedding=normed.
    """

    def __init__(
        self,
        norm: Callable[[], nn.Module],
        branch: Callable[[], nn.Module],
        n_layers: Count,
        layer: Natural,
        site: str,
    ):
        super().__init__(norm, branch, n_layers, layer, site)
        self.out_norm = norm()

    def forward(self, x: Tensor, f: Sublayer) -> Tensor:
        return x + self.branch(self.out_norm(f(self.norm(x))))
