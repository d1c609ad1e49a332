"""The loss scale of fp16: down where gradients overflow, up again after a while without (F-42)."""

from __future__ import annotations

import pytest
import torch

from modernllm.loss_scale import DynamicScale

CPU = torch.device("cpu")


def seen(scale: DynamicScale, finite: str) -> list[float]:
    """The scale after each of so many steps, of which those with an x overflow."""
    values = []
    for one in finite:
        scale.overflowed(torch.tensor(one != "x"))
        values.append(float(scale.value))
    return values


@pytest.fixture(autouse=True)
def _short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DynamicScale, "PATIENCE", 3)


def test_it_halves_at_once_and_doubles_after_three_steps_without() -> None:
    assert seen(DynamicScale(CPU, start=8.0), "..x.......x..x...") == [
        8, 8, 4, 4, 4, 8, 8, 8, 16, 16, 8, 8, 8, 4, 4, 4, 8,
    ]  # fmt: skip


def test_at_one_it_is_not_to_blame() -> None:
    scale = DynamicScale(CPU, start=2.0)
    told = [float(scale.overflowed(torch.tensor(False))) for _ in range(3)]
    assert (told, float(scale.value)) == ([1.0, 0.0, 0.0], 1.0)


@pytest.mark.parametrize("at", [1, 2, 4])
def test_it_goes_on_from_a_checkpoint_as_if_nothing_had_been(at: int) -> None:
    """With the steps since the last overflow: neither back at its start nor late to grow."""
    steps = ".x...x.."
    whole, cut = DynamicScale(CPU, start=8.0), DynamicScale(CPU, start=8.0)
    expected, before = seen(whole, steps), seen(cut, steps[:at])
    resumed = DynamicScale(CPU, start=64.0)
    resumed.load_state_dict(cut.state_dict())
    assert before + seen(resumed, steps[at:]) == expected
