"""Positions: one module per stack, `prepare(context)` once per forward, then `embed`, `rotate` and `bias`.

The base class does nothing, which is what no positional encoding is.
"""

from __future__ import annotations

from jaxtyping import Float, Int
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

    def sized(self, head_dim: int) -> NoPosition:
        """What turns queries and keys of another size (MLA's, of a part of each head). The asker prepares it."""
        return NoPosition(dim=head_dim, n_heads=1, head_dim=head_dim, context_length=1)

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


class ScoreBias(NoPosition):
    """Schemes that add to each score something of the distance, so they need an attention that has scores."""

    def of_distance(self, distance: Int[Tensor, "#b t s"]) -> Float[Tensor, "#b h t s"]:
        """What is added where a query lies `distance` tokens of its text after a key (before it, if negative)."""
        raise NotImplementedError

    def prepare(self, context: Context) -> None:
        context.position = self.of_distance(context.distances())

    def bias(self, context: Context) -> Float[Tensor, "#b h t s"] | None:
        return context.position
