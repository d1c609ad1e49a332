"""Sentences about rows that are made for it; each kind once, and not for one bad moment."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modernllm.telemetry.alarms import SIGNS, Watch

RISING = {"embedding": 1e9, "layer.00": 0.01, "layer.05": 0.1, "layer.11": 0.4}
HEADS = {"layer.02.head.00": 0.01, "layer.02.head.01": 0.04, "layer.02.head.02": 0.0, "layer.02.head.03": 0.5}


@pytest.mark.parametrize(
    ("about", "row", "message"),
    [
        ("gradients_by_depth", {"grad_norm": RISING}, "layer 11 gradient norm 40x layer 0"),
        (
            "gradients_by_depth",
            {"grad_norm": {"layer.00": 0.0, "layer.01": 2.0}},
            "layer 0 has no gradient, layer 1 has one of norm 2",
        ),
        (
            "attention_collapse",
            {"attention_entropy": HEADS | {"layer.03.head.00": 0.01, "layer.03.head.01": 0.4}},
            "attention entropy collapsed in 3 of 4 heads of layer 2, and in 1 more layer",
        ),
        (
            "attention_logits",
            {"attention_max_logit": {"layer.00.head.00": 900.0, "layer.10.head.01": 1234.0}},
            "largest attention logit 1.23e+03 in layer 10 head 1",
        ),
        (
            "dead_units",
            {"units_dead": {"layer.00": 0.1, "layer.01": 0.75}},
            "75% of the units of layer 1 are dead: no token turns them on",
        ),
        (
            "rank_collapse",
            {"token_cosine": {"start": 1.0, "layer.00": 0.5, "layer.01": 0.999}},
            "all tokens of a text have become alike in 1 of 2 layers: mean cosine 0.9990 after layer 1",
        ),
        ("near_eps", {"near_eps": {"layer.00": 0.6}}, "60% of Adam's second moments in layer 0 are near its eps"),
        (
            "idle_experts",
            {"router_idle": {"layer.00": 0.75}},
            "75% of the experts of layer 0 get no token of the probe",
        ),
    ],
)
def test_said_once_when_enough_rows_agree(about: str, row: dict[str, Any], message: str) -> None:
    _, patience, _ = SIGNS[about]
    watch = Watch()
    found = [watch.consider(row) for _ in range(patience + 3)]
    assert found == [[]] * (patience - 1) + [[(about, message)]] + [[]] * 3


def test_rows_that_disagree_start_the_count_again() -> None:
    watch, healthy = Watch(), {"grad_norm": {"layer.00": 1.0, "layer.11": 2.0}}
    for row in ({"grad_norm": RISING}, {"grad_norm": RISING}, healthy, {"grad_norm": RISING}, {"units_dead": {}}):
        assert watch.consider(row) == []
    watch.consider({"grad_norm": RISING})
    ((about, _),) = watch.consider({"grad_norm": RISING})
    assert about == "gradients_by_depth"


def test_drift_is_against_the_first_probe() -> None:
    watch = Watch()
    assert watch.consider({"logits": {"mean": 1.0, "log_z": 6.0}}) == []
    assert watch.consider({"logits": {"mean": -28.0, "log_z": 7.0}}) == []
    ((_, message),) = watch.consider({"logits": {"mean": -40.0, "log_z": 7.0}})
    assert message == "the output logits drift: mean logit from 1.0 at the start to -40.0"


@given(
    rows=st.lists(
        st.fixed_dictionaries(
            {
                series: st.dictionaries(st.sampled_from(["layer.00", "layer.01.head.00", "mean"]), st.floats())
                for series, _, _ in SIGNS.values()
            }
        ),
        max_size=4,
    )
)
def test_nothing_raises(rows: list[dict[str, dict[str, float]]]) -> None:
    watch = Watch()
    told = [about for row in rows for about, message in watch.consider(row) if message]
    assert len(told) == len(set(told))


def test_what_is_not_finite_alarms_nobody() -> None:
    watch = Watch()
    for _ in range(4):
        assert watch.consider({"grad_norm": {"layer.00": math.nan, "layer.01": math.inf}}) == []
