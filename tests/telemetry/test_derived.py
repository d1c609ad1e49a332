"""What follows from recorded rows: worked examples, and sequences that hold anything."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modernllm.telemetry.derived import (
    clip_share,
    loss_ratio,
    noise_scale,
    norm_after_clipping,
    series,
    skipped_steps,
    spike_score,
    time_to_divergence,
)

ANYTHING = st.lists(st.floats(), max_size=30).map(lambda some: (some * 400)[:400] if some else some)


def wave(n: int) -> list[float]:
    """Mean 2, standard deviation 0.1."""
    return [2.0 + 0.1 * (-1) ** step for step in range(n)]


def test_one_spike_in_320_values() -> None:
    values = wave(400)
    values[199] = 2.61  # just above 6 standard deviations
    found = spike_score(values)
    assert found is not None
    assert (found.steps, found.n, found.percent) == ([200], 320, 100 / 320)
    assert found.label == "window 128, 6 SD, 1 of 320"
    values[199] = 2.59
    assert spike_score(values) == (0.0, 320, [], "window 128, 6 SD, 0 of 320")
    values[199] = 1.0  # a fall is none
    assert spike_score(values) == (0.0, 320, [], "window 128, 6 SD, 0 of 320")


def test_long_runs_are_scored_as_by_olmo() -> None:
    values = wave(1500)
    values[700], values[900], values[1000] = 2.65, 1.2, 2.8  # 6.5 deviations up are none here, 8 down are
    found = spike_score(values)
    assert found is not None
    assert found.steps == [901, 1001]
    assert found.label == "window 1000, 7 SD, 2 of 1200"


def test_spikes_of_the_first_and_last_tenth_do_not_count() -> None:
    values = wave(400)
    values[39], values[360] = 9.0, 9.0
    assert spike_score(values) == (0.0, 320, [], "window 128, 6 SD, 0 of 320")


def test_what_is_not_finite_is_a_spike_and_hides_none() -> None:
    values = wave(400)
    values[99], values[100], values[150] = math.nan, math.inf, 3.0
    found = spike_score(values)
    assert found is not None
    assert found.steps == [100, 101, 151]


def test_a_constant_has_no_spikes_but_what_leaves_it() -> None:
    assert spike_score([2.0] * 400) == (0.0, 320, [], "window 128, 6 SD, 0 of 320")
    found = spike_score([2.0] * 200 + [2.1] + [2.0] * 199)
    assert found is not None
    assert found.steps == [201]


def test_short_runs_have_no_spike_score() -> None:
    assert spike_score(wave(299)) is None
    assert spike_score(wave(300)) is not None


def test_loss_ratio() -> None:
    assert loss_ratio([4.0, 2.0, 3.0, 2.2, 1.0, 1.3]) == (1.5, 3, 2)
    assert loss_ratio([4.0, math.nan, 2.0, math.inf, 2.1]) == (1.05, 5, 2)
    assert math.isnan(loss_ratio([4.0]).largest)
    assert math.isnan(loss_ratio([]).largest)


def test_time_to_divergence() -> None:
    assert time_to_divergence([3.0] * 50, 4.0) is None
    assert time_to_divergence([3.0] * 50 + [9.0] * 50, 4.0) == 52  # (8 x 3 + 2 x 9) / 10 = 4.2
    assert time_to_divergence([3.0] * 50 + [9.0] * 9 + [3.0] * 50, 4.0) is None  # came back
    assert time_to_divergence([3.0, 3.0, math.nan], 4.0) == 3
    assert time_to_divergence([3.0, math.nan, 3.0], 4.0) is None  # skipped
    assert time_to_divergence([], 4.0) is None


def test_clipping_and_skipping() -> None:
    rows = [{"clipped": True}, {"clipped": False, "skipped": True}, {"val_loss": 1.0}, {"clipped": False}]
    assert clip_share(rows) == 1 / 3
    assert math.isnan(clip_share([]))
    assert skipped_steps(rows) == 1
    assert [norm_after_clipping(norm, 1.0) for norm in (0.5, 3.0, math.inf)] == [0.5, 1.0, 1.0]


def test_noise_scale_is_a_ratio_of_means() -> None:
    rows = [
        {"noise": {"signal": 1.0, "variance": 10.0}},
        {"grad_norm": {}},
        {"noise": {"signal": 3.0, "variance": 2.0}},
    ]
    assert noise_scale(rows, memory=0.5) == pytest.approx((0.5 * 5 + 1) / (0.5 * 0.5 + 1.5))
    assert math.isnan(noise_scale([{"noise": {"signal": -1.0, "variance": 2.0}}]))
    assert math.isnan(noise_scale([]))


def test_a_series_is_where_it_was_recorded() -> None:
    rows = [{"step": 1, "rms": {"a": 2.0}}, {"step": 2, "other": {}}, {"step": 3, "rms": {"b": 1.0}}]
    assert series(rows, "rms", "a") == [(1, 2.0)]


@given(values=ANYTHING, initial=st.floats())
def test_nothing_raises(values: list[float], initial: float) -> None:
    score = spike_score(values)
    assert score is None or 0 <= score.percent <= 100
    loss_ratio(values)
    found = time_to_divergence(values, initial)
    assert found is None or 1 <= found <= len(values)
