"""One update: the rate it is taken at, what counts as poison, and gradients that fp16 has scaled."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from models import tiny, windows
from running import copied, optimizer, same
from torch import Tensor, nn

from modernllm.config.tree import CONFIG_DIR, read_tree
from modernllm.distributed import OneProcess
from modernllm.loss_scale import DynamicScale, NoScale
from modernllm.objective import Objective
from modernllm.optimizer import SGD, AdamW
from modernllm.schedule import Constant, Cosine
from modernllm.update import Policy, Update

OPTIMIZERS = list(read_tree([CONFIG_DIR])["optimizer"])
CPU = torch.device("cpu")


class Line(nn.Module):
    """w1 + w2 + w3 + w4, whose gradient is four ones: norm 2."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros(4))

    def forward(self) -> Tensor:
        return self.w.sum()


def updates(model: nn.Module, made: Any, **changed: Any) -> Update:
    """Of `model` by this optimizer, at a constant rate, unclipped and unscaled unless `changed`."""
    parts = {"schedule": Constant(10, warmup=0), "clip": math.inf, "nonfinite": "stop", "scale": NoScale()}
    return Update(model, made, group=OneProcess(), **(parts | changed))


def sgd(model: nn.Module) -> SGD:
    return SGD(model, lr=1.0, momentum=0.0, weight_decay=0.0)


def add_gradients(model: nn.Module, step: int) -> None:
    batch = windows(rows=2, seed=step)
    nats, _ = Objective(model)(batch)
    (nats / batch.n_targets).backward()


@pytest.mark.parametrize("choice", OPTIMIZERS)
def test_every_step_is_taken_at_its_own_rate(choice: str) -> None:
    """F-39: the one that is logged, from the first step on; neither the peak nor that of the step before."""
    ours, plain = tiny("model.n_layers=1"), tiny("model.n_layers=1")
    update, by_hand = updates(ours, optimizer(ours, choice), schedule=Cosine(4, warmup=2)), optimizer(plain, choice)
    peaks = [group["lr"] for group in by_hand.param_groups]
    logged = []
    for step, share in enumerate((0.5, 1.0, 0.55, 0.1), 1):
        add_gradients(ours, step)
        logged.append(update(step, torch.tensor(1.0)).lr)
        for group, peak in zip(by_hand.param_groups, peaks, strict=True):
            group["lr"] = peak * share
        add_gradients(plain, step)
        by_hand.step()
        by_hand.zero_grad()
    assert logged == pytest.approx([1.5e-3, 3e-3, 1.65e-3, 3e-4])
    for name, expected in copied(plain).items():
        torch.testing.assert_close(copied(ours)[name], expected, rtol=0, atol=1e-7)


def test_the_weights_move_by_rate_times_gradient() -> None:
    model = Line()
    update = updates(model, sgd(model), schedule=Cosine(4, warmup=2))
    for step, where in enumerate((-0.5, -1.5, -2.05, -2.15), 1):
        model().backward()
        update(step, model().detach())
        assert model.w.tolist() == pytest.approx([where] * 4)


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("policy", "taken"), [("stop", 1), ("skip", 2), ("continue", 3)])
def test_a_loss_that_is_not_finite_poisons_a_step_whose_gradients_are(loss: float, policy: Policy, taken: int) -> None:
    """F-35: the second of three steps."""
    model = Line()
    update, held = updates(model, sgd(model), nonfinite=policy), []
    for step, said in enumerate((1.0, loss, 1.0), 1):
        model().backward()
        held.append(float(update(step, torch.tensor(said)).held))
    assert held == {"stop": [0, 1, 1], "skip": [0, 1, 0], "continue": [0, 0, 0]}[policy]
    assert model.w.tolist() == [-taken] * 4


def test_what_fp16_has_scaled_is_measured_and_clipped_as_it_is() -> None:
    model = Line()
    update = updates(model, sgd(model), clip=0.5, scale=DynamicScale(CPU))
    update.backward(model())
    assert model.w.grad is not None
    assert model.w.grad.tolist() == [2.0**16] * 4
    measured = update(1, model().detach())
    assert measured.norms.tolist() == [2.0]
    assert float(model.w.detach().norm()) == pytest.approx(0.5, rel=1e-6)


def test_an_overflow_is_no_step_of_the_optimizer() -> None:
    """F-42: 9 of 10, in Adam's correction too; the fourth step has the rate of a fourth step."""
    model = Line()
    made = AdamW(model, lr=1.0, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.0)
    update, held, rates = updates(model, made, scale=DynamicScale(CPU), schedule=Cosine(10, warmup=4)), [], []
    for step in range(1, 11):
        before = copied(model)
        update.backward(model() * (1e38 if step == 3 else 1.0))
        measured = update(step, model().detach())
        held.append(same(copied(model), before))
        rates.append(measured.lr)
        assert float(measured.overflowed) == float(measured.held) == float(step == 3)
    assert held == [step == 3 for step in range(1, 11)]
    assert rates[:4] == [0.25, 0.5, 0.75, 1.0]
    (state,) = made.state_dict()["state"].values()
    assert float(state["step"]) == 9
    assert (float(update.scale.value), float(update.scale.calm)) == (2.0**15, 7.0)  # type: ignore[union-attr]
