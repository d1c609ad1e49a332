"""Single attention layers in float64 with parameters unlike those of a start, and loops to hold them against."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from modernllm.batch import Batch
from modernllm.context import Context
from modernllm.norm.rmsnorm import RMSNorm
from modernllm.position import NoPosition

DIM, HEADS, SIZE = 12, 4, 6  # a head is not dim / heads here
NORM = partial(RMSNorm, eps=1e-5)


def made(
    kind: Callable[..., nn.Module],
    n_kv_heads: int | None = None,
    position: Callable[..., NoPosition] = NoPosition,
    layer: int = 0,
    bias: bool = False,
    dropout: float = 0.0,
    qk_norm: Callable[..., nn.Module] = nn.Identity,
    **keys: Any,
) -> Any:
    scheme = position(DIM, HEADS, SIZE, 64)
    module = kind(DIM, HEADS, n_kv_heads, SIZE, layer, scheme, bias=bias, dropout=dropout, qk_norm=qk_norm, **keys)
    for parameter in module.parameters():
        nn.init.normal_(parameter, 0.0, 0.5)
    return module.double()


def text(n_tokens: int, n_rows: int = 2) -> Tensor:
    return torch.randn(n_rows, n_tokens, DIM, dtype=torch.float64)


def prepared(attention: Any, x: Tensor, states: Any = None, past: int = 0, **batch: Tensor) -> Context:
    tokens = torch.zeros(x.shape[:2], dtype=torch.int64)
    context = Context.of(Batch(tokens, **batch), states, past)
    attention._position[0].prepare(context)
    return context


def run(attention: Any, x: Tensor, **batch: Tensor) -> Tensor:
    with torch.no_grad():
        return attention(x, prepared(attention, x, **batch))


def decoded(attention: Any, x: Tensor, parts: list[int], state: Any = None) -> Tensor:
    """In parts of these lengths, with a cache."""
    state = state or attention.state(len(x), x.shape[1])
    states, past, y = [state] * (attention.layer + 1), 0, []
    for part in x.split(parts, dim=1):
        with torch.no_grad():
            y.append(attention(part, prepared(attention, part, states, past)))
        past += part.shape[1]
    return torch.cat(y, 1)


def heads(x: Tensor, size: int = SIZE) -> Tensor:
    """`size` numbers after the other."""
    return torch.stack([x[:, :, start : start + size] for start in range(0, x.shape[2], size)], dim=1)


def weights(q: Tensor, k: Tensor, t: int, seen: Iterable[int], scale: float) -> dict[int, Tensor]:
    """Of the keys [s k] that query t of [t k] sees."""
    scores = {s: (q[t] @ k[s] * scale).exp() for s in seen}
    return {s: score / sum(scores.values()) for s, score in scores.items()}


def loops(attention: Any, x: Tensor, sees: Callable[[int], Iterable[int]]) -> Tensor:
    """What each head [b h t k] reads where query t sees the keys `sees(t)`."""
    position = attention._position[0]
    q, k, v = (heads(part(x)) for part in (attention.q, attention.k, attention.v))
    q, k = position.rotate(q, k, prepared(attention, x))
    y, group = torch.zeros_like(q), q.shape[1] // k.shape[1]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for t in range(q.shape[2]):
                for s, weight in weights(q[b, h], k[b, h // group], t, sees(t), 1 / math.sqrt(SIZE)).items():
                    y[b, h, t] += weight * v[b, h // group, s]
    return y.detach()


def side_by_side(y: Tensor) -> Tensor:
    return torch.cat(list(y.unbind(1)), -1)


def equal(actual: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(actual.detach(), expected.detach(), rtol=0, atol=tolerance)
