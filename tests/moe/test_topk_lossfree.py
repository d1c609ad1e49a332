"""Balancing by a bias on the choice: the rule of its steps, and what it does not touch."""

from __future__ import annotations

import io
from functools import partial
from typing import Any

import pytest
import torch
from models import tiny, windows
from torch import Tensor, nn

from modernllm.activation.feedforward import FeedForward
from modernllm.batch import IGNORED, Batch
from modernllm.context import Context
from modernllm.moe.topk import TopK
from modernllm.moe.topk_lossfree import LossFreeTopK
from modernllm.objective import Objective

DIM, EXPERTS = 4, 4
TAKEN, HELD = torch.zeros(()), torch.ones(())
MAKE = partial(FeedForward, DIM, hidden=3, bias=False, dropout=0.0, act=nn.ReLU)
SETTINGS: dict[str, Any] = {
    "n_experts": EXPERTS, "k": 1, "shared": 0, "hidden": None, "score": "sigmoid", "renormalise": True,
    "scale": 1.0, "n_groups": 1, "groups": 1, "balance": 0.0, "router_z": 0.0,
}  # fmt: skip


def lossfree(rate: float = 0.125, **changed: Any) -> LossFreeTopK:
    moe = LossFreeTopK(MAKE, DIM, rate=rate, **SETTINGS | changed)
    nn.init.eye_(moe.router.weight)
    return moe


def route(moe: TopK, logits: list[list[float]], targets: list[int] | None = None) -> Tensor:
    """One row whose tokens have these logits; the output."""
    tokens = torch.zeros(1, len(logits), dtype=torch.long)
    wanted = tokens if targets is None else torch.tensor([targets])
    return moe(torch.tensor([logits]), Context.of(Batch(tokens, wanted)))


def towards(*experts: int) -> list[list[float]]:
    return [[3.0 if e == expert else 0.0 for e in range(EXPERTS)] for expert in experts]


def test_a_step_of_the_bias() -> None:
    """Loads 5 2 1 0 have a mean of 2: down, still, up, up, and nothing is left of them."""
    moe = lossfree()
    route(moe, towards(0, 0, 0, 0, 0, 1, 1, 2))
    assert moe.load.tolist() == [5, 2, 1, 0]
    moe.after_step(TAKEN)
    assert moe.steps_up.tolist() == [-1, 0, 1, 1]
    assert moe.load.tolist() == [0, 0, 0, 0]
    bias = moe.preference(torch.zeros(1, 1, EXPERTS)).flatten()
    assert bias.tolist() == [-0.125, 0.0, 0.125, 0.125]
    assert bias.dtype == torch.float32
    moe.after_step(TAKEN)  # no token, no step
    assert moe.steps_up.tolist() == [-1, 0, 1, 1]


def test_the_load_is_that_of_the_whole_step() -> None:
    """Of all its parts, and of the tokens that count."""
    moe = lossfree()
    route(moe, towards(0, 0, 1), [7, 7, IGNORED])
    route(moe, towards(3, 2, 2), [7, IGNORED, IGNORED])
    assert moe.load.tolist() == [2, 0, 0, 1]
    moe.eval()
    route(moe, towards(1, 1, 1))
    moe.train()
    moe(torch.randn(1, 3, DIM), Context(positions=torch.arange(3)[None]))  # no loss is asked for
    assert moe.load.tolist() == [2, 0, 0, 1]
    pair = lossfree(k=2)
    route(pair, [[3.0, 2.0, 0.0, 0.0]])
    assert pair.load.tolist() == [1, 1, 0, 0]


def test_a_step_that_is_not_taken_moves_nothing() -> None:
    moe = lossfree()
    route(moe, towards(0, 0, 0))
    moe.after_step(HELD)
    assert moe.steps_up.tolist() == [0, 0, 0, 0]
    assert moe.load.tolist() == [0, 0, 0, 0]


@torch.no_grad()
def test_the_bias_chooses_and_does_not_weigh() -> None:
    moe = lossfree(renormalise=False)
    moe.steps_up += torch.tensor([0, 0, 4, 0])
    x = torch.tensor([[[2.0, 1.0, 0.5, 0.0]]])
    y = moe(x, Context(positions=torch.zeros(1, 1, dtype=torch.long)))
    score = torch.tensor(0.5).sigmoid()
    torch.testing.assert_close(y, score * moe.experts[2](x, Context(positions=torch.zeros(1, 1, dtype=torch.long))))


