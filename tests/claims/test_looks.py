"""Stopping before all seeds have run."""

from __future__ import annotations

import numpy as np
import pytest

from modernllm.claims.looks import look
from modernllm.claims.rules import Equivalence, Rule, Stability, Superiority
from modernllm.claims.statistics.sequential import look_alpha

LOOKS = [3, 6, 9]
WAVE = np.array([1.0, -1.0, 0.5, -0.5, 0.8, -0.8, 0.6, -0.6, 0.1])


@pytest.mark.parametrize(
    ("rule", "differences", "reason", "verdict", "following"),
    [
        (Superiority(0.02), -0.5 + 0.01 * WAVE[:3], "decided", "supported", None),
        (Superiority(0.02), +0.5 + 0.01 * WAVE[:3], "decided", "refuted", None),
        (Superiority(0.02), -0.02 + 0.02 * WAVE[:3], "continue", "inconclusive", 6),
        (Superiority(0.02), -0.02 + 0.04 * WAVE[:6], "continue", "inconclusive", 9),
        (Superiority(0.02), -0.02 + 0.08 * WAVE[:9], "last", "inconclusive", None),
        (Superiority(0.02), 0.003 + 0.0085 * WAVE[:3], "futile", "inconclusive", None),
        (Equivalence(0.02), 0.003 + 0.0085 * WAVE[:3], "continue", "inconclusive", 6),
        (Equivalence(0.02), 0.003 + 0.0085 * WAVE[:6], "decided", "supported", None),
        (Stability(), 0.01 + 0.02 * WAVE[:3], "futile", "inconclusive", None),  # within 0.05, not within 0.1
        (Stability(), 0.06 + 0.02 * WAVE[:3], "continue", "inconclusive", 6),
    ],
)
def test_a_look(rule: Rule, differences: np.ndarray, reason: str, verdict: str, following: int | None) -> None:
    found = look(rule, differences, looks=LOOKS)
    assert (found.reason, found.judgement.verdict, found.next) == (reason, verdict, following)
    assert found.stop == (reason != "continue")


def test_every_look_and_every_contrast_is_paid_for() -> None:
    differences = -0.5 + 0.01 * WAVE[:3]
    assert look(Superiority(0.02), differences, looks=LOOKS).judgement.level == 1 - look_alpha(LOOKS)
    assert look(Superiority(0.02), differences, looks=LOOKS, contrasts=4).judgement.level == 1 - look_alpha(LOOKS, 4)
    assert look_alpha(LOOKS, 4) < look_alpha(LOOKS) / 4 * 1.03


@pytest.mark.parametrize("n", [1, 4, 5, 7])
def test_no_peeking_in_between(n: int) -> None:
    with pytest.raises(ValueError, match=rf"{n} seeds, but looks=\[3, 6, 9\]"):
        look(Superiority(0.02), WAVE[:n], looks=LOOKS)


def test_failed_pairs_are_not_futility() -> None:
    differences = 0.003 + 0.0085 * WAVE[:3]
    assert look(Superiority(0.02), differences, looks=LOOKS, blind=True).reason == "continue"
