"""Attentions without a softmax where they are something else: a mean, a softmax, a plain sum, a table."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from linear_loops import DIM, HEADS, LENGTH, SIZE, context, inputs, layer, texts
from torch import Tensor

from modernllm.attention.deltanet import DeltaNet, corrections
from modernllm.attention.linear import LinearAttention, elu_plus_one
from modernllm.attention.multi_head import MultiHeadAttention
from modernllm.attention.performer import Performer, orthogonal_directions
from modernllm.attention.recurrent_scan import reaches, scan
from modernllm.attention.retention import Retention
from modernllm.context import Context
from modernllm.position import NoPosition
from modernllm.position.rope import RoPE


def agree(found: Tensor, expected: Tensor, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@torch.no_grad()
def test_linear_attention_is_a_mean() -> None:
    """Where all values agree, so does what is read; with the eps of the source it is short of it by eps / sum."""
    module = layer(LinearAttention, eps=0.0)
    torch.nn.init.zeros_(module.v.weight)
    y = module(inputs(), context(module, texts()))
    agree(y, module.out(module.v.bias).expand_as(y))


def test_the_feature_map_is_positive() -> None:
    x = torch.linspace(-3, 3, 13, dtype=torch.float64)
    agree(elu_plus_one(x), torch.nn.functional.elu(x) + 1)
    assert float(elu_plus_one(torch.tensor(-80.0))) == pytest.approx(math.exp(-80), rel=1e-5)


def draw(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


# --- performer


def test_directions_are_orthogonal_in_blocks_and_as_long_as_normal_ones() -> None:
    directions = orthogonal_directions(14, SIZE, draw())
    assert directions.shape == (14, SIZE)
    unit = directions / directions.norm(dim=1, keepdim=True)
    for first in (0, 6, 12):
        block = unit[first : first + SIZE]
        torch.testing.assert_close(block @ block.mT, torch.eye(len(block)), rtol=0, atol=1e-5)
    many = torch.cat([orthogonal_directions(SIZE, SIZE, draw(seed)) for seed in range(4000)])
    assert float((many.mT @ many / len(many) - torch.eye(SIZE)).abs().max()) < 0.03
    assert float(many.mean(0).abs().max()) < 0.03
    assert float(many.square().sum(1).mean()) == pytest.approx(SIZE, rel=0.02)


def test_random_features_are_the_softmax_kernel_on_average() -> None:
    """f(q) . f(k) of 4000 draws of 12 features: exp(q . k) within four standard errors, and no term below zero."""
    q, k = torch.randn(2, SIZE, generator=draw()) / 2
    products = []
    for seed in range(4000):
        w = orthogonal_directions(12, SIZE, draw(seed))
        products.append(((w @ q - q @ q / 2).exp() * (w @ k - k @ k / 2).exp()).mean())
    found = torch.stack(products)
    assert float(found.min()) > 0
    error = float(found.std()) / math.sqrt(len(found))
    assert float(found.mean()) == pytest.approx(math.exp(float(q @ k)), abs=4 * error)


@pytest.mark.parametrize("position", [NoPosition, RoPE])
@torch.no_grad()
def test_many_features_are_softmax_attention(position: type[NoPosition]) -> None:
    """With the same weights by name; the distance falls as one over the square root of their number."""
    x, distances = inputs(), []
    for features in (64, 16_384):
        module = layer(Performer, position, features=features)
        softmax = MultiHeadAttention(
            DIM, HEADS, None, SIZE, 0, position(DIM, HEADS, SIZE, LENGTH), True, 0.0, torch.nn.Identity
        ).double()
        softmax.load_state_dict(module.state_dict())
        expected = softmax(x, context(module, texts()))
        y = module(x, context(module, texts()))
        distances.append(float((y - expected).norm() / expected.norm()))
    assert distances[1] < 0.05
    assert distances[0] / distances[1] > 4  # 16, were there no long tail


def test_the_directions_belong_to_the_layer() -> None:
    """They are no parameter, take no draw from elsewhere, and survive what weights go through (float32, not lost)."""

    def made(index: int = 0, seed: int = 0) -> Performer:
        return Performer(
            DIM, HEADS, None, SIZE, index, NoPosition(DIM, HEADS, SIZE, LENGTH), True, 0.0, torch.nn.Identity, 16, seed
        )

    first, state = made().directions, torch.random.get_rng_state()
    module = made()
    torch.random.set_rng_state(state)
    module.reset()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(made().directions, first)
    assert not torch.equal(made(index=1).directions, first)
    assert not torch.equal(made(seed=1).directions, first)
    assert set(made().state_dict()) == {f"{n}.{p}" for n in ("q", "k", "v", "out") for p in ("weight", "bias")}
    for moved in (made().bfloat16(), made().double(), copy.deepcopy(made()), made().to("meta").to_empty(device="cpu")):
        assert torch.equal(moved.directions, first)
        assert moved.directions.dtype == torch.float32
    with torch.device("meta"):
        outside = made()
    assert torch.equal(outside.to_empty(device="cpu").directions, first)


@torch.no_grad()
def test_large_queries_and_keys() -> None:
    """exp(q . k) of many hundreds, as on the logarithms in float64; and a key to come does not change what was."""
    module, x = layer(Performer, features=16), inputs(1)
    module.q.weight.mul_(40)
    module.k.weight.mul_(40)
    y = module(x, context(module, texts(1)))
    q, k, v = (p(x).view(LENGTH, HEADS, SIZE).transpose(0, 1) for p in (module.q, module.k, module.v))
    q, k, w = q / SIZE**0.25, k / SIZE**0.25, module.directions.double()
    exponents = (q @ w.mT)[:, :, None] + (k @ w.mT - k.square().sum(-1, keepdim=True) / 2)[:, None]
    scores = exponents.logsumexp(-1).masked_fill(torch.ones(LENGTH, LENGTH).triu(1).bool(), -math.inf)
    expected = module.out((scores.softmax(-1) @ v).transpose(0, 1).flatten(1))[None]
    assert float(exponents.abs().max()) > 100
    agree(y, expected, 1e-9)
    later = x.clone()
    later[:, 6:] *= 100
    agree(module(later, context(module, texts(1)))[:, :6], y[:, :6])


# --- retention


def test_the_decays_of_the_paper() -> None:
    module = layer(Retention)
    assert isinstance(module, Retention)
    decays = module.log_decay(torch.zeros((), dtype=torch.float64)).exp().flatten()
    agree(decays, torch.tensor([1 - 2.0 ** (-5 - h) for h in range(HEADS)], dtype=torch.float64))
    assert decays.tolist() == pytest.approx([0.96875, 0.984375, 0.9921875, 0.99609375], abs=1e-12)


@torch.no_grad()
def test_retention_that_forgets_nothing_is_linear_attention_without_a_divisor() -> None:
    module, x = layer(Retention, RoPE, horizon=1e30), inputs()
    given = context(module, texts())
    q, k, v = (p(x).view(2, LENGTH, HEADS, SIZE).transpose(1, 2) for p in (module.q, module.k, module.v))
    q, k = module._position[0].rotate(q, k, given)
    y = (q @ k.mT / math.sqrt(SIZE)).tril() @ v
    y = y / (y.square().mean(-1, keepdim=True) + 1e-6).sqrt()
    gate = torch.nn.functional.silu(module.gate(x))
    agree(module(x, given), module.out(gate * y.transpose(1, 2).flatten(2)), 1e-6)


@torch.no_grad()
def test_padding_lets_no_time_pass() -> None:
    """A hole of five tokens does not make the ones before it older."""
    module, x = layer(Retention), inputs(1)
    mask = torch.tensor([[1, 1, 1, 0, 0, 0, 0, 0, 1, 1, 1]]).bool()
    y = module(x, context(module, texts(1, mask)))[:, mask[0]]
    short = Context(positions=torch.arange(6)[None])
    agree(y, module(x[:, mask[0]], short))


# --- deltanet


def read(k: Tensor, v: Tensor, beta: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    """What queries find at each time, and the state (keys in rows) at the end."""
    level = k.new_zeros(1, 1, k.shape[2])
    empty = k.new_zeros(1, 1, k.shape[3], v.shape[3])
    return scan(q, k, corrections(v, beta), empty, reaches(level, level[..., :1], None))


def test_orthonormal_keys_are_a_table() -> None:
    """With b = 1 each key reads its own value, and it is the plain sum of linear attention."""
    k = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64)).Q[None, None]
    v, ones = torch.randn(1, 1, 8, 5, dtype=torch.float64), torch.ones(1, 1, 8, 1, dtype=torch.float64)
    found, state = read(k, v, ones, k)
    agree(found, v)
    agree(k @ state, v)
    agree(state, k.mT @ v)


def test_a_key_met_again_has_its_new_value() -> None:
    """b = 1 replaces, b = 1/4 goes a quarter of the way, and another key's value is left alone."""
    key, other = torch.eye(4, dtype=torch.float64)[:2]
    k = torch.stack((key, other, key, key))[None, None]
    v = torch.tensor([[1.0], [7.0], [5.0], [9.0]], dtype=torch.float64)[None, None]
    beta = torch.tensor([1.0, 1.0, 1.0, 0.25], dtype=torch.float64)[None, None, :, None]
    found, _ = read(k, v, beta, key.expand(1, 1, 4, 4))
    assert found.flatten().tolist() == pytest.approx([1.0, 1.0, 5.0, 6.0], abs=1e-12)
    found, _ = read(k, v, beta, other.expand(1, 1, 4, 4))
    assert found.flatten().tolist() == pytest.approx([0.0, 7.0, 7.0, 7.0], abs=1e-12)


def test_deltanet_never_grows() -> None:
    """b in (0, 1) and keys of length one: what is read stays within the values, after 2000 tokens too."""
    k = torch.nn.functional.normalize(torch.randn(1, 1, 2000, 4), dim=-1)
    v, beta = torch.rand(1, 1, 2000, 1), torch.rand(1, 1, 2000, 1)
    _, state = read(k, v, beta, k)
    assert float(state.norm()) < 4
    assert isinstance(layer(DeltaNet).gate, torch.nn.Linear)
