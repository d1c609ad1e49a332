from __future__ import annotations

from collections.abc import Callable

from torch import nn

from modernllm.layers.uniform import Uniform
from modernllm.moe.none import Dense
from modernllm.quantities import Count, Natural


class MoEEvery(Uniform):
    """Experts in each `period`-th layer, but none in the `first_dense` layers, and a dense feed-forward elsewhere

    (period 2: GShard, Lepikhin et al., 2021; period 1 after dense layers: DeepSeekMoE, Dai et al., 2024)
    """

    def __init__(
        self,
        attention: Callable[..., nn.Module],
        feedforward: Callable[..., nn.Module],
        n_layers: Count,
        period: Count,
        first_dense: Natural,
    ):
        super().__init__(attention, feedforward, n_layers)
        self.period, self.first_dense = period, first_dense

    def __call__(self, layer: int) -> dict[str, nn.Module]:
        dense = {"attention": self.attention(layer), "feedforward": self.feedforward(layer, Dense)}
        if layer < self.first_dense or (layer + 1) % self.period:
            return dense
        experts = super().__call__(layer)
        if type(experts["feedforward"]) is type(dense["feedforward"]):
            raise ValueError(
                "layers=moe_every places the experts of moe=..., and moe=none has none: choose moe=topk or another, "
                "or layers=uniform"
            )
        return experts
