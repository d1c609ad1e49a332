from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from modernllm.context import Context
from modernllm.position.rope import Fraction, Layout, RoPE
from modernllm.quantities import Count, Factor, NonNegative, Positive


class NTKRoPE(RoPE):
    """RoPE with base' = base factor^(k/(k-2))  (NTK-aware interpolation; bloc97, 2023)

    The slowest pair turns `factor` times slower and the fastest as before, so near positions stay apart.
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

    def fit(self, head_dim: int, key: str = "model.head_dim") -> None:
        super().fit(head_dim, key)
        self.exponent = exponent(self.n_turned)

    def frequencies(self, context: Context) -> Float[Tensor, "#b 1 1 pairs"]:
        return self.powers(self.base * self.factor**self.exponent, context)


class DynamicNTKRoPE(RoPE):
    """RoPE with base' = base (1 + factor (T / context_length - 1))^(k/(k-2)) for a text of T > context_length tokens

    (emozilla, 2023; the rule of Hugging Face's "dynamic"); up to context_length, and with factor 0, it is RoPE.
    T is the longest text of the row so far, or what a generation says that it will reach: the keys that a cache
    keeps cannot be turned anew when the text has grown.
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
        factor: NonNegative = 2.0,
    ):
        super().__init__(dim, n_heads, head_dim, context_length, base, fraction, layout)
        self.context_length, self.factor = context_length, factor

    def fit(self, head_dim: int, key: str = "model.head_dim") -> None:
        super().fit(head_dim, key)
        self.exponent = exponent(self.n_turned)

    def frequencies(self, context: Context) -> Float[Tensor, "#b 1 1 pairs"]:
        length = (context.positions.amax(1) + 1).clamp(min=max(self.context_length, context.length))
        stretch = 1 + self.factor * (length / self.context_length - 1)
        return self.powers(self.base * stretch[:, None, None, None] ** self.exponent, context)


def exponent(n_turned: int) -> float:
    """k / (k - 2), with which the last pair is slowed down by the whole factor."""
    if n_turned == 2:
        raise ValueError(
            "position=rope_ntk slows all pairs down but the first, and there is one pair: turn at least 4 "
            "dimensions (model.head_dim times model.position.fraction), or choose position=rope_linear"
        )
    return n_turned / (n_turned - 2)
