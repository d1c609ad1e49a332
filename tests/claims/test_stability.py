"""Learning-rate curves of arms, on grids small enough to work out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from modernllm.claims.stability import capped, difference_of_differences, lr_regret, lr_sensitivity, max_stable_lr

# two arms, three rates, two seeds; the second arm never learns at its second seed
LOSSES = np.array(
    [
        [[2.0, 2.1], [2.2, 2.2], [3.0, 5.0]],
        [[2.5, 5.0], [2.0, 5.0], [5.0, 5.0]],
    ]
)


def test_caps_by_hand() -> None:
    losses = np.array([2.0, 6.0, math.nan, math.inf, -math.inf, 5.0])
    assert capped(losses, np.array([5.0, 5.0, 5.1, 5.2, 5.3, 5.0])).tolist() == [2.0, 5.0, 5.1, 5.2, 5.3, 5.0]
    with pytest.raises(ValueError, match="cannot start"):
        capped(np.array([2.0]), np.array([math.nan]))


def test_regret_by_hand() -> None:
    """Best of any arm: 2.0 and 2.1."""
    expected = [[(0 + 0.2 + 1.0) / 3, (0 + 0.1 + 2.9) / 3], [(0.5 + 0 + 3.0) / 3, 2.9]]
    assert lr_regret(LOSSES) == pytest.approx(np.array(expected))


def test_an_arm_that_never_learns_is_not_sensitive_but_pays_in_regret() -> None:
    """Own best: 2.0 and 2.1 for the first arm, 2.0 and 5.0 for the second."""
    expected = [[(0 + 0.2 + 1.0) / 3, (0 + 0.1 + 2.9) / 3], [(0.5 + 0 + 3.0) / 3, 0.0]]
    assert lr_sensitivity(LOSSES) == pytest.approx(np.array(expected))
    assert lr_regret(LOSSES)[1, 1] == pytest.approx(2.9)


def test_repetitions_come_first() -> None:
    many = np.stack([LOSSES, LOSSES + 1, LOSSES[::-1]])
    assert lr_regret(many).shape == lr_sensitivity(many).shape == (3, 2, 2)
    assert lr_regret(many)[1] == pytest.approx(lr_regret(LOSSES))
    assert lr_regret(many)[2] == pytest.approx(lr_regret(LOSSES)[::-1])


def test_the_difference_of_regrets_is_the_difference_of_mean_losses() -> None:
    regret = lr_regret(LOSSES)
    assert regret[1] - regret[0] == pytest.approx(LOSSES.mean(axis=1)[1] - LOSSES.mean(axis=1)[0])


def test_largest_rate_that_did_not_fail() -> None:
    failed = np.array([[False, True, True], [False, False, True], [True, False, True]])
    found = max_stable_lr([1e-3, 3e-3, 1e-2], failed)
    assert found[:2].tolist() == [3e-3, 1e-2]
    assert np.isnan(found[2])


def test_warm_up_helps_one_placement_more() -> None:
    """Post 2.85 to 2.34, Pre 2.22 to 2.24."""
    found = difference_of_differences(*(np.array([x]) for x in (2.85, 2.34, 2.22, 2.24)))
    assert found == pytest.approx([0.53])
