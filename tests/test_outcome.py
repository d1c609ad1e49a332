"""The word for how a run ended, on curves made for it."""

from __future__ import annotations

import math
from itertools import count
from pathlib import Path
from typing import Any, get_args

import pytest
from running import run

from modernllm.runs.outcome import Outcome, Verdict, judge, progress
from modernllm.update import Update

UNIGRAM, BIGRAM = 3.1, 2.1
START = 5.5


def curve(last: float, steps: int = 200) -> list[float]:
    """From START to `last`, most of the way in the first steps."""
    return [last + (START - last) * math.exp(-step / 10) for step in range(1, steps)] + [last]


def verdict(last: float, losses: list[float] | None = None, **changed: Any) -> Verdict:
    """Of a run that ends at `last`."""
    return judge(
        **{
            "val_loss": last,
            "initial_loss": START,
            "losses": curve(last) if losses is None else losses,
            "unigram": UNIGRAM,
            "bigram": BIGRAM,
        }
        | changed
    )


@pytest.mark.parametrize(
    ("loss", "share"),
    [(3.1, 0.0), (2.1, 1.0), (2.9, 0.2), (1.6, 1.5), (4.1, -1.0), (math.nan, None), (math.inf, None)],
)
def test_progress_is_the_way_from_unigram_to_bigram(loss: float, share: float | None) -> None:
    found = progress(loss, UNIGRAM, BIGRAM)
    assert found == (share if share is None else pytest.approx(share))


def test_progress_needs_floors_that_lie_apart() -> None:
    assert progress(2.0, 3.0, 2.91) is None
    assert progress(3.0, 3.0, 2.89) == pytest.approx(0.0)


@pytest.mark.parametrize(
    ("last", "outcome", "reason"),
    [
        (1.6, "ok", "150% of the way from the unigram to the bigram loss"),
        (2.88, "ok", "22% of the way from the unigram to the bigram loss"),
        (2.92, "stalled", "18% of the way from the unigram to the bigram loss"),
        (3.11, "stalled", "-1% of the way from the unigram to the bigram loss"),
        (5.49, "stalled", "-239% of the way from the unigram to the bigram loss"),
        (5.51, "diverged", "loss 5.510, above 5.500 at initialisation"),
        (800.0, "diverged", "loss 800.000, above 5.500 at initialisation"),
        (math.nan, "nonfinite", "the validation loss is not finite"),
        (math.inf, "nonfinite", "the validation loss is not finite"),
    ],
)
def test_outcome_of_a_whole_run(last: float, outcome: Outcome, reason: str) -> None:
    losses = curve(last) if math.isfinite(last) else curve(2.0)
    found = verdict(last, losses)
    assert (found.outcome, found.reason) == (outcome, reason)
    assert found.progress == progress(last, UNIGRAM, BIGRAM)


def test_a_non_finite_step_comes_before_everything() -> None:
    found = verdict(math.nan, [*curve(2.0)[:9], math.nan], first_nonfinite_step=10)
    assert found == Verdict("nonfinite", "first non-finite step: 10", None)
    assert verdict(1.6, first_nonfinite_step=7, skipped_steps=1).outcome == "nonfinite"


def test_divergence_shows_in_the_training_loss_too() -> None:
    """The mean of the last twentieth, so that one bad batch is no divergence."""
    blown = [*curve(2.0, 190), *[9.0] * 10]
    assert verdict(2.0, blown).reason == "loss 9.000, above 5.500 at initialisation"
    assert verdict(2.0, [*curve(2.0, 199), 9.0]).outcome == "ok"
    spread = [*curve(2.0, 990), *[10.0] * 10]  # a twentieth of 1000 steps is 50
    assert verdict(2.0, spread).outcome == "ok"
    assert verdict(2.0, [*curve(2.0, 950), *[6.0] * 50]).outcome == "diverged"


def test_a_skipped_step_hides_no_divergence() -> None:
    """Its loss may be NaN, and a mean with NaN in it compares with nothing."""
    blown = [*curve(2.0, 190), *[9.0] * 9, math.nan]
    assert verdict(2.0, blown, skipped_steps=1).reason == "loss 9.000, above 5.500 at initialisation"
    assert verdict(9.0, [*curve(2.0, 199), math.nan], skipped_steps=1).outcome == "diverged"
    assert verdict(1.6, [math.nan] * 200, skipped_steps=200).outcome == "degraded"


@pytest.mark.parametrize(("steps", "outcome"), [(9, None), (10, "diverged")])
def test_divergence_takes_ten_steps(steps: int, outcome: Outcome | None) -> None:
    assert verdict(6.0, [6.0] * steps).outcome == outcome


@pytest.mark.parametrize("last", [3.1, 2.5, 1.6])
def test_before_a_hundred_steps_nothing_but_divergence_is_told(last: float) -> None:
    found = verdict(last, curve(last, 99))
    assert found.outcome is None
    assert found.reason == "99 steps are too few to tell: 100 are needed"
    assert found.progress == progress(last, UNIGRAM, BIGRAM)
    assert verdict(last, curve(last, 100)).outcome is not None


def test_floors_that_lie_together_leave_it_undecided() -> None:
    found = verdict(3.0, unigram=3.0, bigram=2.95)
    assert found == Verdict(None, "unigram and bigram floor of this text lie too close to tell a stall", None)
    assert verdict(6.0, unigram=3.0, bigram=2.95).outcome == "diverged"
    assert verdict(6.0, unigram=3.0, bigram=2.95, first_nonfinite_step=3).outcome == "nonfinite"


def test_skipped_steps_degrade_what_would_be_ok() -> None:
    found = verdict(1.6, skipped_steps=3)
    assert (found.outcome, found.reason) == ("degraded", "3 steps were skipped")
    assert found.progress == pytest.approx(1.5)
    assert verdict(3.0, skipped_steps=3).outcome == "stalled"
    assert verdict(6.0, skipped_steps=3).outcome == "diverged"


def test_a_loss_that_is_not_finite_at_the_start_compares_with_nothing() -> None:
    for start in (math.nan, math.inf):
        assert verdict(1.6, initial_loss=start).outcome == "ok"


def test_the_words_are_ordered_from_good_to_bad() -> None:
    assert get_args(Outcome) == ("ok", "degraded", "stalled", "diverged", "nonfinite")


def test_a_run_that_left_a_step_out_is_degraded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real one, of as many steps as can be judged; runs that show the other words are in test_symptoms.py."""
    backward, steps = Update.backward, count(1)
    monkeypatch.setattr(
        Update, "backward", lambda self, loss: backward(self, loss * (math.nan if next(steps) == 7 else 1))
    )
    code, done = run("trainer.steps=100", "trainer.nonfinite=skip", "telemetry=none", f"out={tmp_path}")
    assert (code, done.outcome, done.status["skipped_steps"]) == (0, "degraded", 1)
    assert [row["step"] for row in done.metrics if "skipped" in row] == [7]
