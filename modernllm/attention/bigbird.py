from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

from modernllm.attention.multi_head import SoftmaxAttention
from modernllm.attention.softmax import Scale, Sinks
from modernllm.context import Context
from modernllm.position import NoPosition
from modernllm.quantities import Count, Natural, Positive, Probability


class BigBirdAttention(SoftmaxAttention):
    """A query sees the last `size` keys, the first `globals` and `random` others of its past  (Zaheer et al., 2020)

    The causal form, and of single tokens where the authors take blocks. Which keys are random follows from `seed`, the
    layer and the positions alone: the same in every step and run, however the text is cut.
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
        size: Count = 16,
        globals: Natural = 4,
        random: Natural = 8,
        seed: Natural = 0,
        softcap: Positive | None = None,
        sinks: Sinks = "none",
        scale: Scale = "sqrt",
    ):
        super().__init__(
            dim, n_heads, n_kv_heads, head_dim, layer, position, bias, dropout, qk_norm, softcap, sinks, scale
        )
        self.size, self.globals, self.random = size, globals, random
        self.most_seen = size + globals + random
        self.start = int.from_bytes(sha256(f"{seed}:{layer}".encode()).digest()[:4], "big")

    def visible(self, context: Context) -> Bool[Tensor, "#b 1 t s"] | None:
        if context.key_positions.shape[1] <= self.size:
            return context.mask
        seen = context.seen()[:, 0]
        always = (context.distances() < self.size) | (context.key_positions < self.globals)[:, None]
        return (seen & (always | self.drawn(context, seen & ~always)))[:, None]

    def drawn(self, context: Context, others: Bool[Tensor, "#b t s"]) -> Bool[Tensor, "#b t s"]:
        """`random` of the others of each query, or all where there are fewer: those of the highest random numbers."""
        of_query = scrambled(context.positions ^ self.start)
        numbers = scrambled(of_query[:, :, None] ^ context.key_positions[:, None, :])
        best = numbers.where(others, -1).topk(min(self.random, others.shape[2]), dim=-1).indices
        return torch.zeros_like(others).scatter(-1, best, True) & others


def scrambled(x: Int[Tensor, "*b"]) -> Int[Tensor, "*b"]:
    """A number below 2^32 without a visible pattern for each x below 2^32; no two x share one."""
    for _ in range(2):
        x = ((x >> 16 ^ x) * 0x45D9F3B) & 0xFFFFFFFF
    return x >> 16 ^ x
