from __future__ import annotations

from collections.abc import Callable

from torch import nn

from modernllm.quantities import Count


class Uniform:
    """Every layer is attention, then feed-forward"""

    def __init__(
        self,
        attention: Callable[..., nn.Module],
        feedforward: Callable[..., nn.Module],
        n_layers: Count,
    ):
        self.attention, self.feedforward = attention, feedforward

    def __call__(self, layer: int) -> dict[str, nn.Module]:
        return {"attention": self.attention(layer), "feedforward": self.feedforward(layer)}
