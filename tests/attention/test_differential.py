"""Differential attention against its formula, and where it is attention with one map."""

from __future__ import annotations

import math

import pytest
import torch
from attention_layers import DIM, HEADS, NORM, SIZE, decoded, equal, heads, made, prepared, run, text, weights
from torch import Tensor, nn

from modernllm.attention.differential import DifferentialAttention
from modernllm.attention.multi_head import MultiHeadAttention
from modernllm.init import FanIn, Init
from modernllm.linear import parameter_roles
from modernllm.position import NoPosition
from modernllm.position.alibi import ALiBi
from modernllm.position.rope import RoPE


def differential(n_kv_heads: int | None = None, position: type[NoPosition] = NoPosition, **keys: int) -> nn.Module:
    return made(DifferentialAttention, n_kv_heads, position, norm=NORM, **keys)


def start(layer: int) -> float:
    """lambda_init of a layer that counts from 0; the paper's count from 1."""
    return 0.8 - 0.6 * math.exp(-0.3 * ((layer + 1) - 1))


def formula(attention: DifferentialAttention, x: Tensor, layer: int) -> Tensor:
    """Pair i: query heads 2i and 2i + 1, each with the key head of its group, and values of twice the size."""
    (position,) = attention._position
    q, k, v = heads(attention.q(x)), heads(attention.k(x)), heads(attention.v(x), 2 * SIZE)
    q, k = position.rotate(q, k, prepared(attention, x))
    a1, b1, a2, b2 = (p.detach() for p in (attention.a1, attention.b1, attention.a2, attention.b2))
    share = math.exp(float(a1 @ b1)) - math.exp(float(a2 @ b2)) + start(layer)
    group, pairs = q.shape[1] // k.shape[1], []
    for i in range(q.shape[1] // 2):
        y = torch.zeros(*x.shape[:2], 2 * SIZE, dtype=x.dtype)
        for b in range(x.shape[0]):
            for t in range(x.shape[1]):
                seen, scale = range(t + 1), 1 / math.sqrt(SIZE)
                first = weights(q[b, 2 * i], k[b, 2 * i // group], t, seen, scale)
                second = weights(q[b, 2 * i + 1], k[b, (2 * i + 1) // group], t, seen, scale)
                for s in seen:
                    y[b, t] += (first[s] - share * second[s]) * v[b, i // group, s]
        gain = attention.norm.get_parameter("gain")
        normed = gain * y / (y.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        pairs.append((1 - start(layer)) * normed)
    return attention.out(torch.cat(pairs, -1))


@pytest.mark.parametrize("position", [NoPosition, RoPE])
@pytest.mark.parametrize("n_kv_heads", [None, 2])
@pytest.mark.parametrize("layer", [0, 3])
def test_the_formula(layer: int, n_kv_heads: int | None, position: type[NoPosition]) -> None:
    attention, x = differential(n_kv_heads, position, layer=layer), text(7)
    assert isinstance(attention, DifferentialAttention)
    equal(run(attention, x), formula(attention, x, layer))
    equal(decoded(attention, x, [3, 1, 3]), run(attention, x))


def test_the_start_of_lambda_by_depth() -> None:
    """0.2 in the first layer, towards 0.8 with depth; at initialisation lambda is near it."""
    found = [differential(layer=layer).start for layer in (0, 1, 2, 50)]  # type: ignore[misc]
    assert found == pytest.approx([0.2, 0.355509, 0.470713, 0.8], abs=1e-6)
    shares = []
    for seed in range(50):
        module = nn.Module()
        module.blocks = nn.ModuleList([differential(layer=2)])
        init: Init = FanIn()
        init(module, seed)
        shares.append(float(module.blocks[0].share().detach()))  # type: ignore[operator]
    assert sum(shares) / 50 == pytest.approx(0.470713, abs=0.02)
    assert 0.005 < torch.tensor(shares).std() < 0.1  # two products of N(0, 0.1^2) vectors of 6: 0.035


def test_one_map_where_lambda_is_zero() -> None:
    """The first heads of the pairs are multi-head attention then, normed and scaled."""
    attention, x = differential(position=RoPE, layer=1), text(9)
    assert isinstance(attention, DifferentialAttention)
    for p in (attention.a1, attention.b1, attention.a2, attention.b2):
        nn.init.zeros_(p)
    attention.a1.data[0], attention.b1.data[0] = 1.0, math.log(1 - attention.start)
    assert float(attention.share().detach()) == pytest.approx(0)
    attention.norm = nn.Identity()
    read: list[Tensor] = []
    attention.attend.register_forward_hook(lambda module, given, y: read.append(y))
    y = run(attention, x)
    first = (1 - attention.start) * read[0][:, ::2]
    equal(y, attention.out(first.transpose(1, 2).flatten(2)))


def test_equal_maps_cancel() -> None:
    """Where both heads of a pair ask the same, 1 - lambda of one map is left: only its direction matters."""
    attention, x = differential(), text(9)
    assert isinstance(attention, DifferentialAttention)
    for projection in (attention.q, attention.k):
        w = projection.weight.data.view(HEADS // 2, 2, SIZE, DIM)
        w[:, 1] = w[:, 0]
    attention.norm = nn.Identity()
    read: list[Tensor] = []
    attention.attend.register_forward_hook(lambda module, given, y: read.append(y))
    y = run(attention, x)
    once = read[0][:, ::2].transpose(1, 2).flatten(2)
    equal(y, attention.out((1 - attention.start) * (1 - attention.share()) * once))


def test_as_many_parameters_as_multi_head_attention() -> None:
    """And four vectors of a head's size and one gain for all pairs; the cache is the same too."""
    attention, other = differential(), made(MultiHeadAttention)
    assert {name: p.shape for name, p in other.named_parameters()}.items() <= {
        name: p.shape for name, p in attention.named_parameters()
    }.items()
    extra = sum(p.numel() for p in attention.parameters()) - sum(p.numel() for p in other.parameters())
    assert extra == 4 * SIZE + 2 * SIZE
    assert attention.state(3, 10).elements() == other.state(3, 10).elements()  # type: ignore[operator]
    roles = {name: role for name, _, role in parameter_roles(attention)}
    assert {roles[name] for name in ("a1", "b1", "a2", "b2")} == {"scale"}


@pytest.mark.parametrize("keys", [{"softcap": 2.0}, {"sinks": "learned"}, {"scale": "width"}])
def test_capped_and_sunk_maps_decode_too(keys: dict[str, object]) -> None:
    attention, x = made(DifferentialAttention, 2, ALiBi, norm=NORM, **keys), text(9)
    equal(decoded(attention, x, [3, 1, 5]), run(attention, x))


def test_an_odd_head_has_no_partner() -> None:
    with pytest.raises(ValueError, match=r"attention=differential pairs heads: model\.n_kv_heads=1 is odd"):
        differential(1)
    sizes = (DIM, 3, None, SIZE, 0, NoPosition(DIM, 3, SIZE, 9))
    with pytest.raises(ValueError, match=r"attention=differential pairs heads: model\.n_heads=3 is odd"):
        DifferentialAttention(*sizes, bias=False, dropout=0.0, qk_norm=nn.Identity, norm=NORM)
