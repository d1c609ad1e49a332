"""AdamW against its formula, and the latch on the device."""

from __future__ import annotations

import math
from typing import get_args

import pytest
import torch
from models import tiny
from running import copied, optimizer, same
from torch import Tensor, nn

from modernllm.linear import Linear, Role
from modernllm.norm.layernorm import LayerNorm
from modernllm.optimizer import AdamW

LR, BETA1, BETA2, EPS, DECAY = 0.05, 0.8, 0.95, 1e-3, 0.3


def pair() -> nn.Sequential:
    model = nn.Sequential(Linear(3, 2, bias=True, role="hidden"), LayerNorm(2))
    for p in model.parameters():
        nn.init.normal_(p)
    return model


def adamw(model: nn.Module, lr: float = LR) -> AdamW:
    return AdamW(model, lr=lr, betas=[BETA1, BETA2], eps=EPS, weight_decay=DECAY)


def set_gradients(model: nn.Module, seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=draw).to(p.dtype)


def adam(w: float, gradients: list[float], decay: float) -> float:
    """w <- w - lr (m / (sqrt(v) + eps) + decay w), m and v corrected for their start at zero"""
    m = v = 0.0
    for t, g in enumerate(gradients, start=1):
        m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g * g
        m_hat, v_hat = m / (1 - BETA1**t), v / (1 - BETA2**t)
        w = w - LR * (m_hat / (math.sqrt(v_hat) + EPS) + decay * w)
    return w


def test_the_formula() -> None:
    model = pair().double()
    optimizer, seeds = adamw(model), range(5)
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    history: dict[str, list[Tensor]] = {name: [] for name in start}
    for seed in seeds:
        set_gradients(model, seed)
        for name, p in model.named_parameters():
            assert p.grad is not None
            history[name].append(p.grad.clone())
        optimizer.step()
    for name, p in model.named_parameters():
        decay = DECAY if name == "0.weight" else 0.0
        for index, w in enumerate(start[name].flatten().tolist()):
            gradients = [float(g.flatten()[index]) for g in history[name]]
            assert float(p.detach().flatten()[index]) == pytest.approx(adam(w, gradients, decay), rel=1e-9)


def test_groups_by_role() -> None:
    model = nn.ModuleDict({role: Linear(2, 2, bias=True, role=role) for role in get_args(Role)})
    decayed, kept = adamw(model).param_groups
    assert decayed["params"] == [model[role].weight for role in ("hidden", "score", "gate", "stream", "head")]
    assert decayed["weight_decay"] == DECAY
    assert kept["weight_decay"] == 0.0
    assert len(kept["params"]) == 11 + 6


def test_modules_of_torch_are_sorted_by_shape() -> None:
    """They state no role: matrices are decayed, vectors are not."""
    model = nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))
    decayed, kept = adamw(model).param_groups
    assert decayed["params"] == [model[0].weight]
    assert len(kept["params"]) == 3


def state_of(model: nn.Module, optimizer: AdamW) -> list[Tensor]:
    moments = [part for p in model.parameters() for part in optimizer.state[p].values()]
    return [part.detach().clone() for part in (*model.parameters(), *moments)]


@pytest.mark.parametrize("poison", [math.nan, math.inf, 1.0])
def test_the_latch_makes_a_step_nothing(poison: float) -> None:
    """Weights, moments and step counts stay, bit for bit; afterwards it goes on as if nothing had been."""
    model, clean = pair(), pair()
    clean.load_state_dict(model.state_dict())
    latched, plain = adamw(model), adamw(clean)
    for step, found_inf in enumerate((0.0, 1.0, 1.0, 0.0)):
        before = state_of(model, latched) if step else []
        set_gradients(model, step)
        if found_inf:
            for p in model.parameters():
                assert p.grad is not None
                p.grad.fill_(poison)
        latched.found_inf = torch.tensor(found_inf)  # type: ignore[attr-defined]
        latched.step()
        if found_inf:
            assert all(map(torch.equal, before, state_of(model, latched)))
        else:
            set_gradients(clean, step)
            plain.step()
    assert all(map(torch.equal, state_of(model, latched), state_of(clean, plain)))


def test_two_betas() -> None:
    with pytest.raises(ValueError, match=r"optimizer\.betas=\[0\.9\]: two numbers"):
        AdamW(pair(), lr=0.1, betas=[0.9], eps=1e-8, weight_decay=0.0)


@pytest.mark.parametrize("choice", ["adafactor", "muon", "sgd"])
def test_rates_that_are_scaled_for_adams_steps_are_for_no_others(choice: str) -> None:
    """Lion's steps are of Adam's size in every entry; one that is orthogonal grows otherwise with the width."""
    model = tiny()
    optimizer(model, choice)
    model.get_parameter("blocks.0.sublayers.attention.q.weight").lr_scale = 0.5  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=f"init=mup scales the rates of Adam's steps: optimizer={choice} needs"):
        optimizer(model, choice)


@pytest.mark.parametrize("choice", ["adamw", "lion", "muon", "sgd"])
@pytest.mark.parametrize("held_at", [0, 2])
def test_a_device_that_nobody_waits_for_holds_a_step_back_alike(
    choice: str, held_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit what it is where the host looks, in the first step too, where moments begin."""
    models = [tiny(), tiny()]
    for model, host in zip(models, ({"cpu"}, set()), strict=True):
        monkeypatch.setattr("modernllm.optimizer.HOST", host)
        made = optimizer(model, choice)
        for step in range(4):
            set_gradients(model, step)
            if step == held_at:
                model.head.weight.grad.fill_(math.nan)
                next(model.parameters()).grad.fill_(math.inf)
            before = copied(model)
            made.found_inf = torch.tensor(float(step == held_at))
            made.step()
            assert same(copied(model), before) == (step == held_at)
    assert same(*map(copied, models))
