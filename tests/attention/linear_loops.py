"""Attentions without a softmax written out: one token after the other, one head after the other."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modernllm.attention.deltanet import DeltaNet
from modernllm.attention.linear import LinearAttention
from modernllm.attention.performer import Performer
from modernllm.attention.recurrent import RecurrentAttention
from modernllm.attention.retention import Retention
from modernllm.batch import Batch
from modernllm.context import Context
from modernllm.position import NoPosition
from modernllm.position.rope import RoPE

DIM, HEADS, SIZE, LENGTH = 12, 4, 6, 11  # a head is not dim / heads here, and time is not heads
KINDS: list[type[RecurrentAttention]] = [LinearAttention, Performer, Retention, DeltaNet]
POSITIONS = [NoPosition, RoPE]


def layer(
    kind: type[RecurrentAttention],
    position: type[NoPosition] = NoPosition,
    n_kv_heads: int | None = None,
    qk_norm: Callable[..., nn.Module] = nn.Identity,
    **settings: float,
) -> RecurrentAttention:
    scheme = position(DIM, HEADS, SIZE, LENGTH)
    return kind(DIM, HEADS, n_kv_heads, SIZE, 0, scheme, bias=True, dropout=0.0, qk_norm=qk_norm, **settings).double()


def context(module: RecurrentAttention, batch: Batch) -> Context:
    made = Context.of(batch)
    module._position[0].prepare(made)
    return made


def texts(rows: int = 2, mask: Tensor | None = None, segments: Tensor | None = None) -> Batch:
    """Rows of LENGTH tokens, of which only padding and documents matter here."""
    return Batch(torch.zeros(rows, LENGTH, dtype=torch.long), mask=mask, segments=segments)


def inputs(rows: int = 2) -> Tensor:
    return torch.randn(rows, LENGTH, DIM, dtype=torch.float64)


def looped(module: RecurrentAttention, x: Tensor, batch: Batch) -> Tensor:
    """The layer in a loop; the state is emptied where a document begins and does not move at padding."""
    given = context(module, batch)
    q, k, v = (
        projection(x).view(*x.shape[:2], HEADS, SIZE).transpose(1, 2) for projection in (module.q, module.k, module.v)
    )
    gate, rotate = module.gate(x), module._position[0].rotate
    mixed = torch.zeros_like(q)
    mask = torch.ones_like(batch.tokens, dtype=torch.bool) if batch.mask is None else batch.mask
    segments = torch.zeros_like(batch.tokens) if batch.segments is None else batch.segments

    def rows_of(step: Callable[[int, int], Callable[[int, bool], Tensor]]) -> None:
        for b in range(len(x)):
            for h in range(HEADS):
                take = step(b, h)
                for t in range(x.shape[1]):
                    if t and segments[b, t] != segments[b, t - 1]:
                        take = step(b, h)
                    mixed[b, h, t] = take(t, bool(mask[b, t]))

    if isinstance(module, LinearAttention):
        q, k = F.elu(q) + 1, F.elu(k) + 1
        turned_q, turned_k = rotate(q, k, given)

        def linear(b: int, h: int) -> Callable[[int, bool], Tensor]:
            matrix, total = torch.zeros(SIZE, SIZE, dtype=x.dtype), torch.zeros(SIZE, dtype=x.dtype)

            def take(t: int, real: bool) -> Tensor:
                if real:
                    matrix.add_(torch.outer(turned_k[b, h, t], v[b, h, t]))
                    total.add_(k[b, h, t])
                return turned_q[b, h, t] @ matrix / (q[b, h, t] @ total + module.eps)

            return take

        rows_of(linear)

    elif isinstance(module, Performer):
        q, k = rotate(q, k, given)
        directions = module.directions.double()

        def features(x: Tensor) -> Tensor:
            x = x / SIZE**0.25
            return torch.stack([(w @ x - x @ x / 2).exp() for w in directions]) / math.sqrt(len(directions))

        def performer(b: int, h: int) -> Callable[[int, bool], Tensor]:
            matrix = torch.zeros(len(directions), SIZE, dtype=x.dtype)
            total = torch.zeros(len(directions), dtype=x.dtype)

            def take(t: int, real: bool) -> Tensor:
                if real:
                    matrix.add_(torch.outer(features(k[b, h, t]), v[b, h, t]))
                    total.add_(features(k[b, h, t]))
                return features(q[b, h, t]) @ matrix / (features(q[b, h, t]) @ total)

            return take

        rows_of(performer)

    elif isinstance(module, Retention):
        q, k = rotate(q, k, given)

        def retention(b: int, h: int) -> Callable[[int, bool], Tensor]:
            matrix, decay = torch.zeros(SIZE, SIZE, dtype=x.dtype), 1 - 2.0**-h / module.horizon

            def take(t: int, real: bool) -> Tensor:
                if real:
                    matrix.mul_(decay).add_(torch.outer(k[b, h, t], v[b, h, t]))
                y = q[b, h, t] @ matrix / math.sqrt(SIZE)
                g = gate[b, t, h * SIZE : (h + 1) * SIZE]
                return g / (1 + (-g).exp()) * y / (y.square().mean() + module.eps).sqrt()

            return take

        rows_of(retention)

    elif isinstance(module, DeltaNet):
        q, k = F.silu(q), F.silu(k)
        q, k = q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True)
        q, k = rotate(q, k, given)
        v = F.silu(v)

        def deltanet(b: int, h: int) -> Callable[[int, bool], Tensor]:
            matrix = torch.zeros(SIZE, SIZE, dtype=x.dtype)

            def take(t: int, real: bool) -> Tensor:
                if real:
                    beta, key = 1 / (1 + (-gate[b, t, h]).exp()), k[b, h, t]
                    forget = torch.eye(SIZE, dtype=x.dtype) - beta * torch.outer(key, key)
                    matrix.copy_(matrix @ forget + beta * torch.outer(v[b, h, t], key))
                y = matrix @ q[b, h, t]
                return y / (y.square().mean() + module.eps).sqrt()

            return take

        rows_of(deltanet)

    return module.out(mixed.transpose(1, 2).flatten(2))
