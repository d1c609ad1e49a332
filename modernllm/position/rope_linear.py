from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from modernllm.context import Context
from modernllm.position.rope import Fraction, Layout, RoPE
from modernllm.quantities import Count, Factor, Positive


class LinearRoPE(RoPE):
    """RoPE at position p / factor: position interpolation  (Chen et al., 2023)

    A text `factor` times as long stays within the phases of training, at the price of the distance between neighbours.
    """

    def __init__(
        self,
        dim: Count,
        n_heads: Count,
        head_dim: Count,
        context_length: Count,
        base: Positive = 10_000.0,
        fraction: Fraction = 1.0,
        layout: Layout = "interleaved",
        factor: Factor = 4.0,
    ):
        super().__init__(dim, n_heads, head_dim, context_length, base, fraction, layout)
        self.factor = factor

    def frequencies(self, context: Context) -> Float[Tensor, "#b 1 1 pairs"]:
        return super().frequencies(context) / self.factor
