"""What may stand in a table of runs, and how its gaps are counted."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from made_runs import EVALUATION, LRS, START, TUNING, arm, curve, row

from modernllm.claims.table import Key, Table, census, losses


@pytest.mark.parametrize(
    ("changed", "failed", "counted"),
    [
        ({}, False, 2.2),
        ({"outcome": "degraded"}, False, 2.2),
        ({"outcome": None}, False, 2.2),
        ({"outcome": "stalled", "loss": 3.1}, True, 3.1),
        ({"outcome": "diverged", "loss": 7.0}, True, 5.0),
        ({"outcome": "diverged", "loss": 4.0}, True, 4.0),
        ({"outcome": "nonfinite", "loss": math.nan}, True, 5.0),
        ({"outcome": "nonfinite", "loss": 2.0, "tokens": 10}, True, 5.0),  # of weights from before it broke
        ({"outcome": None, "loss": math.inf}, True, 5.0),
        ({"outcome": "ok", "loss": 5.0}, True, 5.0),
    ],
)
def test_a_bad_run_counts(changed: dict[str, Any], failed: bool, counted: float) -> None:
    table = Table([row(**changed)])
    assert losses(table, "fanin", "pre", 3e-3, [0]).tolist() == [counted]
    assert table.block("fanin", "pre", [3e-3], [0]).failed.tolist() == [[failed]]


def test_blocks_by_rate_and_seed() -> None:
    table = Table(arm("pre", curve(2.4, 2.2, 2.6)))
    assert table.lrs("fanin", "pre", EVALUATION) == LRS
    assert table.lrs("fanin", "post", EVALUATION) == ()
    block = table.block("fanin", "pre", LRS, TUNING)
    assert block.losses == pytest.approx(np.array([[2.412, 2.393], [2.212, 2.193], [2.612, 2.593]]))
    assert block.outcomes == ("ok",) * 6


def test_a_missing_seed_is_an_error_not_a_smaller_n() -> None:
    rows = [r for r in arm("pre", curve(2.4, 2.2, 2.6)) if (r.lr, r.seed) != (3e-3, 4)]
    with pytest.raises(ValueError, match=r"1 of 6 runs are missing: \('fanin', 'pre', 0.003, 4\)"):
        losses(Table(rows), "fanin", "pre", 3e-3, EVALUATION)
    with pytest.raises(ValueError, match="0 of 0 runs are missing: all of fanin, pre"):
        Table(rows).block("fanin", "pre", LRS, [])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({}, "stands in the table twice"),
        ({"seed": 1, "tokens": 600}, "was trained on 600 of 1000 planned tokens"),
        ({"seed": 1, "outcome": "failed"}, "outcome 'failed' is none of ok, degraded"),
        ({"seed": 1, "initial_loss": math.nan}, "initial loss nan"),
        ({"arm": "post", "yardstick": "other text"}, "other tokenizers or validation windows"),
    ],
)
def test_what_must_not_be_compared(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Table([row(), row(**changed)])


def test_other_cells_and_tuning_seeds_may_be_measured_on_other_text() -> None:
    Table([row(), row(cell="gpt2", yardstick="b"), row(seed=100, yardstick="c"), row(arm="post", planned_tokens=1000)])


def test_seeds_that_change_nothing_are_no_repeats() -> None:
    same = [row(seed=seed, loss=2.25) for seed in range(3)]
    with pytest.raises(ValueError, match=r"lr 0.003: the loss is .*2.25.* at every seed of \[0, 1, 2\]"):
        Table(same).block("fanin", "pre", [3e-3], [0, 1, 2])
    Table(same).block("fanin", "pre", [3e-3], [0])
    broken = [row(seed=seed, outcome="nonfinite", loss=math.nan) for seed in range(3)]  # all end at log(vocabulary)
    assert Table(broken).block("fanin", "pre", [3e-3], [0, 1, 2]).losses.tolist() == [[START] * 3]


def test_planned_present_and_usable_add_up() -> None:
    plan = {Key("fanin", "pre", 3e-3, seed) for seed in range(6)}
    rows = [row(seed=seed) for seed in (0, 1, 1, 1, 2)] + [row(seed=9), row(seed=9, arm="post")]
    found = census(plan, rows)
    assert found.missing == tuple(Key("fanin", "pre", 3e-3, seed) for seed in (3, 4, 5))
    assert found.duplicated == (Key("fanin", "pre", 3e-3, 1),)
    assert found.foreign == (Key("fanin", "post", 3e-3, 9), Key("fanin", "pre", 3e-3, 9))
    assert found.planned == found.usable + len(found.missing) == 6
    assert len(rows) == found.usable + found.spare + len(found.foreign)
    assert found.line == "6 runs planned: 3 usable, 3 missing; beside them 2 copies, 2 foreign"
    assert not found.complete
    assert census(plan, [row(seed=seed) for seed in range(6)]).complete
