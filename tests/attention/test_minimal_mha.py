"""Multi-head attention with a cache as one writes it on half a page, as an oracle; and what a mask does to it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from modernllm.attention.multi_head import MultiHeadAttention
from modernllm.batch import Batch
from modernllm.context import Context
from modernllm.position import NoPosition

DIM, HEADS, LENGTH = 32, 4, 11


class Minimal(nn.Module):
    """`allowed` is True where a key may be seen and *replaces* the causal mask; `past` are keys and values so far."""

    def __init__(self, width: int, n_heads: int):
        super().__init__()
        self.n_heads, self.size = n_heads, width // n_heads
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(
        self, x: Tensor, allowed: Tensor | None = None, past: tuple[Tensor, Tensor] | None = None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        q, k, v = (self.split(project(x)) for project in (self.q, self.k, self.v))
        seen_before = 0
        if past is not None:
            seen_before = past[0].shape[2]
            k, v = torch.cat((past[0], k), 2), torch.cat((past[1], v), 2)
        if allowed is None:
            query = seen_before + torch.arange(x.shape[1])
            allowed = torch.arange(k.shape[2]) <= query[:, None]
        scores = torch.einsum("bhtk,bhsk->bhts", q, k) / math.sqrt(self.size)
        weights = scores.masked_fill(~allowed, -math.inf).softmax(-1)
        read = torch.einsum("bhts,bhsk->bthk", weights, v)
        return self.out(read.reshape(x.shape)), (k, v)

    def split(self, x: Tensor) -> Tensor:
        return x.reshape(*x.shape[:2], self.n_heads, self.size).permute(0, 2, 1, 3)


def pair() -> tuple[Minimal, MultiHeadAttention]:
    """The same weights, by the same names."""
    minimal, scheme = Minimal(DIM, HEADS), NoPosition(DIM, HEADS, DIM // HEADS, LENGTH)
    sizes = (DIM, HEADS, None, DIM // HEADS, 0, scheme)
    ours = MultiHeadAttention(*sizes, bias=False, dropout=0.0, qk_norm=nn.Identity)
    ours.load_state_dict(minimal.state_dict())
    return minimal, ours


def context(n_tokens: int, n_rows: int = 3, **given: object) -> Context:
    states, past = given.pop("states", None), given.pop("past", 0)
    return Context.of(Batch(torch.zeros(n_rows, n_tokens, dtype=torch.int64), **given), states, past)  # type: ignore[arg-type]


def agree(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-6)


@torch.no_grad()
def test_at_once() -> None:
    (minimal, ours), x = pair(), torch.randn(3, LENGTH, DIM)
    agree(ours(x, context(LENGTH)), minimal(x)[0])


@torch.no_grad()
@pytest.mark.parametrize("parts", [[1] * LENGTH, [5, 1, 1, 4], [5, 3, 3]], ids=lambda parts: f"{len(parts)} parts")
def test_with_a_cache(parts: list[int]) -> None:
    """Keys, values and results, part by part, and both are what they are at once."""
    (minimal, ours), x = pair(), torch.randn(3, LENGTH, DIM)
    state, past, seen = ours.state(3, LENGTH), None, 0
    expected = minimal(x)[0]
    for part in x.split(parts, 1):
        result, past = minimal(part, past=past)
        agree(ours(part, context(part.shape[1], states=[state], past=seen)), result)
        seen += part.shape[1]
        agree(result, expected[:, seen - part.shape[1] : seen])
        agree(state.keys.rows[:, :, :seen], past[0])  # type: ignore[attr-defined]
        agree(state.values.rows[:, :, :seen], past[1])  # type: ignore[attr-defined]


@torch.no_grad()
def test_a_mask_of_padding_never_shows_the_future() -> None:
    """Given to the oracle it replaces causality, and the first token sees the last; to ours it is added."""
    (minimal, ours), x = pair(), torch.randn(3, LENGTH, DIM)
    changed = x.clone()
    changed[:, -1] += 1
    real = torch.ones(3, LENGTH, dtype=torch.bool)
    real[1, -4:] = False
    padding = real[:, None, None, :]
    assert float((minimal(changed, padding)[0] - minimal(x, padding)[0])[0, 0].abs().max()) > 1e-3  # the future
    assert torch.equal(ours(changed, context(LENGTH, mask=real))[:, :-1], ours(x, context(LENGTH, mask=real))[:, :-1])
    both = padding & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    agree(ours(x, context(LENGTH, mask=real))[real], minimal(x, both)[0][real])
    agree(ours(x, context(LENGTH, mask=torch.ones_like(real))), minimal(x)[0])


@torch.no_grad()
def test_padding_on_the_left_of_a_causal_mask() -> None:
    """A query without a key is NaN in the oracle, and zero in ours; all others agree."""
    (minimal, ours), x = pair(), torch.randn(3, LENGTH, DIM)
    real = torch.ones(3, LENGTH, dtype=torch.bool)
    real[1, :4], real[2, :1] = False, False
    both = real[:, None, None, :] & torch.ones(LENGTH, LENGTH, dtype=torch.bool).tril()
    expected, found = minimal(x, both)[0], ours(x, context(LENGTH, mask=real))
    assert torch.equal(expected.isnan().all(-1), ~real)
    assert torch.equal(found[~real], torch.zeros_like(found[~real]))
    agree(found[real], expected[real])


def test_masks_that_would_replace_causality_are_refused() -> None:
    """Of queries and keys, and of numbers. (Where shapes are checked that finds them first.)"""
    tokens, square = torch.zeros(3, LENGTH, dtype=torch.int64), torch.ones(3, 1, LENGTH, LENGTH, dtype=torch.bool)
    refused = (ValueError, TypeError)
    with pytest.raises(
        refused, match=r"Batch\.mask has shape \(3, 1, 11, 11\): should be that of the tokens|mask: Bool"
    ):
        Batch(tokens, mask=square)
    for numbers in (torch.zeros(3, LENGTH), torch.ones(3, LENGTH, dtype=torch.int64)):
        with pytest.raises(refused, match=rf"Batch\.mask is {numbers.dtype}: should be torch\.bool|mask: Bool"):
            Batch(tokens, mask=numbers)
    with pytest.raises(refused, match=r"Context\.mask is torch\.float32: should be torch\.bool|mask: Bool"):
        Context(torch.arange(LENGTH)[None], mask=torch.zeros(1, 1, LENGTH, LENGTH))


@torch.no_grad()
def test_the_shapes_of_eight_heads() -> None:
    """10 tokens of width 512: q, k and v are 10 x 64 for each of 8 heads, scores 10 x 10, and the result 10 x 512."""
    scheme = NoPosition(512, 8, 64, 10)
    ours = MultiHeadAttention(512, 8, None, 64, 0, scheme, bias=False, dropout=0.0, qk_norm=nn.Identity)
    shapes: dict[str, tuple[int, ...]] = {}
    for name, module in ours.named_modules():
        module.register_forward_hook(lambda module, given, y, name=name: shapes.update({name: tuple(y.shape)}))
    ours.attend.register_forward_pre_hook(
        lambda module, given: shapes.update({part: tuple(x.shape) for part, x in zip("qkv", given, strict=False)})
    )
    ours(torch.randn(1, 10, 512), context(10, 1))
    assert [shapes[part] for part in "qkv"] == [(1, 8, 10, 64)] * 3
    assert shapes["attend"] == (1, 8, 10, 64)
    assert shapes["out"] == shapes[""] == (1, 10, 512)
