"""Which learning rate an arm gets, and whether its grid allows to say so."""

from __future__ import annotations

import numpy as np
import pytest

from modernllm.claims.tuning import Choice, best_lr


def chosen(means: list[float], lrs: tuple[float, ...] = (1e-3, 3e-3, 1e-2)) -> Choice:
    """From two tuning seeds with these means."""
    return best_lr(lrs, np.array([[mean - 0.1, mean + 0.1] for mean in means]))


@pytest.mark.parametrize(
    ("means", "lr", "interior", "extension"),
    [
        ([2.2, 2.1, 2.3], 3e-3, True, None),
        ([2.0, 2.1, 2.3], 1e-3, False, 3.33e-4),
        ([2.2, 2.1, 2.0], 1e-2, False, 3.33e-2),
        ([2.1, 2.1, 2.1], 1e-3, False, 3.33e-4),  # a tie goes to the smaller rate
        ([2.2, 2.1, 2.1], 3e-3, True, None),
    ],
)
def test_the_lowest_mean(means: list[float], lr: float, interior: bool, extension: float | None) -> None:
    choice = chosen(means)
    assert (choice.lr, choice.interior, choice.trials) == (lr, interior, 3)
    assert choice.losses == pytest.approx(means)
    assert choice.extension() == extension


def test_the_mean_decides_not_the_luckiest_seed() -> None:
    losses = np.array([[2.3, 2.3], [2.2, 2.2], [1.9, 2.6]])
    assert best_lr([1e-3, 3e-3, 1e-2], losses).lr == 3e-3


def test_rates_in_any_order() -> None:
    choice = best_lr([1e-2, 1e-3, 3e-3], np.array([[2.3], [2.2], [2.1]]))
    assert choice == Choice(3e-3, (1e-3, 3e-3, 1e-2), (2.2, 2.1, 2.3))


def test_grids_of_one_and_two_have_no_inside() -> None:
    assert not chosen([2.0, 2.1], (1e-3, 1e-2)).interior
    alone = chosen([2.0], (1e-3,))
    assert not alone.interior
    with pytest.raises(ValueError, match="one learning rate"):
        alone.extension()


@pytest.mark.parametrize("lrs", [(1e-3, 1e-3, 1e-2), (0.0, 1e-3, 1e-2)])
def test_odd_grids_are_refused(lrs: tuple[float, ...]) -> None:
    with pytest.raises(ValueError, match="write each once, all positive"):
        chosen([2.0, 2.1, 2.2], lrs)
