"""Positions: one module per stack, `prepare(context)` once per forward, then `embed`, `rotate` and `bias`.

The base class does nothing, which is what no positional encoding is.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from modernllm.context import Context
from modernllm.quantities import Count


class NoPosition(nn.Module):
    """NoPE: a causal decoder of two layers or more can still tell order (Haviv et al., 2022)"""

    def __init__(self, dim: Count, n_heads: Count, head_dim: Count, context_length: Count):
        super().__init__()

    def at(self, layer: int) -> NoPosition:
        """The scheme of this layer; alternating schemes return another."""
        return self

    def prepare(self, context: Context) -> None:
        """Compute what every layer shares, into `context.position`."""

    def embed(self, x: Float[Tensor, "b t d"], context: Context) -> Float[Tensor, "b t d"]:
        """Put positions into the embedded tokens."""
        return x

    def rotate(
        self, q: Float[Tensor, "b h t k"], k: Float[Tensor, "b g t k"], context: Context
    ) -> tuple[Float[Tensor, "b h t k"], Float[Tensor, "b g t k"]]:
        """Put positions into queries and keys."""
        return q, k

    def bias(self, context: Context) -> Float[Tensor, "#b h t s"] | None:
        """What is added to the attention scores; None is zero, and lets the fast kernels run."""
        return None
