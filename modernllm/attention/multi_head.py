from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from modernllm.attention.attend import Attend
from modernllm.attention.cache import KeysAndValues
from modernllm.context import Context
from modernllm.linear import Linear
from modernllm.position import NoPosition
from modernllm.quantities import Count, Natural, Probability


class GroupedQueryAttention(nn.Module):
    """Query heads in n_kv_heads groups, each group with one key and value head  (Ainslie et al., 2023)

    `n_kv_heads=None` takes half as many as query heads.
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
        qk_norm: Callable[[int, int], nn.Module],
    ):
        super().__init__()
        n_kv_heads = self.kv_heads(n_heads, n_kv_heads)
        if n_heads % n_kv_heads:
            raise ValueError(
                f"model.n_kv_heads={n_kv_heads} does not divide model.n_heads={n_heads}: "
                f"choose one of {[g for g in range(1, n_heads + 1) if n_heads % g == 0]}"
            )
        self.head_dim, self.n_kv_heads, self.layer = head_dim, n_kv_heads, layer
        self.q = Linear(dim, n_heads * head_dim, bias, role="hidden")
        self.k = Linear(dim, n_kv_heads * head_dim, bias, role="hidden")
        self.v = Linear(dim, n_kv_heads * head_dim, bias, role="hidden")
        self.q_norm, self.k_norm = qk_norm(n_heads, head_dim), qk_norm(n_kv_heads, head_dim)
        self.attend = Attend(dropout)
        self.out = Linear(n_heads * head_dim, dim, bias, role="stream")
        self.dropout = nn.Dropout(dropout)
        # one module serves all layers: it belongs to the stack, so it is not registered here
        self._position = (position.at(layer),)

    @staticmethod
    def kv_heads(n_heads: int, n_kv_heads: int | None) -> int:
        return n_kv_heads or max(1, n_heads // 2)

    def forward(self, x: Float[Tensor, "b t d"], context: Context) -> Float[Tensor, "b t d"]:
        (position,) = self._position
        q, k = self.q_norm(self._heads(self.q(x))), self.k_norm(self._heads(self.k(x)))
        q, k = position.rotate(q, k, context)
        v = self._heads(self.v(x))
        if context.states is not None:
            k, v = context.states[self.layer].extend(k, v)
        y = self.attend(q, k, v, context.mask, position.bias(context))
        return self.dropout(self.out(y.transpose(1, 2).flatten(2)))

    def _heads(self, x: Float[Tensor, "b t hk"]) -> Float[Tensor, "b h t k"]:
        return x.unflatten(2, (-1, self.head_dim)).transpose(1, 2)

    def state(self, batch: int, length: int) -> KeysAndValues:
        """An empty cache for `batch` rows of up to `length` tokens."""
        return KeysAndValues(batch, self.n_kv_heads, length, self.head_dim, like=self.k.weight)


class MultiHeadAttention(GroupedQueryAttention):
    """A key and value head for every query head  (Vaswani et al., 2017)"""

    @staticmethod
    def kv_heads(n_heads: int, n_kv_heads: int | None) -> int:
        if n_kv_heads not in (None, n_heads):
            raise ValueError(
                f"attention=mha has as many key as query heads: model.n_kv_heads={n_kv_heads} and "
                f"model.n_heads={n_heads}; choose attention=gqa, or leave model.n_kv_heads out"
            )
        return n_heads


class MultiQueryAttention(GroupedQueryAttention):
    """One key and value head for all query heads  (Shazeer, 2019)"""

    @staticmethod
    def kv_heads(n_heads: int, n_kv_heads: int | None) -> int:
        if n_kv_heads not in (None, 1):
            raise ValueError(
                f"attention=mqa has one key head: model.n_kv_heads={n_kv_heads}; choose attention=gqa, "
                "or leave model.n_kv_heads out"
            )
        return 1
