from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor, nn

from modernllm.attention.cache import KeysAndValues
from modernllm.attention.softmax import Scale, Sinks, keys_seen, make_attend
from modernllm.context import Context
from modernllm.linear import Linear
from modernllm.position import NoPosition
from modernllm.quantities import Count, Natural, Positive, Probability, Share


class SoftmaxAttention(nn.Module):
    """W_out [softmax(q_h k_g^T / sqrt(k)) v_g]_h, with g = h n_kv_heads / n_heads rounded down

    The steps of `forward` are what the attentions that are built on it replace. Without `n_kv_heads` there are as many
    key as query heads.
    """

    most_seen: int | None = None
    """Keys that a query may see; None is all before it."""

    def __init__(
        self,
        dim: Count,
        n_heads: Count,
        n_kv_heads: Count | None,
        head_dim: Count,
        layer: Natural,
        position: NoPosition,
        bias: bool,
        dropout: Probability,
        qk_norm: Callable[..., nn.Module],
        softcap: Positive | None = None,
        sinks: Sinks = "none",
        scale: Scale = "sqrt",
    ):
        super().__init__()
        n_kv_heads = self.kv_heads(n_heads, n_kv_heads)
        if n_heads % n_kv_heads:
            raise ValueError(
                f"model.n_kv_heads={n_kv_heads} does not divide model.n_heads={n_heads}: "
                f"choose one of {[g for g in range(1, n_heads + 1) if n_heads % g == 0]}"
            )
        self.head_dim, self.n_kv_heads, self.layer = head_dim, n_kv_heads, layer
        self.q = Linear(dim, n_heads * head_dim, bias, role="score")
        self.k = Linear(dim, n_kv_heads * head_dim, bias, role="score")
        self.v = Linear(dim, n_kv_heads * head_dim, bias, role="hidden")
        self.q_norm, self.k_norm = qk_norm(n_heads, head_dim), qk_norm(n_kv_heads, head_dim)
        self.v_norm = qk_norm(n_kv_heads, head_dim, values=True)
        self.attend = make_attend(n_heads, head_dim, dropout, softcap, sinks, scale)
        self.out = Linear(n_heads * head_dim, dim, bias, role="stream")
        self.dropout = nn.Dropout(dropout)
        # one module serves all layers: it belongs to the stack, so it is not registered here
        self._position = (position.at(layer),)

    @staticmethod
    def kv_heads(n_heads: int, n_kv_heads: int | None) -> int:
        return n_kv_heads or n_heads

    def forward(self, x: Float[Tensor, "b t d"], context: Context) -> Float[Tensor, "b t d"]:
        (position,) = self._position
        q, k = self.q_norm(self._heads(self.q(x))), self.k_norm(self._heads(self.k(x)))
        q, k = position.rotate(q, k, context)
        v = self.v_norm(self._heads(self.v(x)))
        if context.states is not None:
            kept = context.states[self.layer]
            assert isinstance(kept, KeysAndValues)
            k, v = kept.extend(k, v)
        y = self.mix(q, k, v, self.visible(context), position.bias(context))
        return self.dropout(self.out(self.gather(y, x)))

    def _heads(self, x: Float[Tensor, "b t hk"]) -> Float[Tensor, "b h t k"]:
        return x.view(*x.shape[:2], -1, self.head_dim).transpose(1, 2)

    def visible(self, context: Context) -> Bool[Tensor, "#b 1 t s"] | None:
        """Which keys a query may see; None is all that came before."""
        return context.mask

    def mix(
        self,
        q: Float[Tensor, "b h t k"],
        k: Float[Tensor, "b g s k"],
        v: Float[Tensor, "b g s _"],
        mask: Bool[Tensor, "#b 1 t _"] | None,
        bias: Float[Tensor, "#b h t _"] | None,
    ) -> Float[Tensor, "b _ t _"]:
        """What each head takes from the values."""
        return self.attend(q, k, v, mask, bias)

    def gather(self, y: Float[Tensor, "b _ t _"], x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t hk"]:
        """All heads side by side."""
        return y.transpose(1, 2).flatten(2)

    def flops(self, length: int) -> float:
        """Of scores and values."""
        return 4.0 * self.q.out_features * keys_seen(length, self.most_seen)

    def state(self, batch: int, length: int) -> KeysAndValues:
        """An empty cache for `batch` rows of up to `length` tokens."""
        return KeysAndValues(batch, self.n_kv_heads, length, self.head_dim, like=self.k.weight)


class GroupedQueryAttention(SoftmaxAttention):
    """Query heads in n_kv_heads groups, each group with one key and value head  (Ainslie et al., 2023)

    `n_kv_heads=None` takes `kv_share` of the query heads, as `shared_heads` rounds it.
    """

    def __init__(
        self,
        dim: Count,
        n_heads: Count,
        n_kv_heads: Count | None,
        head_dim: Count,
        layer: Natural,
        position: NoPosition,
        bias: bool,
        dropout: Probability,
        qk_norm: Callable[..., nn.Module],
        kv_share: Share = 0.5,
        softcap: Positive | None = None,
        sinks: Sinks = "none",
        scale: Scale = "sqrt",
    ):
        n_kv_heads = n_kv_heads or shared_heads(n_heads, kv_share)
        super().__init__(
            dim, n_heads, n_kv_heads, head_dim, layer, position, bias, dropout, qk_norm, softcap, sinks, scale
        )


def shared_heads(n_heads: int, share: float) -> int:
    """Key heads for groups of at least two query heads: as many as divide them, up to that share of them, or two."""
    most = max(share * n_heads, 2)
    return max((g for g in range(1, n_heads) if n_heads % g == 0 and g <= most), default=1)


class MultiHeadAttention(SoftmaxAttention):
    """A key and value head for every query head  (Vaswani et al., 2017)"""

    @staticmethod
    def kv_heads(n_heads: int, n_kv_heads: int | None) -> int:
        if n_kv_heads not in (None, n_heads):
            raise ValueError(
                f"attention=mha has as many key as query heads: model.n_kv_heads={n_kv_heads} and "
                f"model.n_heads={n_heads}; choose attention=gqa, or leave model.n_kv_heads out"
            )
        return n_heads


class MultiQueryAttention(SoftmaxAttention):
    """One key and value head for all query heads  (Shazeer, 2019)"""

    @staticmethod
    def kv_heads(n_heads: int, n_kv_heads: int | None) -> int:
        if n_kv_heads not in (None, 1):
            raise ValueError(
                f"attention=mqa has one key head: model.n_kv_heads={n_kv_heads}; choose attention=gqa, "
                "or leave model.n_kv_heads out"
            )
        return 1
