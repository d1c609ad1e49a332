"""Mixtures of experts against a loop over tokens, and where they are one feed-forward (F-15, F-49)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from modernllm.activation.feedforward import FeedForward
from modernllm.activation.gated import GatedFeedForward
from modernllm.context import Context
from modernllm.moe.none import Dense
from modernllm.moe.router import best
from modernllm.moe.topk import TopK
from modernllm.optimizer import parameter_groups

DIM, LENGTH, EXPERTS = 6, 7, 8
CONTEXT = Context(positions=torch.arange(LENGTH)[None])

SETTINGS: dict[str, Any] = {
    "n_experts": EXPERTS, "k": 2, "shared": 0, "hidden": None, "score": "softmax", "renormalise": True,
    "scale": 1.0, "n_groups": 1, "groups": 1, "balance": 0.0, "router_z": 0.0,
}  # fmt: skip


def expert(kind: type[nn.Module] = GatedFeedForward) -> Callable[..., nn.Module]:
    return partial(kind, DIM, hidden=5, bias=True, dropout=0.0, act=nn.SiLU)


def topk(make: Callable[..., nn.Module] | None = None, dim: int = DIM, **changed: Any) -> TopK:
    return TopK(make or expert(), dim, **SETTINGS | changed).double()


def inputs(rows: int = 3) -> Tensor:
    return torch.randn(rows, LENGTH, DIM, dtype=torch.float64)


def looped(moe: TopK, x: Tensor) -> Tensor:
    """One token after the other, choosing and weighing by hand."""
    y = torch.zeros_like(x)
    n_experts, per_group = len(moe.experts), len(moe.experts) // moe.n_groups
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            token = x[b : b + 1, t : t + 1]
            logits = (moe.router.weight @ token.flatten()).tolist()
            if isinstance(moe.score, nn.Softmax):
                scores = [math.exp(z) / sum(map(math.exp, logits)) for z in logits]
            else:
                scores = [1 / (1 + math.exp(-z)) for z in logits]
            groups = [sorted(scores[g * per_group :][:per_group], reverse=True) for g in range(moe.n_groups)]
            standing = [sum(group[: max(1, moe.k // moe.groups)]) for group in groups]
            kept = sorted(range(moe.n_groups), key=standing.__getitem__, reverse=True)[: moe.groups]
            allowed = [e for e in range(n_experts) if e // per_group in kept]
            chosen = sorted(allowed, key=scores.__getitem__, reverse=True)[: moe.k]
            total = sum(scores[e] for e in chosen) if moe.renormalise else 1.0
            for e in chosen:
                y[b, t] += moe.scale * scores[e] / total * moe.experts[e](token, CONTEXT)[0, 0]
            for shared in moe.shared:
                y[b, t] += shared(token, CONTEXT)[0, 0]
    return y


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"k": 1},
        {"k": 3, "renormalise": False},
        {"k": 8},
        {"score": "sigmoid"},
        {"score": "sigmoid", "renormalise": False, "scale": 2.5},
        {"shared": 2, "scale": 0.5},
        {"n_groups": 4, "groups": 2},
        {"n_groups": 4, "groups": 2, "k": 4, "score": "sigmoid"},
        {"n_groups": 4, "groups": 1, "k": 2},
        {"n_groups": 8, "groups": 3, "k": 3},
    ],
    ids=str,
)
@torch.no_grad()
def test_the_formula(changed: dict[str, Any]) -> None:
    moe, x = topk(**changed), inputs()
    torch.testing.assert_close(moe(x, CONTEXT), looped(moe, x), rtol=0, atol=1e-12)


@torch.no_grad()
def test_all_experts_are_the_whole_mixture() -> None:
    moe, x = topk(k=EXPERTS, renormalise=False), inputs()
    outputs = torch.stack([e(x, CONTEXT) for e in moe.experts], -1)
    shares = (x @ moe.router.weight.mT).softmax(-1)
    torch.testing.assert_close(moe(x, CONTEXT), (outputs * shares[:, :, None]).sum(-1), rtol=0, atol=1e-12)


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("k", [1, 2, 8])
@pytest.mark.parametrize("kind", [FeedForward, GatedFeedForward])
@torch.no_grad()
def test_identical_experts_are_one(kind: type[nn.Module], k: int, score: str) -> None:
    """With weights that sum to one, however they are chosen."""
    moe, x = topk(expert(kind), k=k, score=score), inputs()
    for e in moe.experts:
        e.load_state_dict(moe.experts[0].state_dict())
    torch.testing.assert_close(moe(x, CONTEXT), moe.experts[0](x, CONTEXT), rtol=0, atol=1e-12)


@torch.no_grad()
def test_experts_that_everyone_wants() -> None:
    """Nothing is dropped where all tokens go to the same two."""
    moe, x = topk(), inputs()
    x[..., 0] = 1.0
    moe.router.weight.zero_()
    moe.router.weight[[2, 5], 0] = torch.tensor([9.0, 8.0], dtype=torch.float64)
    first, second = torch.tensor([1.0, 0.0], dtype=torch.float64).softmax(0)
    expected = first * moe.experts[2](x, CONTEXT) + second * moe.experts[5](x, CONTEXT)
    torch.testing.assert_close(moe(x, CONTEXT), expected, rtol=0, atol=1e-12)


def test_experts_are_what_the_dense_layer_is() -> None:
    assert isinstance(Dense(expert(FeedForward), DIM), FeedForward)
    for kind in (FeedForward, GatedFeedForward):
        moe = topk(expert(kind), hidden=3, shared=1)
        assert len(moe.experts) == EXPERTS
        for e in (*moe.experts, *moe.shared):
            assert isinstance(e, kind)
            assert e.out.weight.shape == (DIM, 3)
        assert topk(expert(kind)).experts[0].out.weight.shape == (DIM, 5)
    starts = {float(e.out.weight.detach().sum()) for e in topk().experts}
    assert len(starts) == EXPERTS


# --- weights (F-15)


class Named(nn.Module):
    """The e-th expert of a layer says the e-th unit vector: the output is the weights."""

    def __init__(self, made: list[int]):
        super().__init__()
        self.index = len(made)
        made.append(self.index)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return torch.eye(4, dtype=x.dtype)[self.index].expand_as(x)


def weights(logits: list[float], **changed: Any) -> list[float]:
    made: list[int] = []
    moe = TopK(lambda: Named(made), 4, **SETTINGS | {"n_experts": 4} | changed)
    nn.init.eye_(moe.router.weight)
    return moe(torch.tensor([[logits]]), CONTEXT).flatten().tolist()


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, [0.731, 0.269, 0, 0]),
        ({"renormalise": False}, [0.644, 0.237, 0, 0]),
        ({"k": 1}, [1, 0, 0, 0]),
        ({"k": 1, "renormalise": False}, [0.644, 0, 0, 0]),
        ({"k": 4}, [0.644, 0.237, 0.087, 0.032]),
        ({"scale": 2.5}, [1.828, 0.672, 0, 0]),
        ({"score": "sigmoid", "renormalise": False}, [0.881, 0.731, 0, 0]),
        ({"score": "sigmoid"}, [0.546, 0.454, 0, 0]),
        ({"n_groups": 2, "k": 1}, [1, 0, 0, 0]),
    ],
    ids=str,
)
def test_the_weights_of_known_logits(changed: dict[str, Any], expected: list[float]) -> None:
    assert weights([2.0, 1.0, 0.0, -1.0], **changed) == pytest.approx(expected, abs=5e-4)


def test_one_expert_of_weight_one_for_every_token() -> None:
    """Over experts, not over tokens."""
    made: list[int] = []
    moe = TopK(lambda: Named(made), 4, **SETTINGS | {"n_experts": 4, "k": 1})
    torch.testing.assert_close(moe(torch.randn(5, 9, 4), CONTEXT).sum(-1), torch.ones(5, 9))


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_logits_that_leave_nothing(score: str) -> None:
    """A sigmoid of -1000 is zero, and so are the weights; nothing is NaN."""
    found = weights([-1000.0, -1000.0, -1000.0, -1000.0], score=score)
    assert sum(found) == pytest.approx(1.0 if score == "softmax" else 0.0)


def test_a_group_is_as_good_as_its_best_pair() -> None:
    """The best expert alone does not keep its group; a preference below zero is still one."""
    preference = torch.tensor([[[0.9, 0.0, 0.0, 0.5, 0.5, 0.1]]])
    assert sorted(best(preference, 2, 2, 1).flatten().tolist()) == [3, 4]
    assert sorted(best(preference, 2, 2, 2).flatten().tolist()) in ([0, 3], [0, 4])
    assert sorted(best(preference - 2, 3, 2, 1).flatten().tolist()) == [3, 4, 5]
    assert sorted(best(preference - 2, 2, 1, 1).flatten().tolist()) in ([0, 3], [0, 4])


def test_the_router_is_exact_under_autocast() -> None:
    """Logits of 200 and 200.2 are one number in bfloat16, and two in the router whatever the products are in."""
    moe = topk(k=1).float()
    with torch.no_grad():
        moe.router.weight.zero_()
        moe.router.weight[3:5, 0] = torch.tensor([200.0, 200.2])
    x = torch.ones(1, 1, DIM)
    with torch.autocast("cpu", torch.bfloat16):
        found, y = moe.router(x), moe(x, CONTEXT)
        expert = moe.experts[4](x, CONTEXT)
    assert found.dtype == torch.float32
    assert torch.equal(found, x @ moe.router.weight.mT)
    assert torch.equal(found.bfloat16()[..., 3], found.bfloat16()[..., 4])
    assert torch.equal(y, expert.float())
    assert moe.score(found).dtype == y.dtype == torch.float32
    assert moe.bfloat16()(x.bfloat16(), CONTEXT).dtype == torch.bfloat16
    assert moe.router(x.bfloat16()).dtype == torch.float32


def test_the_gradient_reaches_the_router_through_the_weights() -> None:
    moe, x = topk(k=2), inputs()
    assert torch.autograd.gradcheck(lambda w: torch.func.functional_call(moe, {"router.weight": w}, (x, CONTEXT)).sum(),
                                    moe.router.weight)  # fmt: skip


# --- experts without tokens (F-49)


def test_an_idle_expert_is_treated_as_any_weight_with_a_gradient_of_zero() -> None:
    """Momentum and decay go on: after a step with tokens, one without moves it as the rule of AdamW says."""
    moe = topk(k=1, balance=0.0)
    groups = parameter_groups(
        ((n, p, "hidden") for n, p in moe.experts[3].named_parameters()), lr=1e-2, weight_decay=0.1, decay="coupled"
    )
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-8)
    before: dict[str, Tensor] = {}
    moment, square = {}, {}
    for step, wanted in enumerate((True, False), 1):
        with torch.no_grad():
            x = inputs().abs()
            moe.router.weight.zero_()
            moe.router.weight[3] = 1.0 if wanted else -1.0
        moe.zero_grad()
        moe(x, CONTEXT).square().sum().backward()
        for name, p in moe.experts[3].named_parameters():
            assert p.grad is not None
            assert bool(p.grad.abs().max() > 0) is wanted
            moment[name] = 0.9 * moment.get(name, 0) + 0.1 * p.grad
            square[name] = 0.95 * square.get(name, 0) + 0.05 * p.grad**2
            before[name] = p.detach().clone()
        optimizer.step()
        for name, p in moe.experts[3].named_parameters():
            m, v = moment[name] / (1 - 0.9**step), square[name] / (1 - 0.95**step)
            expected = before[name] * (1 - 1e-2 * 0.1) - 1e-2 * m / (v.sqrt() + 1e-8)
            torch.testing.assert_close(p.detach(), expected, rtol=0, atol=1e-12)
            assert not torch.equal(p.detach(), before[name])


def test_all_idle_but_one() -> None:
    moe, x = topk(k=1), inputs().abs()
    with torch.no_grad():
        moe.router.weight.zero_()
        moe.router.weight[6] = 1.0
    moe(x, CONTEXT).sum().backward()
    for index, e in enumerate(moe.experts):
        for p in e.parameters():
            assert p.grad is not None
            assert bool(p.grad.any()) is (index == 6)


# --- what cannot be


@pytest.mark.parametrize(
    "changed",
    [{"k": 9}, {"n_groups": 3}, {"n_groups": 2, "groups": 3}, {"n_groups": 4, "groups": 1, "k": 3}],
    ids=str,
)
def test_choices_that_cannot_be_made(changed: dict[str, Any]) -> None:
    asked = SETTINGS | changed
    message = f"k={asked['k']} experts .* groups={asked['groups']} of n_groups={asked['n_groups']} .*n_experts=8"
    with pytest.raises(ValueError, match=message):
        topk(**changed)
