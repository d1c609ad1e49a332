"""Attention layers against loops over heads, and against each other in their limits (F-07)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from modernllm.attention.cache import KeysAndValues
from modernllm.attention.multi_head import (
    GroupedQueryAttention,
    MultiHeadAttention,
    MultiQueryAttention,
    SoftmaxAttention,
    shared_heads,
)
from modernllm.context import Context
from modernllm.position import NoPosition
from modernllm.position.rope import RoPE

DIM, HEADS, SIZE, LENGTH = 12, 4, 6, 7  # a head is not dim / heads here, and time is not heads
POSITIONS = [NoPosition, RoPE]


def layer(
    kind: type[SoftmaxAttention],
    n_kv_heads: int | None = None,
    position: type[NoPosition] = NoPosition,
    bias: bool = True,
) -> SoftmaxAttention:
    scheme = position(DIM, HEADS, SIZE, LENGTH)
    sizes = (DIM, HEADS, n_kv_heads, SIZE, 0)
    return kind(*sizes, scheme, bias=bias, dropout=0.0, qk_norm=nn.Identity).double()


def context(position: NoPosition) -> Context:
    made = Context(positions=torch.arange(LENGTH)[None])
    position.prepare(made)
    return made


def run(attention: SoftmaxAttention, x: Tensor) -> Tensor:
    return attention(x, context(attention._position[0]))


def loops(attention: SoftmaxAttention, x: Tensor, n_kv_heads: int) -> Tensor:
    """Head h reads rows h k ... (h + 1) k of the projection, and the keys of head h g / heads."""
    (position,) = attention._position
    n_rows, n_tokens = x.shape[:2]

    def heads(projection: nn.Module, n: int) -> Tensor:
        flat = projection(x)
        return torch.stack([flat[:, :, h * SIZE : (h + 1) * SIZE] for h in range(n)], dim=1)

    q, k = position.rotate(heads(attention.q, HEADS), heads(attention.k, n_kv_heads), context(position))
    v, mixed = heads(attention.v, n_kv_heads), torch.zeros(n_rows, n_tokens, HEADS * SIZE, dtype=x.dtype)
    for b in range(n_rows):
        for h in range(HEADS):
            g = h * n_kv_heads // HEADS
            for t in range(n_tokens):
                scores = torch.stack([q[b, h, t] @ k[b, g, s] / math.sqrt(SIZE) for s in range(t + 1)])
                weights = scores.exp() / scores.exp().sum()
                for s in range(t + 1):
                    mixed[b, t, h * SIZE : (h + 1) * SIZE] += weights[s] * v[b, g, s]
    return attention.out(mixed)


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize(
    ("kind", "given", "n_kv_heads"),
    [
        (MultiHeadAttention, None, 4),
        (MultiHeadAttention, 4, 4),
        (GroupedQueryAttention, None, 2),
        (GroupedQueryAttention, 2, 2),
        (GroupedQueryAttention, 1, 1),
        (MultiQueryAttention, None, 1),
        (MultiQueryAttention, 1, 1),
    ],
)
def test_the_formula(
    kind: type[SoftmaxAttention], given: int | None, n_kv_heads: int, position: type[NoPosition]
) -> None:
    attention, x = layer(kind, given, position), torch.randn(2, LENGTH, DIM, dtype=torch.float64)
    with torch.no_grad():
        assert attention.k.weight.shape == attention.v.weight.shape == (n_kv_heads * SIZE, DIM)
        torch.testing.assert_close(run(attention, x), loops(attention, x, n_kv_heads), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("kind", "n_kv_heads"), [(MultiHeadAttention, 4), (MultiQueryAttention, 1)], ids=["mha", "mqa"]
)
def test_grouped_queries_in_their_limits(kind: type[SoftmaxAttention], n_kv_heads: int) -> None:
    """All key heads are multi-head attention, one is multi-query attention, with the same weights by name."""
    grouped, other = layer(GroupedQueryAttention, n_kv_heads, RoPE), layer(kind, None, RoPE)
    other.load_state_dict(grouped.state_dict())
    x = torch.randn(2, LENGTH, DIM, dtype=torch.float64)
    assert torch.equal(run(grouped, x), run(other, x))


@pytest.mark.parametrize(
    ("share", "expected"),
    [
        (0.5, {1: 1, 2: 1, 3: 1, 4: 2, 5: 1, 6: 3, 9: 3, 12: 6, 16: 8, 32: 16}),
        (0.25, {1: 1, 2: 1, 4: 2, 6: 2, 8: 2, 12: 3, 14: 2, 16: 4, 32: 8}),
    ],
)
def test_a_share_of_key_heads(share: float, expected: dict[int, int]) -> None:
    """Always a number that divides the query heads: that share of them, less where it does not, two if there are."""
    assert {n_heads: shared_heads(n_heads, share) for n_heads in expected} == expected


@pytest.mark.parametrize("n_kv_heads", [1, 2])
def test_keys_and_values_copied_to_each_head(n_kv_heads: int) -> None:
    """F-07: repeated head by head (0 0 1 1, not 0 1 0 1), the weights make the same multi-head attention."""
    grouped, multi = layer(GroupedQueryAttention, n_kv_heads, RoPE), layer(MultiHeadAttention, None, RoPE)
    weights = grouped.state_dict()
    for name in ("k.weight", "k.bias", "v.weight", "v.bias"):
        by_head = weights[name].unflatten(0, (n_kv_heads, SIZE))
        weights[name] = torch.cat([by_head[h * n_kv_heads // HEADS] for h in range(HEADS)])
    multi.load_state_dict(weights)
    x = torch.randn(2, LENGTH, DIM, dtype=torch.float64)
    torch.testing.assert_close(run(multi, x), run(grouped, x), rtol=0, atol=1e-12)


def test_the_order_of_heads() -> None:
    """F-07: the values of key head 1 are zero, so query heads 2 and 3 add nothing, and 0 and 1 do."""
    attention, x = (
        layer(GroupedQueryAttention, 2, bias=False),
        torch.randn(1, LENGTH, DIM, dtype=torch.float64),
    )
    nn.init.zeros_(attention.v.weight[SIZE:])
    seen: list[Tensor] = []

    def keep(module: nn.Module, given: object, y: Tensor) -> None:
        seen.append(y)

    attention.attend.register_forward_hook(keep)
    run(attention, x)
    by_head = seen[0].detach().abs().amax((0, 2, 3))
    assert by_head[2:].tolist() == [0.0, 0.0]
    assert float(by_head[:2].min()) > 0.1


@pytest.mark.parametrize(
    ("kind", "n_kv_heads", "message"),
    [
        (GroupedQueryAttention, 3, r"model\.n_kv_heads=3 does not divide model\.n_heads=4: .*\[1, 2, 4\]"),
        (GroupedQueryAttention, 8, r"model\.n_kv_heads=8 does not divide model\.n_heads=4"),
        (MultiHeadAttention, 2, r"attention=mha .*model\.n_kv_heads=2 .*model\.n_heads=4; .*attention=gqa"),
        (MultiQueryAttention, 4, r"attention=mqa .*model\.n_kv_heads=4; .*attention=gqa"),
    ],
)
def test_key_heads_that_do_not_fit(kind: type[SoftmaxAttention], n_kv_heads: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layer(kind, n_kv_heads)


@pytest.mark.parametrize(("kind", "n_kv_heads"), [(MultiHeadAttention, 4), (MultiQueryAttention, 1)])
def test_the_cache_holds_key_heads_only(kind: type[SoftmaxAttention], n_kv_heads: int) -> None:
    state = layer(kind).state(batch=3, length=10)
    assert state.elements() == 2 * 3 * 10 * n_kv_heads * SIZE
    assert state.keys.rows.dtype == state.values.rows.dtype == torch.float64


def test_the_cache_appends_and_says_when_it_is_full() -> None:
    state = KeysAndValues(2, 1, 5, 4, like=torch.zeros(1))
    k, v = torch.randn(2, 2, 1, 5, 4)
    for start, end in ((0, 3), (3, 4), (4, 5)):
        keys, values = state.extend(k[:, :, start:end], v[:, :, start:end])
        assert torch.equal(keys, k[:, :, :end])
        assert torch.equal(values, v[:, :, :end])
    with pytest.raises(ValueError, match="the cache holds 5 tokens, 6 are needed"):
        state.extend(k[:, :, :1], v[:, :, :1])
