"""What attentions without a softmax share: projections, masks, and a state that does not grow."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.attention.cache import State
from modernllm.context import Context
from modernllm.linear import Linear
from modernllm.position import NoPosition, ScoreBias
from modernllm.quantities import Count, Natural, Probability


class Memory(State):
    """Tensors of fixed size in place of a cache."""

    def __init__(self, *parts: Tensor):
        self.parts = parts

    def tensors(self) -> tuple[Tensor, ...]:
        return self.parts


class RecurrentAttention(nn.Module):
    """out(mix(q, k, v, gate(x))), where `mix` reads and renews a `Memory`.

    `n_kv_heads=None` is a key and value head for every query head; fewer are shared by groups of query heads, each
    with a state of its own. All that is summed over tokens is summed in float32 at least.
    """

    name: str
    """Its choice on the command line."""

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
    ):
        super().__init__()
        n_kv_heads = n_kv_heads or n_heads
        if n_heads % n_kv_heads:
            raise ValueError(
                f"model.n_kv_heads={n_kv_heads} does not divide model.n_heads={n_heads}: "
                f"choose one of {[g for g in range(1, n_heads + 1) if n_heads % g == 0]}"
            )
        scheme = position.at(layer)
        if isinstance(scheme, ScoreBias):
            raise ValueError(
                f"position={type(scheme).__name__.lower()} adds to the scores of an attention and "
                f"attention={self.name}, in layer {layer}, has none: choose position=rope or another that turns or "
                "embeds, or attention=mha"
            )
        self.n_heads, self.group, self.head_dim, self.layer = n_heads, n_heads // n_kv_heads, head_dim, layer
        self.q = Linear(dim, n_heads * head_dim, bias, role="score")
        self.k = Linear(dim, n_kv_heads * head_dim, bias, role="score")
        self.v = Linear(dim, n_kv_heads * head_dim, bias, role="hidden")
        self.q_norm, self.k_norm = qk_norm(n_heads, head_dim), qk_norm(n_kv_heads, head_dim)
        self.v_norm = qk_norm(n_kv_heads, head_dim, values=True)
        self.gate: nn.Module = nn.Identity()
        self.out = Linear(n_heads * head_dim, dim, bias, role="stream")
        self.dropout = nn.Dropout(dropout)
        # one module serves all layers: it belongs to the stack, so it is not registered here
        self._position = (scheme,)

    def forward(self, x: Float[Tensor, "b t d"], context: Context) -> Float[Tensor, "b t d"]:
        memory = self.state(len(x), 0) if context.states is None else context.states[self.layer]
        assert isinstance(memory, Memory)
        q, k = self.q_norm(self.heads(self.q(x))), self.k_norm(self.heads(self.k(x)))
        v = self.v_norm(self.heads(self.v(x)))
        k, v = (part.repeat_interleave(self.group, 1) for part in (k, v))
        gate = self.gate(x)
        with torch.autocast(x.device.type, enabled=False):
            y = self.mix(exact(q), exact(k), exact(v), exact(gate), context, memory)
        return self.dropout(self.out(y.to(v.dtype).transpose(1, 2).flatten(2)))

    def mix(
        self,
        q: Float[Tensor, "b h t k"],
        k: Float[Tensor, "b h t k"],
        v: Float[Tensor, "b h t k"],
        gate: Float[Tensor, "b t _"],
        context: Context,
        memory: Memory,
    ) -> Float[Tensor, "b h t k"]:
        raise NotImplementedError

    def state(self, batch: int, length: int) -> Memory:
        """Of nothing so far, for `batch` rows; the same for any `length`."""
        raise NotImplementedError

    def flops(self, length: int) -> float:
        """Token by token: what it takes to renew the state and to read it."""
        raise NotImplementedError

    def zeros(self, *shape: int) -> Tensor:
        weight = self.k.weight
        return weight.new_zeros(shape, dtype=torch.promote_types(weight.dtype, torch.float32))

    def heads(self, x: Float[Tensor, "b t hk"]) -> Float[Tensor, "b h t k"]:
        return x.unflatten(2, (-1, self.head_dim)).transpose(1, 2)


def exact(x: Tensor) -> Tensor:
    """In float32 at least: what sums over many tokens, or shrinks from token to token, is lost in less."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def shown(x: Float[Tensor, "b h t n"], context: Context, hidden: float = 0.0) -> Float[Tensor, "b h t n"]:
    """With `hidden` in place of padding."""
    return x if context.real is None else x.masked_fill(~context.real[:, None, :, None], hidden)
