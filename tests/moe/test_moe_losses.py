"""Auxiliary losses of routers: of a layer and a row, over counted tokens, in known numbers (F-14)."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from models import config, made, tiny, windows
from torch import Tensor, nn

from modernllm.activation.feedforward import FeedForward
from modernllm.batch import IGNORED, Batch
from modernllm.context import Context
from modernllm.moe.losses import balance_loss, usage, z_loss
from modernllm.moe.topk import TopK
from modernllm.objective import Objective


def everyone(*shape: int) -> Tensor:
    return torch.ones(shape, dtype=torch.bool)


def looped(scores: Tensor, chosen: Tensor, counted: Tensor) -> float:
    """sum over rows of their counted tokens times sum_e f_e P_e."""
    total, (n_rows, n_tokens, n_experts), k = 0.0, scores.shape, chosen.shape[-1]
    for b in range(n_rows):
        there = [t for t in range(n_tokens) if counted[b, t]]
        for e in range(n_experts):
            f = sum(e in chosen[b, t].tolist() for t in there) * n_experts / (k * max(1, len(there)))
            p = sum(float(scores[b, t, e] / scores[b, t].sum()) for t in there) / max(1, len(there))
            total += len(there) * f * p
    return total


@pytest.mark.parametrize("k", [1, 2, 5])
def test_the_balance_loss_is_its_formula(k: int) -> None:
    scores, counted = torch.randn(4, 9, 5, dtype=torch.float64).sigmoid(), torch.rand(4, 9) < 0.6
    counted[2] = False
    chosen = scores.topk(k).indices
    assert float(balance_loss(scores, chosen, counted)) == pytest.approx(looped(scores, chosen, counted), rel=1e-12)
    expected = [[int(((chosen[b] == e).any(-1) & counted[b]).sum()) for e in range(5)] for b in range(4)]
    assert usage(chosen, 5, counted).tolist() == expected


def test_known_balance() -> None:
    """Uniform routing: 1. All to one of two experts that is sure of it: 2. To k of E: E / k."""
    turns = torch.arange(8).remainder(4)[None, :, None]
    flat = torch.full((1, 8, 4), 0.25)
    assert float(balance_loss(flat, turns, everyone(1, 8)) / 8) == pytest.approx(1.0)
    sure = nn.functional.one_hot(turns[..., 0], 4).float()
    assert float(balance_loss(sure, turns, everyone(1, 8)) / 8) == pytest.approx(1.0)
    one = torch.tensor([1.0, 0.0]).expand(1, 8, 2)
    assert float(balance_loss(one, torch.zeros(1, 8, 1, dtype=torch.long), everyone(1, 8)) / 8) == pytest.approx(2.0)
    pair = torch.tensor([0.5, 0.5, 0.0, 0.0]).expand(1, 8, 4)
    both = torch.tensor([0, 1]).expand(1, 8, 2)
    assert float(balance_loss(pair, both, everyone(1, 8)) / 8) == pytest.approx(2.0)


def test_the_gradient_pulls_towards_balance() -> None:
    """From an expert that has more than its share, and none where all are used alike."""
    logits = torch.zeros(1, 8, 4, requires_grad=True)
    crowded = torch.zeros(1, 8, 1, dtype=torch.long)
    balance_loss(logits.softmax(-1), crowded, everyone(1, 8)).backward()
    assert logits.grad is not None
    assert float(logits.grad[..., 0].min()) > 0
    assert float(logits.grad[..., 1:].max()) < 0
    (even,) = torch.autograd.grad(
        balance_loss(logits.softmax(-1), torch.arange(8).remainder(4)[None, :, None], everyone(1, 8)), logits
    )
    assert float(even.abs().max()) < 1e-7


def layer(expert: int, balance: float = 1.0, router_z: float = 0.0) -> TopK:
    """Two experts, of which every token with a first entry of 1 goes to one, and is sure of it."""
    make = partial(FeedForward, 4, 3, bias=False, dropout=0.0, act=nn.ReLU)
    moe = TopK(
        make, 4, n_experts=2, k=1, shared=0, hidden=None, score="softmax", renormalise=True, scale=1.0, n_groups=1,
        groups=1, balance=balance, router_z=router_z,
    )  # fmt: skip
    with torch.no_grad():
        moe.router.weight.zero_()
        moe.router.weight[expert, 0] = 40.0
    return moe


def losses(layers: list[TopK], batch: Batch, x: Tensor) -> dict[str, float]:
    """Per counted token, as the objective divides them."""
    context = Context.of(batch)
    for moe in layers:
        moe(x, context)
    return {name: float(loss.detach()) / batch.n_targets for name, loss in context.losses.items()}


def ones(rows: int, length: int) -> tuple[Batch, Tensor]:
    tokens = torch.zeros(rows, length, dtype=torch.long)
    return Batch(tokens, tokens), torch.cat((torch.ones(rows, length, 1), torch.randn(rows, length, 3)), -1)


def test_layers_are_not_pooled() -> None:
    """Each of two layers that use one expert has a loss of 2, though together they use both."""
    batch, x = ones(3, 8)
    assert losses([layer(0)], batch, x)["balance"] == pytest.approx(2.0)
    assert losses([layer(1)], batch, x)["balance"] == pytest.approx(2.0)
    assert losses([layer(0), layer(1)], batch, x)["balance"] == pytest.approx(4.0)


def test_rows_are_not_pooled() -> None:
    """Two rows that use one expert each have a loss of 2: it does not depend on what stands beside a row."""
    batch, x = ones(2, 8)
    x[1, :, 0] = -1.0
    assert losses([layer(0)], batch, x)["balance"] == pytest.approx(2.0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_changes_nothing(side: str) -> None:
    """Half of the batch, of other vectors, with and without targets of its own."""
    batch, x = ones(2, 8)
    x[:, ::3, 0] = -1.0
    moe = layer(0, router_z=1.0)
    expected = losses([moe], batch, x)
    assert expected["balance"] != pytest.approx(2.0)
    parts = [torch.zeros(2, 8, dtype=torch.bool), everyone(2, 8)]
    mask = torch.cat(parts if side == "left" else parts[::-1], 1)
    noise = 5 * torch.randn(2, 8, 4)
    wide = torch.cat((noise, x) if side == "left" else (x, noise), 1)
    tokens = torch.zeros(2, 16, dtype=torch.long)
    padded = Batch(tokens, tokens.where(mask, IGNORED), mask=mask)
    assert losses([moe], padded, wide) == pytest.approx(expected, rel=1e-6)
    assert torch.equal(Context.of(Batch(tokens, tokens, mask=mask)).counted, mask)
    assert losses([moe], Batch(tokens, padded.targets), wide) == pytest.approx(expected, rel=1e-6)


def test_the_size_and_the_cut_of_a_batch_change_nothing() -> None:
    batch, x = ones(4, 8)
    x[1, :5, 0], x[2, ::2, 0] = -1.0, -1.0
    moe = layer(0, router_z=1.0)
    expected = losses([moe], batch, x)
    double = Batch(batch.tokens.repeat(2, 1), batch.tokens.repeat(2, 1))
    assert losses([moe], double, x.repeat(2, 1, 1)) == pytest.approx(expected, rel=1e-6)
    parts = [losses([moe], part, given) for part, given in zip(batch.split(1), x.split(1), strict=True)]
    for name, value in expected.items():
        assert sum(part[name] for part in parts) / 4 == pytest.approx(value, rel=1e-6)


def test_the_z_loss_is_a_mean_over_tokens() -> None:
    """Not over rows: one of 8 tokens and one of 2."""
    logits = torch.randn(2, 8, 5, dtype=torch.float64)
    counted = everyone(2, 8)
    counted[1, 2:] = False
    squares = [float(logits[b, t].exp().sum().log() ** 2) for b, n in ((0, 8), (1, 2)) for t in range(n)]
    assert float(z_loss(logits, counted)) / 10 == pytest.approx(sum(squares) / 10, rel=1e-12)
    assert float(z_loss(torch.zeros(1, 3, 4), everyone(1, 3))) / 3 == pytest.approx(1.9218, abs=1e-4)  # (ln 4)^2


@pytest.mark.parametrize("choice", ["moe=topk", "moe=topk_lossfree"])
def test_the_objective_adds_them(choice: str) -> None:
    """One for every layer, weighted; without targets there are none."""

    def auxiliary(batch: Batch, **weights: Any) -> float:
        cfg = config(choice)
        cfg["model"]["moe"] |= weights
        with torch.no_grad():
            return float(Objective(made(cfg))(batch)[1]) / batch.n_targets

    batch = windows()
    assert auxiliary(batch, balance=0.0, router_z=0.0) == 0
    balance, router_z = auxiliary(batch, balance=1.0, router_z=0.0), auxiliary(batch, balance=0.0, router_z=1.0)
    assert 2 < balance < 4  # two layers, each a little above 1
    assert router_z > 2
    assert auxiliary(batch, balance=0.5, router_z=0.25) == pytest.approx(balance / 2 + router_z / 4, rel=1e-5)
    assert batch.targets is not None
    some = Batch(batch.tokens, batch.targets.where(torch.rand(4, 32) < 0.5, IGNORED))
    assert auxiliary(some, balance=0.0, router_z=1.0) == pytest.approx(router_z, rel=0.3)
    context = Context.of(Batch(batch.tokens))
    tiny(choice)(Batch(batch.tokens), context)
    assert context.losses == {}
