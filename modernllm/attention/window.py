from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor, nn

from modernllm.attention.cache import KeptWindow, KeysAndValues
from modernllm.attention.multi_head import SoftmaxAttention, shared_heads
from modernllm.attention.softmax import Scale, Sinks
from modernllm.context import Context
from modernllm.position import NoPosition
from modernllm.quantities import Count, Natural, Positive, Probability, Share


class WindowAttention(SoftmaxAttention):
    """Query i sees keys i - size + 1 ... i  (Beltagy et al., 2020; Mistral)

    L layers carry what lies up to L (size - 1) tokens back. The cache keeps `size` tokens, however long the text.
    `n_kv_heads=None` is a key head for every query head, or with a `kv_share` below 1 that share of them.
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
        size: Count = 32,
        kv_share: Share = 1.0,
        softcap: Positive | None = None,
        sinks: Sinks = "none",
        scale: Scale = "sqrt",
    ):
        if kv_share < 1:
            n_kv_heads = n_kv_heads or shared_heads(n_heads, kv_share)
        super().__init__(
            dim, n_heads, n_kv_heads, head_dim, layer, position, bias, dropout, qk_norm, softcap, sinks, scale
        )
        self.size = self.most_seen = size

    def visible(self, context: Context) -> Bool[Tensor, "#b 1 t s"] | None:
        if context.key_positions.shape[1] <= self.size:
            return context.mask
        return context.seen() & (context.distances() < self.size)[:, None]

    def mix(
        self,
        q: Float[Tensor, "b h t k"],
        k: Float[Tensor, "b g s k"],
        v: Float[Tensor, "b g s k"],
        mask: Bool[Tensor, "#b 1 t all"] | None,
        bias: Float[Tensor, "#b h t all"] | None,
    ) -> Float[Tensor, "b h t k"]:
        recent = slice(-k.shape[2], None)  # of all keys the cache gives back those within reach
        mask = mask if mask is None else mask[..., recent]
        return super().mix(q, k, v, mask, bias if bias is None else bias[..., recent])

    def state(self, batch: int, length: int) -> KeysAndValues:
        kept = min(length, self.size)
        return KeysAndValues(batch, self.n_kv_heads, kept, self.head_dim, self.k.weight, KeptWindow)
