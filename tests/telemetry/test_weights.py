"""What a step does to the weights: held against the weights before and after."""

from __future__ import annotations

import math

import pytest
import torch
from models import close, config, tiny, windows
from torch import Tensor, nn

from modernllm.config.build import build
from modernllm.linear import parameter_roles
from modernllm.objective import Objective
from modernllm.telemetry.observer import Series
from modernllm.telemetry.weights import Weights, near_eps


def stepped(choice: str = "adamw", **changed: float) -> tuple[nn.Module, dict[str, Tensor], Series, Series]:
    """A model after one step, its weights before, and what is told of the step by layer and by tensor."""
    model = tiny("activation=reglu")
    optimizer = build(config(f"optimizer={choice}")["optimizer"] | {"lr": 1e-2} | changed, "optimizer", model=model)
    batch = windows()
    nats, _ = Objective(model)(batch)
    (nats / batch.n_targets).backward()
    before = {name: p.detach().clone() for name, p, _ in parameter_roles(model)}
    weights = Weights(model)
    gradients = torch.stack([p.grad.norm() for _, p, _ in parameter_roles(model) if p.grad is not None])
    weights.before()
    optimizer.step()
    return model, before, *weights.series(gradients, weights.after(optimizer))


def test_the_squares_of_tensors_add_up_to_layers_and_layers_to_the_whole() -> None:
    model, _, layers, tensors = stepped()
    whole = sum(float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None)
    for found in (layers, tensors):
        assert sum(norm**2 for norm in found["grad_norm"].values()) == pytest.approx(whole, rel=1e-5)
    inside = [norm for name, norm in tensors["grad_norm"].items() if name.startswith("blocks.1.")]
    assert layers["grad_norm"]["layer.01"] == pytest.approx(math.hypot(*inside))
    name = "blocks.0.sublayers.attention.q.weight"
    gradient = model.get_parameter(name).grad
    assert gradient is not None
    assert tensors["grad_rms"][name] == pytest.approx(float(gradient.square().mean().sqrt()), rel=1e-5)


@pytest.mark.parametrize("choice", ["adamw", "sgd", "muon", "lion", "adafactor"])
def test_update_to_weight_is_of_the_step_as_taken(choice: str) -> None:
    """Weight decay is part of it."""
    model, before, layers, tensors = stepped(choice, weight_decay=3.0)
    for name, old in before.items():
        if old.any():
            moved = float((model.get_parameter(name).detach() - old).norm() / old.norm())
            assert tensors["update_ratio"][name] == pytest.approx(moved, rel=1e-4)
        assert tensors["weight_norm"][name] == pytest.approx(float(old.norm()), rel=1e-5)
    assert tensors["update_ratio"]["embedding.weight"] < layers["update_ratio"]["layer.00"]
    assert ("near_eps" in layers) == (choice in ("adamw", "muon"))


def test_second_moments_near_eps() -> None:
    """After one step v / (1 - b2) is g^2, so the share is that of |g| < 10 eps."""
    model, _, layers, tensors = stepped(eps=1e-4)
    for name, p, _ in parameter_roles(model):
        assert p.grad is not None
        assert tensors["near_eps"][name] == pytest.approx(float((p.grad.abs() < 1e-3).float().mean()), abs=1e-3)
    members = [p for name, p, _ in parameter_roles(model) if name.startswith("blocks.1.")]
    low = sum(int((p.grad.abs() < 1e-3).sum()) for p in members if p.grad is not None)
    assert layers["near_eps"]["layer.01"] == pytest.approx(low / sum(p.numel() for p in members), abs=1e-3)


def test_a_step_that_was_not_taken_and_what_is_sick() -> None:
    model = tiny()
    optimizer = build(config()["optimizer"], "optimizer", model=model)
    weights = Weights(model)
    weights.before()
    moved = weights.after(optimizer)
    close(moved.step, torch.zeros_like(moved.step))
    assert near_eps(optimizer, list(weights.parameters)).isnan().all()
    gradients = torch.full_like(moved.step, math.nan)
    gradients[1] = math.inf
    layers, tensors = weights.series(gradients, moved)
    assert set(layers["update_ratio"].values()) == {0.0}
    assert "near_eps" not in layers
    assert math.isinf(tensors["grad_norm"][weights.names[1]])
    assert math.isnan(layers["grad_norm"]["head"])
