"""Attentions without a softmax against their loops: in one part, in several, token by token; padding, documents."""

from __future__ import annotations

import pytest
import torch
from linear_loops import (
    DIM,
    HEADS,
    KINDS,
    LENGTH,
    POSITIONS,
    SIZE,
    context,
    inputs,
    layer,
    looped,
    texts,
)
from torch import Tensor, nn

from modernllm.attention import recurrent_scan
from modernllm.attention.deltanet import DeltaNet
from modernllm.attention.linear import LinearAttention
from modernllm.attention.performer import Performer
from modernllm.attention.recurrent import Memory, RecurrentAttention
from modernllm.attention.retention import Retention
from modernllm.batch import Batch
from modernllm.context import Context
from modernllm.norm.rmsnorm import RMSNorm
from modernllm.position import NoPosition
from modernllm.position.alibi import ALiBi
from modernllm.position.rope import RoPE
from modernllm.position.t5 import T5
from modernllm.qk_norm.head import HeadNorm

MASK = torch.tensor([[1] * 11, [0, 0, 1, 1, 1, 1, 0, 1, 1, 1, 0]]).bool()  # to the left, between, to the right
SEGMENTS = torch.tensor([[0] * 3 + [1] * 8, [0] * 5 + [1] * 1 + [2] * 5])

EXACT: dict[type[NoPosition], float] = {NoPosition: 1e-10, RoPE: 1e-5}  # turning goes through float32