@torch.no_grad()
def test_experts_below_zero_in_groups() -> None:
    """A group that is not chosen stays out of it also where all of the other's scores and biases sum below zero."""
    moe = lossfree(n_groups=2, groups=1, k=2)
    moe.steps_up -= 100
    moe.steps_up[:2] += 8
    x = torch.tensor([[[-1.0, -1.0, 2.0, 0.0]]])
    chosen = moe.preference(moe.score(moe.router(x)))
    assert float(chosen.max()) < 0
    seen: list[int] = []
    for index, expert in enumerate(moe.experts):
        expert.register_forward_pre_hook(lambda m, given, index=index: seen.append(index) if given[0].numel() else None)
    moe(x, Context(positions=torch.zeros(1, 1, dtype=torch.long)))
    assert seen == [0, 1]


@torch.no_grad()
def test_without_a_bias_it_is_topk() -> None:
    moe, plain, x = lossfree(k=2, shared=1), TopK(MAKE, DIM, **SETTINGS | {"k": 2, "shared": 1}), torch.randn(2, 5, DIM)
    plain.load_state_dict({name: value for name, value in moe.state_dict().items() if name != "steps_up"})
    context = Context(positions=torch.arange(5)[None])
    assert torch.equal(moe(x, context), plain(x, context))
    moe.steps_up += torch.tensor([9, -9, 9, -9])
    assert not torch.equal(moe(x, context), plain(x, context))


def test_it_balances() -> None:
    """A router that sends everything to two of four experts uses all alike after 250 steps."""
    moe = lossfree(rate=0.004).requires_grad_(False)
    logits = torch.randn(1, 2000, DIM) + torch.tensor([2.0, 2.0, 0.0, -1.0])
    context = Context(positions=torch.zeros(1, 2000, dtype=torch.long), targets=torch.zeros(1, 2000, dtype=torch.long))
    shares = []
    for _ in range(250):
        moe(logits, context)
        shares.append((moe.load.max() / moe.load.float().mean()).item())
        moe.after_step(TAKEN)
    assert shares[0] > 1.7
    assert max(shares[-20:]) < 1.1


def test_the_bias_is_saved_and_no_dtype_rounds_it() -> None:
    model, file = tiny("moe=topk_lossfree"), io.BytesIO()
    layers = [module for module in model.modules() if isinstance(module, LossFreeTopK)]
    assert len(layers) == 2
    model.train()
    Objective(model)(windows())
    for moe in layers:
        assert int(moe.load.sum()) == 2 * windows().n_targets
        moe.after_step(TAKEN)
        moe.steps_up += 1001  # a bias of 1.001 is none of bfloat16
    expected = [moe.steps_up.clone() for moe in layers]
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = tiny("moe=topk_lossfree", seed=1)
    other.load_state_dict(torch.load(file, weights_only=True))
    found = [module for module in other.to(torch.bfloat16).modules() if isinstance(module, LossFreeTopK)]
    for moe, steps in zip(found, expected, strict=True):
        assert torch.equal(moe.steps_up, steps)
        assert moe.preference(torch.zeros(1, 1, 8)).dtype == torch.float32
    assert not any(name.endswith("load") for name in model.state_dict())


def test_reset_after_materialising() -> None:
    moe = lossfree().to("meta").to_empty(device="cpu")
    moe.reset()
    assert moe.steps_up.tolist() == moe.load.tolist() == [0] * EXPERTS
    assert moe.steps_up.dtype == torch.long


@pytest.mark.parametrize("micro_batch", [1, 2, 4])
def test_micro_batches_are_one_step(micro_batch: int) -> None:
    model = tiny("moe=topk_lossfree").train()
    with torch.no_grad():
        for part in windows().split(micro_batch):
            Objective(model)(part)
    loads = [moe.load.tolist() for moe in model.modules() if isinstance(moe, LossFreeTopK)]
    whole = tiny("moe=topk_lossfree").train()
    Objective(whole)(windows())
    assert loads == [moe.load.tolist() for moe in whole.modules() if isinstance(moe, LossFreeTopK)]
