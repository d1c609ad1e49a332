"""The benchmark of telemetry runs; what it finds depends on the machine, the bound is that of the default run."""

from __future__ import annotations

import pytest

from modernllm.benchmark.telemetry import telemetry_cost


@pytest.mark.slow
def test_default_telemetry_is_cheap() -> None:
    """Wanted: 3 %. Twice that is left for a busy machine."""
    found = telemetry_cost("micro", "default", rounds=3)
    assert found["steps_per_round"] == 50
    assert found["lowest"] <= found["cost"] <= found["highest"]
    assert found["cost"] < 0.06


@pytest.mark.slow
def test_steps_that_are_read_back_together_are_counted_once() -> None:
    """A nano step is so quick that the first rows of a round were still unread when it began."""
    found = telemetry_cost("nano", "default", rounds=1)
    assert found["steps_per_round"] == 50
    assert found["cost"] < 0.3
