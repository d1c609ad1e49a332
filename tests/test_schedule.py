"""Learning rates as a table (F-39)."""

from __future__ import annotations

import math

import pytest

from modernllm.schedule import Cosine

COSINE = [0.1 + 0.9 * (1 + math.cos(math.pi * done / 6)) / 2 for done in range(1, 7)]


@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        (Cosine(10, warmup=0.4, final=0.1), [0.25, 0.5, 0.75, 1.0, *COSINE]),
        (Cosine(4, warmup=0.0, final=0.0), [1.0, 0.75, 0.25, 0.0]),
        (Cosine(4, warmup=0.0, final=1.0), [1.0, 1.0, 1.0, 1.0]),
        (Cosine(4, warmup=0.99, final=0.1), [1 / 3, 2 / 3, 1.0, 0.1]),
        (Cosine(2, warmup=0.5, final=0.1), [1.0, 0.1]),
        (Cosine(1, warmup=0.5, final=0.1), [1.0]),
    ],
    ids=["warmup 4 of 10", "no warmup", "constant", "almost all warmup", "two steps", "one step"],
)
def test_shares(schedule: Cosine, shares: list[float]) -> None:
    assert [schedule(step) for step in range(1, len(shares) + 1)] == pytest.approx(shares, abs=1e-12)


@pytest.mark.parametrize("warmup", [0.0, 0.001, 0.1, 0.37, 0.95, 0.999])
@pytest.mark.parametrize("steps", [2, 3, 10, 97, 1000])
def test_what_every_schedule_has(steps: int, warmup: float) -> None:
    """No step at zero, the peak once, down from there, the last step and any later at the final share."""
    schedule = Cosine(steps, warmup, final=0.05)
    shares = [schedule(step) for step in range(1, steps + 1)]
    assert min(shares) > 0
    assert shares.count(1.0) == 1
    assert shares.index(1.0) + 1 == schedule.peak
    assert shares[: schedule.peak] == sorted(shares[: schedule.peak])
    assert shares[schedule.peak - 1 :] == sorted(shares[schedule.peak - 1 :], reverse=True)
    assert shares[-1] == schedule(steps + 1) == schedule(10 * steps) == pytest.approx(0.05)


def test_past_the_only_step() -> None:
    assert Cosine(1)(2) == pytest.approx(0.1)
