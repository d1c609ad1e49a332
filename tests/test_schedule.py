"""Learning rates as tables (F-39)."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from modernllm.schedule import Constant, Cosine, InverseSqrt, Linear, Schedule, WarmupStableDecay

COSINE = [0.1 + 0.9 * (1 + math.cos(math.pi * done / 6)) / 2 for done in range(1, 7)]
KINDS = [Constant, Cosine, InverseSqrt, Linear, WarmupStableDecay]


@pytest.mark.parametrize(
    ("schedule", "shares"),
    [
        (Cosine(10, warmup=0.4, final=0.1), [0.25, 0.5, 0.75, 1.0, *COSINE]),
        (Cosine(10, warmup=4, final=0.1), [0.25, 0.5, 0.75, 1.0, *COSINE]),
        (Cosine(4, warmup=0.0, final=0.0), [1.0, 0.75, 0.25, 0.0]),
        (Cosine(4, warmup=0, final=1.0), [1.0, 1.0, 1.0, 1.0]),
        (Cosine(4, warmup=0.99, final=0.1), [1 / 3, 2 / 3, 1.0, 0.1]),
        (Cosine(2, warmup=0.5, final=0.1), [1.0, 0.1]),
        (Cosine(1, warmup=0.5, final=0.1), [1.0]),
        (Constant(4, warmup=2), [0.5, 1.0, 1.0, 1.0]),
        (Linear(6, warmup=2, final=0.2), [0.5, 1.0, 0.8, 0.6, 0.4, 0.2]),
        (WarmupStableDecay(8, warmup=2, decay=0.5, final=0.0), [0.5, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]),
        (WarmupStableDecay(4, warmup=2, decay=1.0, final=0.0), [0.5, 1.0, 0.5, 0.0]),
        (WarmupStableDecay(4, warmup=1, decay=0.1, final=0.2), [1.0, 1.0, 1.0, 0.2]),  # a tenth of four is none: one
        (InverseSqrt(9, warmup=4), [0.25, 0.5, 0.75, 1.0, *((4 / step) ** 0.5 for step in range(5, 10))]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Schedule) else f"{len(value)} steps",
)
def test_shares(schedule: Schedule, shares: list[float]) -> None:
    assert [schedule(step) for step in range(1, len(shares) + 1)] == pytest.approx(shares, abs=1e-12)


@pytest.mark.parametrize("warmup", [0, 0.0, 0.001, 0.1, 0.37, 0.95, 0.999, 1])
@pytest.mark.parametrize("steps", [2, 3, 10, 97, 1000])
@pytest.mark.parametrize("kind", KINDS)
def test_what_every_schedule_has(kind: type[Schedule], steps: int, warmup: float) -> None:
    """No step of the warm-up at zero, one way up to the peak and down from there, and then no further."""
    schedule = kind(steps, warmup)
    shares = [schedule(step) for step in range(1, steps + 1)]
    top = shares.index(max(shares))
    assert shares[top] == 1.0
    assert top + 1 == schedule.peak == max(1, min(round(warmup * steps), steps - 1) if warmup != 1 else 1)
    assert shares[: top + 1] == pytest.approx([step / (top + 1) for step in range(1, top + 2)])
    assert shares[top:] == sorted(shares[top:], reverse=True)
    assert shares[-1] == schedule(steps + 1) == schedule(10 * steps)
    final = {
        Constant: 1.0,
        Cosine: 0.1,
        Linear: 0.0,
        WarmupStableDecay: 0.0,
        InverseSqrt: (schedule.peak / steps) ** 0.5,
    }
    assert shares[-1] == pytest.approx(1.0 if top + 1 == steps else final[kind], abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_a_warmup_that_does_not_end_is_refused(kind: type[Schedule]) -> None:
    for steps, warmup in ((10, 10), (10, 11), (1, 2)):
        with pytest.raises(ValueError, match=rf"schedule\.warmup={warmup}: the run has {steps} steps"):
            kind(steps, warmup)


@pytest.mark.parametrize("kind", KINDS)
def test_the_only_step_is_the_peak(kind: type[Schedule]) -> None:
    """And the rate after it."""
    for warmup in (0, 0.5, 1):
        assert [kind(1, warmup)(step) for step in (1, 2)] == [1.0, 1.0]


DOCUMENTED = Path(__file__).parents[1] / "docs" / "schedules.md"
SCHEDULES = {
    "cosine": Cosine(10, warmup=4),
    "linear": Linear(10, warmup=4),
    "wsd": WarmupStableDecay(10, warmup=4),
    "constant": Constant(10, warmup=4),
    "inverse_sqrt": InverseSqrt(10, warmup=4),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_rates_of_ten_steps_stand_in_the_docs(name: str) -> None:
    row = next(line for line in DOCUMENTED.read_text().splitlines() if line.startswith(f"| `{name}`"))
    documented = [float(cell) for cell in row.strip("|").split("|")[1:]]
    assert [SCHEDULES[name](step) for step in range(1, 11)] == pytest.approx(documented, abs=5e-4)
    assert SCHEDULES[name](11) == SCHEDULES[name](10)


def test_a_warm_up_as_long_as_the_run_is_refused() -> None:
    with pytest.raises(ValueError, match=r"schedule.warmup=10: the run has 10 steps"):
        Cosine(10, warmup=10)
