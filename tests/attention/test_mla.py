"""MLA against its formula, its cache of latents, and multi-head attention at full rank (F-05, F-17)."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from attention_layers import DIM, HEADS, NORM, SIZE, decoded, equal, made, prepared, run, text, weights
from models import config
from models import made as model_of
from torch import Tensor, nn

from modernllm.attention.mla import LatentAttention
from modernllm.attention.multi_head import MultiHeadAttention
from modernllm.context import Context
from modernllm.position import NoPosition
from modernllm.position.alibi import ALiBi
from modernllm.position.learned import Learned
from modernllm.position.rope import RoPE
from modernllm.position.rope_ntk import NTKRoPE
from modernllm.position.rope_yarn import YaRN
from modernllm.position.sinusoidal import Sinusoidal
from modernllm.position.t5 import T5
from modernllm.qk_norm.head import HeadNorm
from modernllm.qk_norm.width import WidthNorm

NOPE, ROPE, VALUE, KV_RANK, Q_RANK = 8, 4, 6, 10, 7  # all different, and none a head's size times something
SIZES = {"nope": NOPE, "rope": ROPE, "value": VALUE, "kv_rank": KV_RANK}


def mla(q_rank: int | None = None, position: Any = NoPosition, **keys: Any) -> Any:
    return made(LatentAttention, position=position, norm=NORM, q_rank=q_rank, **(SIZES | keys))


def rms(x: Tensor, gain: Tensor) -> Tensor:
    return gain * x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()


def turned(x: Tensor) -> Tensor:
    """The pairs (x_2i, x_2i+1) of [t, rope], turned by t 10000^(-2i / rope)."""
    y = torch.zeros_like(x)
    for t in range(len(x)):
        for i in range(ROPE // 2):
            angle = t * 10_000.0 ** (-2 * i / ROPE)
            real, imaginary = x[t, 2 * i], x[t, 2 * i + 1]
            y[t, 2 * i] = real * math.cos(angle) - imaginary * math.sin(angle)
            y[t, 2 * i + 1] = real * math.sin(angle) + imaginary * math.cos(angle)
    return y


def formula(m: Any, x: Tensor, rotates: bool) -> Tensor:
    """One head after the other; every part of a matrix cut out by hand."""
    turn = turned if rotates else lambda part: part
    rows = []
    for row in x:
        latent = rms(row @ m.kv_down.weight.T, m.kv_norm.gain)
        queries = row if m.q_down.__class__ is nn.Identity else rms(row @ m.q_down.weight.T, m.q_norm.gain)
        shared, read = turn(row @ m.k_rope.weight.T), []
        for h in range(HEADS):
            of_q = queries @ m.q.weight[h * (NOPE + ROPE) : (h + 1) * (NOPE + ROPE)].T
            q = torch.cat((of_q[:, :NOPE], turn(of_q[:, NOPE:])), 1)
            k = torch.cat((latent @ m.k.weight[h * NOPE : (h + 1) * NOPE].T, shared), 1)
            v = latent @ m.v.weight[h * VALUE : (h + 1) * VALUE].T
            found = [weights(q, k, t, range(t + 1), 1 / math.sqrt(12)) for t in range(len(row))]
            read.append(torch.stack([sum(w * v[s] for s, w in of.items()) for of in found]))  # type: ignore[misc]
        rows.append(torch.cat(read, 1) @ m.out.weight.T)
    return torch.stack(rows)


@pytest.mark.parametrize("position", [NoPosition, RoPE])
@pytest.mark.parametrize("q_rank", [None, Q_RANK])
def test_the_formula(q_rank: int | None, position: type[NoPosition]) -> None:
    """F-17: nope 8, rope 4, value 6 and kv_rank 10, so the scale is 1 / sqrt(12)."""
    attention, x = mla(q_rank, position), text(7)
    assert attention.attend.scale == 1 / math.sqrt(NOPE + ROPE)
    torch.testing.assert_close(run(attention, x), formula(attention, x, position is RoPE).detach(), rtol=0, atol=1e-6)
    # the phases are float32


@pytest.mark.parametrize("keys", [{}, {"softcap": 2.0, "sinks": "learned"}], ids=["", "capped"])
@pytest.mark.parametrize("position", [NoPosition, RoPE, partial(RoPE, layout="half"), YaRN, NTKRoPE, ALiBi, T5])
@pytest.mark.parametrize("q_rank", [None, Q_RANK])
def test_decoding_from_latents(q_rank: int | None, position: Any, keys: dict[str, Any]) -> None:
    """F-05, F-17: one head of latents for keys and values gives what the heads made of them give."""
    attention, x = mla(q_rank, position, bias=True, **keys), text(15)
    expected = run(attention, x)
    for parts in ([1] * 15, [5, 1, 3, 1, 5], [15]):
        equal(decoded(attention, x, parts), expected)


def test_the_cache_keeps_a_latent_and_one_key_part() -> None:
    """kv_rank + rope numbers a token, however many heads there are."""
    state = mla(Q_RANK).state(3, 20)
    assert state.elements() == 3 * 20 * (KV_RANK + ROPE)
    assert state.latents.rows.numel() + state.keys.rows.numel() == state.elements()
    with pytest.raises(ValueError, match="the cache holds 5 tokens, 9 are needed"):
        decoded(mla(), text(9), [4, 5], mla().state(2, 5))


def test_at_full_rank_it_is_multi_head_attention() -> None:
    """With a latent that is x itself and no shared part of keys, but for the scale of the wider head."""
    other, x = made(MultiHeadAttention), text(9)
    attention = made(LatentAttention, norm=nn.Identity, kv_rank=DIM, nope=SIZE, rope=2, value=SIZE)
    nn.init.zeros_(attention.k_rope.weight)
    nn.init.eye_(attention.kv_down.weight)
    queries = torch.zeros(HEADS, SIZE + 2, DIM, dtype=torch.float64)
    queries[:, :SIZE] = other.q.weight.detach().view(HEADS, SIZE, DIM) * math.sqrt((SIZE + 2) / SIZE)
    given = {"q.weight": queries.flatten(0, 1), "k.weight": other.k.weight, "v.weight": other.v.weight}
    attention.load_state_dict(attention.state_dict() | given | {"out.weight": other.out.weight})
    equal(run(attention, x), run(other, x))
    equal(decoded(attention, x, [4, 1, 4]), run(other, x))


def test_only_distances_matter_to_the_turned_part() -> None:
    """And it is turned by frequencies of its own size, not of a whole head's."""
    attention, x = mla(position=RoPE), text(9, 1)
    moved = Context(positions=torch.arange(9)[None] + 100)
    attention._position[0].prepare(moved)
    with torch.no_grad():
        torch.testing.assert_close(attention(x, moved), run(attention, x), rtol=0, atol=1e-4)
    (scheme,) = attention._turning
    assert isinstance(scheme, RoPE)
    assert (scheme.n_turned, attention._position[0].n_turned) == (ROPE, SIZE)
    assert scheme.sized(SIZE).frequencies(moved).tolist() == attention._position[0].frequencies(moved).tolist()