def agree(found: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@pytest.fixture(params=[1, 4, 64], ids=["recurrent", "parts", "parallel"])
def part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(recurrent_scan, "PART", request.param)
    return request.param


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("mask", "segments"),
    [(None, None), (MASK, None), (None, SEGMENTS), (MASK, SEGMENTS)],
    ids=["plain", "padding", "documents", "both"],
)
@torch.no_grad()
def test_the_formula(
    kind: type[RecurrentAttention],
    position: type[NoPosition],
    mask: Tensor | None,
    segments: Tensor | None,
    part: int,
) -> None:
    """Every form is the loop, where there are tokens."""
    module, x, batch = layer(kind, position), inputs(), texts(mask=mask, segments=segments)
    there = torch.ones(2, LENGTH, dtype=torch.bool) if mask is None else mask
    # turning goes through float32
    agree(
        module(x, context(module, batch))[there],
        looped(module, x, batch)[there],
        1e-10 if position is NoPosition else 1e-5,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_do_not_depend_on_the_parts(kind: type[RecurrentAttention], monkeypatch: pytest.MonkeyPatch) -> None:
    module, x, found = layer(kind), inputs(), []
    for part in (1, 4, 64):
        monkeypatch.setattr(recurrent_scan, "PART", part)
        y = module(x, context(module, texts(mask=MASK, segments=SEGMENTS)))
        found.append(torch.autograd.grad(y.square()[MASK].sum(), list(module.parameters())))
    for other in found[1:]:
        for one, same in zip(found[0], other, strict=True):
            agree(one, same, 1e-9 * float(one.abs().max()))


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_norm_of_queries_keys_and_values(kind: type[RecurrentAttention]) -> None:
    """It stands between the projection and all that follows."""

    def qk_norm(n_heads: int, head_dim: int, values: bool = False) -> nn.Module:
        return HeadNorm(lambda dim: RMSNorm(dim, eps=0.0), n_heads, head_dim, values)

    normed, plain, x = layer(kind, qk_norm=qk_norm), layer(kind), inputs()
    plain.load_state_dict(normed.state_dict(), strict=False)

    def rms(module: nn.Linear) -> None:
        module.register_forward_hook(
            lambda m, given, y: RMSNorm(SIZE, eps=0.0).double()(y.unflatten(2, (HEADS, SIZE))).flatten(2)
        )

    rms(plain.q)
    rms(plain.k)
    agree(normed(x, context(normed, texts())), plain(x, context(plain, texts())))


@pytest.mark.parametrize("n_kv_heads", [1, 2])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_keys_and_values_shared_by_groups_of_heads(kind: type[RecurrentAttention], n_kv_heads: int) -> None:
    """As copies of them for each head (0 0 1 1, not 0 1 0 1)."""
    shared, full, x = layer(kind, RoPE, n_kv_heads), layer(kind, RoPE), inputs()
    weights = shared.state_dict()
    for name in ("k.weight", "k.bias", "v.weight", "v.bias"):
        by_head = weights[name].unflatten(0, (n_kv_heads, SIZE))
        weights[name] = torch.cat([by_head[h * n_kv_heads // HEADS] for h in range(HEADS)])
    full.load_state_dict(weights)
    agree(shared(x, context(shared, texts())), full(x, context(full, texts())))
    assert shared.k.weight.shape == (n_kv_heads * SIZE, DIM)


# --- what a generation keeps


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_the_state_replaces_the_tokens_before(kind: type[RecurrentAttention], position: type[NoPosition]) -> None:
    module, x, past, found = layer(kind, position), inputs(), 0, []
    whole, state = module(x, context(module, texts())), module.state(2, 1)
    before = [part.shape for part in state.parts]
    for size in (3, 1, 1, 6):
        given = Context.of(Batch(torch.zeros(2, size, dtype=torch.long)), [state], past)
        module._position[0].prepare(given)
        found.append(module(x[:, past : past + size], given))
        past += size
    agree(torch.cat(found, 1), whole, EXACT[position])
    assert [part.shape for part in state.parts] == before


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        (LinearAttention, SIZE * SIZE + SIZE),
        (Performer, 64 * (SIZE + 1) + 1),
        (Retention, SIZE * SIZE),
        (DeltaNet, SIZE * SIZE),
    ],
)
@pytest.mark.parametrize("length", [1, 10, 10_000])
def test_the_size_of_the_state(kind: type[RecurrentAttention], numbers: int, length: int) -> None:
    """The same for every length, and float32 also where the weights are not."""
    assert layer(kind).state(3, length).elements() == 3 * HEADS * numbers
    assert {part.dtype for part in layer(kind).bfloat16().state(3, length).parts} == {torch.float32}
    assert {part.dtype for part in layer(kind).state(3, length).parts} == {torch.float64}


def test_a_memory_counts_what_it_holds() -> None:
    assert Memory(torch.zeros(2, 3), torch.zeros(4)).elements() == 10


# --- precision


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_sums_are_exact_under_autocast(kind: type[RecurrentAttention]) -> None:
    """A sum of ones stops at 256 in bfloat16: 2000 tokens are read as in float32, but for what is projected."""
    module = layer(kind).float()
    x = torch.randn(1, 1, DIM) + 0.1 * torch.randn(1, 2000, DIM)
    batch = Batch(torch.zeros(1, 2000, dtype=torch.long))
    expected = module(x, context(module, batch))
    with torch.autocast("cpu", torch.bfloat16):
        y = module(x, context(module, batch))
    assert y.dtype == torch.bfloat16
    assert float((y - expected)[:, 1000:].norm() / expected[:, 1000:].norm()) < 0.02


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_weights_in_bfloat16(kind: type[RecurrentAttention]) -> None:
    module, x = layer(kind).float(), inputs().float()
    expected = module(x, context(module, texts()))
    y = module.bfloat16()(x.bfloat16(), context(module, texts()))
    assert y.dtype == torch.bfloat16
    assert float((y - expected).norm() / expected.norm()) < 0.05


# --- what cannot be


@pytest.mark.parametrize(("position", "name"), [(ALiBi, "alibi"), (T5, "t5")])
@pytest.mark.parametrize("kind", KINDS)
def test_positions_that_add_to_scores(kind: type[RecurrentAttention], position: type[NoPosition], name: str) -> None:
    message = rf"position={name} .*attention={kind.name}, in layer 0, has none: choose position=rope .*attention=mha"
    with pytest.raises(ValueError, match=message):
        layer(kind, position)


@pytest.mark.parametrize("kind", KINDS)
def test_key_heads_that_do_not_fit(kind: type[RecurrentAttention]) -> None:
    with pytest.raises(ValueError, match=r"model\.n_kv_heads=3 does not divide model\.n_heads=4: .*\[1, 2, 4\]"):
        layer(kind, n_kv_heads=3)
