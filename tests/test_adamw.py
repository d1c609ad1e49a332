"""The AdamW that keeps its lists against torch's, bit for bit."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from modernllm.adamw import FusedAdamW

SHAPES = ((4, 3), (3,), (2, 2, 2), ())


def parameters(dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(0)
    return [nn.Parameter(torch.randn(shape, generator=draw).to(dtype)) for shape in SHAPES]


def groups(given: list[nn.Parameter]) -> list[dict[str, Any]]:
    return [
        {"params": given[:2], "lr": 0.01, "weight_decay": 0.3},
        {"params": given[2:], "lr": 0.02, "weight_decay": 0.0},
    ]


def ours(given: list[nn.Parameter]) -> FusedAdamW:
    return FusedAdamW(groups(given), 0.01, (0.8, 0.95), 1e-6)


def theirs(given: list[nn.Parameter]) -> torch.optim.AdamW:
    return torch.optim.AdamW(groups(given), lr=0.01, betas=(0.8, 0.95), eps=1e-6, fused=True)


def give(given: list[nn.Parameter], step: int, present: set[int]) -> None:
    """Gradients that depend on the step alone, to those that have one."""
    draw = torch.Generator().manual_seed(step)
    for place, parameter in enumerate(given):
        gradient = torch.randn(parameter.shape, generator=draw).to(parameter.dtype)
        parameter.grad = gradient if place in present else None


def everything(given: list[nn.Parameter], optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, Tensor]]:
    for place, parameter in enumerate(given):
        yield f"{place}", parameter
        for name, value in optimizer.state.get(parameter, {}).items():
            yield f"{place}.{name}", value


def assert_equal(mine: Any, hers: Any) -> None:
    mine, hers = dict(everything(*mine)), dict(everything(*hers))
    assert mine.keys() == hers.keys()
    assert [name for name, value in mine.items() if not torch.equal(value, hers[name])] == []


ALL = {0, 1, 2, 3}
WAYS = {
    "always the same": [ALL] * 5,
    "one comes late": [{1, 2, 3}, {1, 2, 3}, ALL, ALL],
    "one is missing now and then": [ALL, {0, 2}, ALL, {0, 1}, {3}, ALL],
    "none in a step": [ALL, set(), {2}, ALL],
}


@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
@pytest.mark.parametrize("held_at", [None, 0, 2])
def test_it_does_what_torchs_does(way: list[set[int]], held_at: int | None) -> None:
    """Weights, moments and steps, which gradients there are and whether a step is held back."""
    mine, hers = parameters(), parameters()
    my, her = ours(mine), theirs(hers)
    for step, present in enumerate(way):
        held = torch.tensor(float(step == held_at))
        my.found_inf, her.found_inf = held, held.clone()  # type: ignore[attr-defined]
        for given, optimizer in ((mine, my), (hers, her)):
            optimizer.param_groups[0]["lr"] = 0.01 / (1 + step)
            give(given, step, present)
            optimizer.step()
        assert_equal((mine, my), (hers, her))


def test_without_a_word_of_being_held_it_steps() -> None:
    mine, hers = parameters(), parameters()
    my, her = ours(mine), theirs(hers)
    for given, optimizer in ((mine, my), (hers, her)):
        give(given, 0, ALL)
        optimizer.step()
    assert_equal((mine, my), (hers, her))


def test_parameters_of_several_types_share_a_group() -> None:
    wide, narrow = parameters()[:1], parameters(torch.bfloat16)[1:2]
    mine, hers = [*wide, *narrow], [nn.Parameter(p.detach().clone()) for p in (*wide, *narrow)]
    my = FusedAdamW([{"params": mine}], 0.01, (0.8, 0.95), 1e-6)
    her = torch.optim.AdamW(hers, lr=0.01, betas=(0.8, 0.95), eps=1e-6, fused=True, weight_decay=1e-2)
    for step in range(3):
        for given, optimizer in ((mine, my), (hers, her)):
            give(given, step, {0, 1})
            optimizer.step()
    assert_equal((mine, my), (hers, her))


@pytest.mark.parametrize("makers", [(ours, theirs), (theirs, ours), (ours, ours)], ids=["out", "in", "both"])
def test_its_state_goes_to_a_file_and_to_torchs_optimizer_and_back(makers: Any) -> None:
    """Torch's format both ways, and a state that is loaded after some steps is what goes on."""
    first, second, through = parameters(), parameters(), parameters()
    make, other = makers
    before, after, undisturbed = make(first), other(second), theirs(through)
    for step in range(3):
        for given, optimizer in ((first, before), (through, undisturbed)):
            give(given, step, ALL)
            optimizer.step()
    give(second, 9, ALL)
    after.step()
    file = io.BytesIO()
    torch.save({"weights": [p.detach() for p in first], "optimizer": before.state_dict()}, file)
    file.seek(0)
    content = torch.load(file, weights_only=True)
    for parameter, weight in zip(second, content["weights"], strict=True):
        parameter.data.copy_(weight)
    after.load_state_dict(content["optimizer"])
    for step in range(3, 6):
        for given, optimizer in ((second, after), (through, undisturbed)):
            give(given, step, ALL)
            optimizer.step()
    assert_equal((second, after), (through, undisturbed))
