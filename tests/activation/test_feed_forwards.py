"""Feed-forwards against loops over their hidden units, every choice by its name."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from models import VOCAB, config, tiny
from torch import nn

from modernllm.activation.feedforward import FeedForward
from modernllm.activation.gated import GatedFeedForward
from modernllm.batch import Batch
from modernllm.config.build import build
from modernllm.context import Context

CONTEXT = Context(positions=torch.arange(5)[None])

Scalar = Callable[[float], float]


def gelu_tanh(u: float) -> float:
    return u * (1 + math.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3))) / 2


SCALARS: dict[str, Scalar] = {
    "relu": lambda u: max(0.0, u),
    "leaky_relu": lambda u: u if u > 0 else 0.01 * u,
    "gelu": lambda u: u * (1 + math.erf(u / math.sqrt(2))) / 2,
    "gelu_tanh": gelu_tanh,
    "silu": lambda u: u / (1 + math.exp(-u)),
    "relu2": lambda u: max(0.0, u) ** 2,
}
GATES: dict[str, Scalar] = {
    "glu": lambda u: 1 / (1 + math.exp(-u)),
    "bilinear": lambda u: u,
    "reglu": SCALARS["relu"],
    "geglu": SCALARS["gelu"],
    "swiglu": SCALARS["silu"],
}


def chosen(name: str, *overrides: str, **sizes: int | None) -> FeedForward | GatedFeedForward:
    """The feed-forward of `activation=name`, with biases."""
    node = config(f"activation={name}", *overrides)["model"]["activation"]
    return build(node, "activation", bias=True, dropout=0.0, **sizes)


def affine(module: nn.Module, x: list[float]) -> list[float]:
    weight, bias = module.get_parameter("weight").tolist(), module.get_parameter("bias").tolist()
    return [sum(w * xi for w, xi in zip(row, x, strict=True)) + b for row, b in zip(weight, bias, strict=True)]


def check(feedforward: FeedForward | GatedFeedForward, f: Scalar) -> None:
    """Against a loop over the hidden units."""
    feedforward = feedforward.double()
    for p in feedforward.parameters():
        nn.init.normal_(p, std=0.7)
    x = 2 * torch.randn(2, 4, 3, dtype=torch.float64)

    def row(x: list[float]) -> list[float]:
        up = affine(feedforward.up, x)
        if isinstance(feedforward, GatedFeedForward):
            gate = affine(feedforward.gate, x)
            return affine(feedforward.out, [f(g) * u for g, u in zip(gate, up, strict=True)])
        return affine(feedforward.out, [f(u) for u in up])

    expected = torch.tensor([[row(t) for t in b] for b in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(feedforward(x, CONTEXT), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", SCALARS)
def test_a_plain_one_is_its_formula(name: str) -> None:
    feedforward = chosen(name, dim=3, hidden=5)
    assert type(feedforward) is FeedForward
    check(feedforward, SCALARS[name])


@pytest.mark.parametrize("name", GATES)
def test_a_gated_one_is_its_formula(name: str) -> None:
    feedforward = chosen(name, dim=3, hidden=5)
    assert type(feedforward) is GatedFeedForward
    check(feedforward, GATES[name])


def test_keys_of_the_nonlinearity() -> None:
    """A steeper leak, and the GEGLU of T5 1.1 and Gemma."""
    slope = chosen("leaky_relu", "model.activation.act.negative_slope=0.3", dim=3, hidden=5)
    check(slope, lambda u: u if u > 0 else 0.3 * u)
    check(chosen("geglu", "model.activation.act.approximate=tanh", dim=3, hidden=5), gelu_tanh)


@pytest.mark.parametrize("name", [*SCALARS, *GATES])
def test_observers_find_the_nonlinearity(name: str) -> None:
    """One module `act` a layer, called once with the hidden width."""
    model, seen = tiny(f"activation={name}"), []
    for path, module in model.named_modules():
        if path.endswith(".act"):
            module.register_forward_hook(lambda module, given, y: seen.append((given[0].shape, y.shape)))
    model(Batch(torch.arange(12).view(2, 6) % VOCAB))
    width = 88 if name in GATES else 128
    assert seen == [((2, 6, width), (2, 6, width))] * 2


def test_the_dips_of_gelu_and_silu() -> None:
    """They are not monotone: both are negative below zero, and rise again towards it from the left."""
    x = torch.linspace(-5, 5, 100_001, dtype=torch.float64)
    gelu, silu = nn.functional.gelu(x), nn.functional.silu(x)
    for y, lowest, where in ((gelu, -0.169971, -0.7518), (silu, -0.278465, -1.2785)):
        assert float(y.min()) == pytest.approx(lowest, abs=1e-6)
        assert float(x[y.argmin()]) == pytest.approx(where, abs=1e-4)
        assert float(y[x < 0].max()) < 0
        assert float(y.diff()[: int(y.argmin())].max()) < 0 < float(y.diff()[int(y.argmin()) + 1 :].min())
    gaps = [gelu - silu, gelu - x * torch.sigmoid(1.702 * x), gelu - nn.functional.gelu(x, approximate="tanh")]
    assert [float(gap.abs().max()) for gap in gaps] == pytest.approx([0.19300, 0.02033, 0.00047], abs=1e-5)


def n_parameters(kind: type[FeedForward] | type[GatedFeedForward], dim: int) -> int:
    return sum(p.numel() for p in kind(dim, None, bias=False, dropout=0.0, act=nn.SiLU).parameters())


@pytest.mark.parametrize("dim", [3, 6, 96, 192, 768])
def test_two_and_three_matrices_have_as_many_parameters(dim: int) -> None:
    assert n_parameters(FeedForward, dim) == n_parameters(GatedFeedForward, dim) == 8 * dim**2


@pytest.mark.parametrize("dim", [8, 32, 64, 128, 512, 1000])
def test_and_nearly_as_many_where_three_does_not_divide(dim: int) -> None:
    """8/3 d rounded to a multiple of 8 is off by 4 hidden units at most."""
    assert abs(n_parameters(GatedFeedForward, dim) - n_parameters(FeedForward, dim)) <= 4 * 3 * dim
    assert n_parameters(GatedFeedForward, dim) % (8 * 3 * dim) == 0


@pytest.mark.parametrize("kind", [FeedForward, GatedFeedForward])
def test_hidden_and_bias_are_obeyed(kind: type[FeedForward] | type[GatedFeedForward]) -> None:
    feedforward = kind(4, 7, bias=False, dropout=0.0, act=nn.ReLU)
    assert feedforward.up.weight.shape == (7, 4)
    assert feedforward.out.weight.shape == (4, 7)
    assert {name for name, _ in feedforward.named_parameters() if name.endswith("bias")} == set()


def test_a_gate_that_is_open_leaves_the_product() -> None:
    """With relu and a gate of one, the gated feed-forward is linear: W_out W_up x."""
    gated = GatedFeedForward(4, 6, bias=True, dropout=0.0, act=nn.ReLU)
    nn.init.zeros_(gated.gate.weight)
    nn.init.ones_(gated.gate.bias)
    x = torch.randn(1, 5, 4)
    torch.testing.assert_close(gated(x, CONTEXT), gated.out(gated.up(x)))


def test_a_bilinear_one_is_a_product_of_two_linear_maps() -> None:
    """Without biases: doubling the input doubles both."""
    bilinear = GatedFeedForward(4, 6, bias=False, dropout=0.0, act=nn.Identity).double()
    x = torch.randn(1, 5, 4, dtype=torch.float64)
    torch.testing.assert_close(bilinear(2 * x, CONTEXT), 4 * bilinear(x, CONTEXT))


def test_a_leak_of_one_is_no_nonlinearity() -> None:
    leaky = FeedForward(4, 6, bias=True, dropout=0.0, act=lambda: nn.LeakyReLU(1.0))
    x = torch.randn(1, 5, 4)
    torch.testing.assert_close(leaky(x, CONTEXT), leaky.out(leaky.up(x)))
