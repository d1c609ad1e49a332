from __future__ import annotations

from modernllm.position import NoPosition
from modernllm.position.rope import Fraction, Layout, RoPE
from modernllm.quantities import Count, Positive


class RNoPE(RoPE):
    """RoPE, but no positions in every `period`-th layer  (Yang et al., 2025; SmolLM3 has a period of 4)"""

    def __init__(
        self,
        dim: Count,
        n_heads: Count,
        head_dim: Count,
        context_length: Count,
        base: Positive = 10_000.0,
        fraction: Fraction = 1.0,
        layout: Layout = "interleaved",
        period: Count = 2,
    ):
        super().__init__(dim, n_heads, head_dim, context_length, base, fraction, layout)
        self.period = period
        self.none = NoPosition(dim, n_heads, head_dim, context_length)

    def at(self, layer: int) -> NoPosition:
        return self if (layer + 1) % self.period else self.none