@pytest.mark.parametrize("position", [NoPosition, Learned, Sinusoidal, ALiBi, T5])
def test_schemes_that_turn_nothing_leave_the_part_as_it_is(position: type[NoPosition]) -> None:
    """Their positions come from the embedding, or as a bias on the scores."""
    attention, plain, x = mla(position=position), mla(), text(9)
    plain.load_state_dict(attention.state_dict())
    biased = attention._position[0].bias(prepared(attention, x))
    if biased is None:
        equal(run(attention, x), run(plain, x))
        return
    nn.init.normal_(getattr(attention._position[0], "table", torch.zeros(1)))
    assert float((run(attention, x) - run(plain, x)).abs().max()) > 1e-3


def test_sizes_follow_from_the_head() -> None:
    """DeepSeek's proportions: a latent of four heads, half a head turned."""
    attention = made(LatentAttention, norm=NORM)
    shapes = {name: tuple(p.shape) for name, p in attention.named_parameters()}
    assert shapes == {
        "q.weight": (HEADS * (6 + 2), DIM),
        "kv_down.weight": (24, DIM),
        "kv_norm.gain": (24,),
        "k.weight": (HEADS * 6, 24),
        "v.weight": (HEADS * 6, 24),
        "k_rope.weight": (2, DIM),
        "out.weight": (DIM, HEADS * 6),
    }
    for head_dim, rope in ((2, 2), (3, 2), (8, 4), (24, 12), (128, 64)):
        model = model_of(config("attention=mla"), head_dim=head_dim, position=NoPosition)
        assert model.blocks[0].sublayers["attention"].rope == rope


@pytest.mark.parametrize("q_rank", [None, Q_RANK])
def test_parameters(q_rank: int | None) -> None:
    """d q + q H (h + h_R) + d (c + h_R) + c H (h + h_v) + H h_v d, and the gains of the latents."""
    queries = DIM * HEADS * 12 if q_rank is None else DIM * Q_RANK + Q_RANK * HEADS * 12 + Q_RANK
    rest = DIM * (KV_RANK + ROPE) + KV_RANK * HEADS * (NOPE + VALUE) + HEADS * VALUE * DIM + KV_RANK
    assert sum(p.numel() for p in mla(q_rank).parameters()) == queries + rest


def test_biases_where_the_stream_is_read_or_written() -> None:
    """One in what makes keys of latents would move all scores of a query alike."""
    biases = {name for name, _ in mla(Q_RANK, bias=True).named_parameters() if name.endswith("bias")}
    assert biases == {"q_down.bias", "kv_down.bias", "k_rope.bias", "out.bias"}
    assert "q.bias" in dict(mla(None, bias=True).named_parameters())


@pytest.mark.parametrize("norm", [HeadNorm, WidthNorm])
def test_what_mla_cannot_do(norm: Any) -> None:
    with pytest.raises(ValueError, match=rf"attention=mla .*qk_norm \({norm.__name__}\).*choose qk_norm=none"):
        mla(qk_norm=partial(norm, NORM))
    with pytest.raises(ValueError, match=r"attention=mla .*model\.n_kv_heads=2.*attention=gqa"):
        mla(n_kv_heads=2)
    with pytest.raises(ValueError, match=r"position=rope turns pairs: model\.attention\.rope=3 is odd"):
        mla(position=RoPE, rope=3)
