from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from annotated_types import Ge
from torch import nn

from modernllm.layers.uniform import Uniform
from modernllm.quantities import Count


class Alternate(Uniform):
    """`other` attention in every layer but each `period`-th, which has the attention of its group

    Window and full (Gemma 2 and 3; Beltagy et al., 2020), or linear and full (Jamba; Qwen3-Next).
    """

    def __init__(
        self,
        attention: Callable[..., nn.Module],
        feedforward: Callable[..., nn.Module],
        n_layers: Count,
        other: Callable[..., nn.Module],
        period: Annotated[int, Ge(2)],
    ):
        super().__init__(attention, feedforward, n_layers)
        self.other, self.period = other, period

    def __call__(self, layer: int) -> dict[str, nn.Module]:
        if (layer + 1) % self.period == 0:
            return super().__call__(layer)
        return {"attention": self.attention(layer, self.other), "feedforward": self.feedforward(layer)}
