from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.attention.cache import Kept, State
from modernllm.attention.softmax import Scale, Sinks, keys_seen, make_attend
from modernllm.context import Context
from modernllm.linear import Linear
from modernllm.position import NoPosition
from modernllm.quantities import Count, Natural, Positive, Probability


class LatentAttention(nn.Module):
    """Keys [W_k,h c; r] and values W_v,h c of all heads from one latent c = norm(W_down x)  (MLA; DeepSeek-V2, 2024)

    `rope` dimensions of queries and keys, r = R(W_r x) one for all heads, carry the positions: R is what the position
    encoding does to queries and keys, if anything. The cache keeps c and r, and reads them as keys and values of a
    single head, with W_k taken to the queries and W_v to what was read.

    `q_rank=None` makes queries of x, else they come from a latent of their own. `nope`, the other dimensions of
    a key, and `value` are head_dim unless set, `rope` half of it, `kv_rank` four times it. A bias goes to what reads x
    and to `out`.
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
        norm: Callable[[int], nn.Module],
        q_rank: Count | None = None,
        kv_rank: Count | None = None,
        nope: Count | None = None,
        rope: Count | None = None,
        value: Count | None = None,
        softcap: Positive | None = None,
        sinks: Sinks = "none",
        scale: Scale = "sqrt",
    ):
        super().__init__()
        _refuse(n_heads, n_kv_heads, qk_norm(n_heads, head_dim))
        kv_rank, nope, value = kv_rank or 4 * head_dim, nope or head_dim, value or head_dim
        rope = rope or max(2, head_dim // 4 * 2)
        self.layer, self.n_heads, self.nope, self.rope = layer, n_heads, nope, rope
        self.q_down = Linear(dim, q_rank, bias, role="score") if q_rank else nn.Identity()
        self.q_norm = norm(q_rank) if q_rank else nn.Identity()
        self.q = Linear(q_rank or dim, n_heads * (nope + rope), bias and not q_rank, role="score")
        self.kv_down = Linear(dim, kv_rank, bias, role="hidden")
        self.kv_norm = norm(kv_rank)
        self.k = Linear(kv_rank, n_heads * nope, False, role="score")
        self.v = Linear(kv_rank, n_heads * value, False, role="hidden")
        self.k_rope = Linear(dim, rope, bias, role="score")
        self.attend = make_attend(n_heads, nope + rope, dropout, softcap, sinks, scale)
        self.out = Linear(n_heads * value, dim, bias, role="stream")
        self.dropout = nn.Dropout(dropout)
        # these belong to the stack, not to the layer
        self._position, self._turning = (position.at(layer),), (position.at(layer).sized(rope),)

    def forward(self, x: Float[Tensor, "b t d"], context: Context) -> Float[Tensor, "b t d"]:
        ((position,), (turning,)) = self._position, self._turning
        q, turned = self._heads(self.q(self.q_norm(self.q_down(x)))).split((self.nope, self.rope), -1)
        latent, key = self.kv_norm(self.kv_down(x))[:, None], self.k_rope(x)[:, None]
        own = Context(context.positions, states=context.states, past=context.past, length=context.length)
        turning.prepare(own)
        turned, key = turning.rotate(turned, key, own)
        read = self._directly if context.states is None else self._from_latents
        y = read(q, turned, latent, key, context, position.bias(context))
        return self.dropout(self.out(y.transpose(1, 2).flatten(2)))

    def _directly(
        self, q: Tensor, turned: Tensor, latent: Tensor, key: Tensor, context: Context, bias: Tensor | None
    ) -> Float[Tensor, "b h t n"]:
        k, v = self._heads(self.k(latent[:, 0])), self._heads(self.v(latent[:, 0]))
        keys = torch.cat((k, key.expand(-1, self.n_heads, -1, -1)), -1)
        return self.attend(torch.cat((q, turned), -1), keys, v, context.mask, bias)

    def _from_latents(
        self, q: Tensor, turned: Tensor, latent: Tensor, key: Tensor, context: Context, bias: Tensor | None
    ) -> Float[Tensor, "b h t n"]:
        assert context.states is not None
        kept = context.states[self.layer]
        assert isinstance(kept, LatentsAndKeys)
        latent, key = kept.extend(latent, key)
        w_k, w_v = (w.unflatten(0, (self.n_heads, -1)) for w in (self.k.weight, self.v.weight))
        queries = torch.cat((q @ w_k, turned), -1)
        return self.attend(queries, torch.cat((latent, key), -1), latent, context.mask, bias) @ w_v.mT

    def _heads(self, x: Float[Tensor, "b t hk"]) -> Float[Tensor, "b h t k"]:
        return x.unflatten(2, (self.n_heads, -1)).transpose(1, 2)

    def flops(self, length: int) -> float:
        """Of scores and values: the latents are multiplied out for a text that is read at once."""
        return 2.0 * (self.q.out_features + self.v.out_features) * keys_seen(length)

    def state(self, batch: int, length: int) -> LatentsAndKeys:
        """An empty cache for `batch` rows of up to `length` tokens."""
        return LatentsAndKeys(batch, length, self.k.in_features, self.rope, like=self.k.weight)


class LatentsAndKeys(State):
    """What MLA keeps: the latent of a token and the turned part of its key."""

    def __init__(self, batch: int, length: int, kv_rank: int, rope: int, like: Tensor):
        self.latents, self.keys = Kept(batch, 1, length, kv_rank, like), Kept(batch, 1, length, rope, like)

    def extend(
        self, latent: Float[Tensor, "b 1 t c"], key: Float[Tensor, "b 1 t r"]
    ) -> tuple[Float[Tensor, "b 1 s c"], Float[Tensor, "b 1 s r"]]:
        """Append, and return all so far."""
        return self.latents.extend(latent), self.keys.extend(key)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.latents.rows, self.keys.rows


def _refuse(n_heads: int, n_kv_heads: int | None, qk_norm: nn.Module) -> None:
    if n_kv_heads not in (None, n_heads):
        raise ValueError(
            f"attention=mla makes keys for every head of one latent: model.n_kv_heads={n_kv_heads}; leave it out and "
            "set model.attention.kv_rank, or choose attention=gqa"
        )
    if not isinstance(qk_norm, nn.Identity):
        raise ValueError(
            "attention=mla norms its latents and its cache keeps no keys to norm, so it cannot work with qk_norm "
            f"({type(qk_norm).__name__}): choose qk_norm=none or another attention"
        )
