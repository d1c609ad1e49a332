"""From a table of made-up runs to judgements: who is compared with whom, at which rate, on which seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from made_runs import EVALUATION, LRS, NOISE, START, TUNING, arm, curve, row

from modernllm.claims.analysis import Cell, CellFindings, Contrast, assess, excess, find, gain, interaction
from modernllm.claims.measures import BestLoss, LossAt, Measure, Regret
from modernllm.claims.rules import Equivalence, Interaction, Rule, Stability, Superiority
from modernllm.claims.table import Row, Table

QUALITY = excess("quality", BestLoss(), variant="post", reference="pre")


def cell(*contrasts: Contrast, name: str = "main", main: bool = True) -> Cell:
    return Cell(name, "fanin", main, {"init": "fanin"}, contrasts)


def assessed(rows: Sequence[Row], rule: Rule, *cells: Cell, **changed: Any) -> list[CellFindings]:
    seeds = {"tuning_seeds": TUNING, "evaluation_seeds": EVALUATION}
    return assess(Table(rows), rule=rule, cells=cells, **(seeds | changed))


PRE, POST = arm("pre", curve(2.4, 2.2, 2.6)), arm("post", curve(2.1, 2.3, 2.9), jitter=0.01)


def test_each_arm_at_its_own_best_rate() -> None:
    (found,) = assessed(PRE + POST, Superiority(0.02), cell(QUALITY))
    (finding,) = found.findings
    assert {name: choice.lr for name, choice in finding.choices.items()} == {"post": 1e-3, "pre": 3e-3}
    assert finding.choices["pre"].interior
    assert not finding.choices["post"].interior
    assert finding.judgement.values == pytest.approx([-0.09, -0.11] * 3)  # 2.1 - 2.2 ± jitter; the noise is shared
    assert finding.judgement.verdict == "supported"
    assert finding.seeds == EVALUATION
    assert found.tuned


def test_tuning_seeds_choose_and_evaluation_seeds_judge() -> None:
    """Evaluation runs at another rate may be better: they have no say."""
    rows = [replace(r, loss=1.5) if r.arm == "pre" and r.lr == 1e-2 and r.seed in EVALUATION else r for r in PRE]
    (found,) = assessed(rows + POST, Superiority(0.02), cell(QUALITY))
    assert found.findings[0].choices["pre"].lr == 3e-3
    assert found.findings[0].judgement.values == pytest.approx([-0.09, -0.11] * 3)


def test_losses_of_tuning_seeds_are_not_judged() -> None:
    rows = [replace(r, loss=r.loss - 0.5) if r.arm == "pre" and r.seed in TUNING else r for r in PRE]
    (found,) = assessed(rows + POST, Superiority(0.02), cell(QUALITY))
    assert found.findings[0].judgement.values == pytest.approx([-0.09, -0.11] * 3)


def test_evaluation_runs_are_needed_at_the_chosen_rate_only() -> None:
    best = {"pre": 3e-3, "post": 1e-3}
    rows = [r for r in PRE + POST if r.seed in TUNING or r.lr == best[r.arm]]
    (found,) = assessed(rows, Superiority(0.02), cell(QUALITY))
    assert found.findings[0].judgement.n == 6


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"evaluation_seeds": (101, 0, 1)}, r"seeds \[101\] are both for tuning and for evaluation"),
        ({"evaluation_seeds": (0, 0, 1)}, "write each once"),
        ({"evaluation_seeds": ()}, "no evaluation seeds"),
        ({"evaluation_seeds": (0, 1, 2, 77)}, "1 of 4 runs are missing"),
        ({"tuning_seeds": (100, 77)}, "runs are missing"),
        ({"tuning_seeds": ()}, "no run of the tuning seeds"),
    ],
)
def test_seeds_are_kept_apart_and_complete(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        assessed(PRE + POST, Superiority(0.02), cell(QUALITY), **changed)


def test_equal_numbers_of_rates() -> None:
    longer = PRE + arm("post", curve(2.1, 2.3, 2.9) | {3e-2: 3.0})
    with pytest.raises(ValueError, match=r"unequal numbers of learning rates to try: \{'post': 4, 'pre': 3\}"):
        assessed(longer, Superiority(0.02), cell(QUALITY))


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ([cell(QUALITY), cell(QUALITY)], "a name of its own"),
        ([cell(QUALITY, main=False)], "mark the main one"),
        ([cell()], "no contrast to judge"),
    ],
)
def test_odd_cells_are_refused(cells: list[Cell], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        assessed(PRE + POST, Superiority(0.02), *cells)


@pytest.mark.parametrize("weights", [{"pre": 1.0}, {"pre": 1.0, "post": 1.0}, {"pre": 0.0}])
def test_weights_that_compare_nothing(weights: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="a sum of zero"):
        Contrast("odd", BestLoss(), weights)


def test_every_contrast_of_every_cell_is_paid_for() -> None:
    cells = [cell(QUALITY, excess("again", LossAt(3e-3), variant="post", reference="pre")), cell(QUALITY, name="b")]
    found = assessed(PRE + POST, Superiority(0.02), *cells)
    levels = [finding.judgement.level for one in found for finding in one.findings]
    assert levels == pytest.approx([1 - 0.05 / 3] * 3)
    (alone,) = assessed(PRE + POST, Superiority(0.02), cell(QUALITY), alpha=0.02)
    assert alone.findings[0].judgement.level == 0.98


def test_one_rate_for_all_is_a_condition() -> None:
    (found,) = assessed(
        PRE + POST, Superiority(0.02), cell(excess("at 1e-2", LossAt(1e-2), variant="post", reference="pre"))
    )
    assert found.findings[0].judgement.mean == pytest.approx(0.3)
    assert found.findings[0].choices == {}


def test_regret_is_positive_where_the_variant_is_more_stable() -> None:
    """Mean loss over the grid 2.4 and 2.433; pre's best is 2.2, post's 2.1."""
    (found,) = assessed(
        PRE + POST, Stability(covers_critical=True), cell(gain("regret", Regret(), variant="pre", reference="post"))
    )
    (finding,) = found.findings
    assert finding.judgement.mean == pytest.approx(0.1 / 3)
    assert finding.beside["lr_regret"] == pytest.approx({"post": 1 / 3, "pre": 0.3})
    assert finding.beside["lr_sensitivity"] == pytest.approx({"post": 1 / 3, "pre": 0.2})
    assert finding.beside["smallest_max_stable_lr"] == {"post": 1e-2, "pre": 1e-2}
    assert finding.outcomes["pre"] == {"counts": {"ok": 18}, "failed": 0, "n": 18, "interval": None}
    assert finding.mcnemar_p is None
    assert not found.tuned


def test_regret_needs_one_grid() -> None:
    other = arm("post", {1e-3: 2.1, 3e-3: 2.3, 3e-2: 2.9})
    with pytest.raises(ValueError, match="needs one grid for all arms"):
        assessed(PRE + other, Stability(), cell(gain("regret", Regret(), variant="pre", reference="post")))


def test_interaction_by_hand() -> None:
    """(2.85 - 2.34) - (2.22 - 2.24) at one learning rate."""
    losses = {"post/0": 2.85, "post/50": 2.34, "pre/0": 2.22, "pre/50": 2.24}
    rows = [r for i, (name, loss) in enumerate(losses.items()) for r in arm(name, {3e-3: loss}, jitter=0.001 * i**2)]
    contrast = interaction("warm-up", LossAt(3e-3), needy=("post/0", "post/50"), robust=("pre/0", "pre/50"))
    (found,) = assessed(rows, Interaction(), cell(contrast))
    assert found.findings[0].judgement.mean == pytest.approx(0.53)
    assert found.findings[0].judgement.verdict == "supported"
    assert found.findings[0].judgement.n == 6


def broken(rows: Sequence[Row], *seeds: int, outcome: str = "nonfinite") -> list[Row]:
    return [replace(r, loss=math.nan, outcome=outcome) if r.seed in seeds else r for r in rows]


def test_a_diverged_run_stays_in_every_denominator() -> None:
    """Without seed 4 the variant would be better in all of the five others."""
    (found,) = assessed(PRE + broken(POST, 4), Superiority(0.02), cell(QUALITY))
    (finding,) = found.findings
    assert finding.judgement.n == 6
    assert finding.judgement.values[4] == pytest.approx(START - 2.2 - NOISE[4])
    assert finding.judgement.verdict == "inconclusive"
    assert finding.outcomes["post"]["counts"] == {"ok": 5, "nonfinite": 1}
    assert (finding.outcomes["post"]["failed"], finding.outcomes["post"]["n"]) == (1, 6)
    assert finding.outcomes["post"]["interval"] == pytest.approx([0.00421, 0.64123], abs=1e-5)
    assert finding.outcomes["pre"]["failed"] == 0
    assert finding.mcnemar_p == 1.0


def test_an_arm_that_never_trains_has_a_row_and_loses() -> None:
    (found,) = assessed(PRE + broken(POST, *EVALUATION), Superiority(0.02), cell(QUALITY))
    (finding,) = found.findings
    assert finding.judgement.verdict == "refuted"
    assert finding.outcomes["post"]["counts"] == {"nonfinite": 6}
    assert finding.outcomes["post"]["interval"] == pytest.approx([0.54074, 1.0], abs=1e-5)
    assert finding.mcnemar_p == 2 / 64


def test_arms_that_fail_together_are_not_equivalent() -> None:
    same = arm("post", curve(2.4, 2.2, 2.6), jitter=0.002)
    (healthy,) = assessed(PRE + same, Equivalence(0.02), cell(QUALITY))
    assert healthy.findings[0].judgement.verdict == "supported"
    (found,) = assessed(broken(PRE, 4) + broken(same, 4), Equivalence(0.02), cell(QUALITY))
    assert found.findings[0].judgement.verdict == "inconclusive"
    assert found.findings[0].judgement.flags == ("two arms failed at some seed",)


@pytest.mark.parametrize("outcome", ["stalled", "diverged", "nonfinite"])
def test_no_interaction_shows_where_a_pair_stalled(outcome: str) -> None:
    losses = {"post/0": 3.1, "post/50": 3.1, "pre/0": 2.2, "pre/50": 2.2}
    rows = [r for i, (name, loss) in enumerate(losses.items()) for r in arm(name, {3e-3: loss}, jitter=0.001 * i**2)]
    rows = [replace(r, outcome=outcome) if r.arm.startswith("post") else r for r in rows]
    contrast = interaction("warm-up", LossAt(3e-3), needy=("post/0", "post/50"), robust=("pre/0", "pre/50"))
    (found,) = assessed(rows, Interaction(covers_critical=True), cell(contrast))
    assert found.findings[0].judgement.verdict == "inconclusive"
    assert "two arms failed at some seed" in found.findings[0].judgement.flags


def test_one_seed_is_never_a_verdict() -> None:
    (found,) = assessed(PRE + POST, Superiority(0.02), cell(QUALITY), evaluation_seeds=[3])
    assert found.findings[0].judgement.verdict == "inconclusive"


@pytest.mark.parametrize("measure", [BestLoss(), LossAt(3e-3), Regret()])
def test_a_planted_crash_is_no_verdict(measure: Measure) -> None:
    """A run that crashed has no row."""
    rows = [r for r in PRE + POST if r.key != ("fanin", "post", 1e-3, 5) and r.key != ("fanin", "post", 3e-3, 5)]
    with pytest.raises(ValueError, match="missing"):
        find(
            Table(rows),
            rule=Superiority(0.02),
            runs="fanin",
            contrast=excess("x", measure, variant="post", reference="pre"),
            tuning_seeds=TUNING,
            evaluation_seeds=EVALUATION,
            level=0.95,
        )


def test_arms_with_two_vocabularies_are_not_ranked() -> None:
    with pytest.raises(ValueError, match="losses do not compare"):
        assessed(PRE + [replace(r, yardstick="bpe") for r in POST], Superiority(0.02), cell(QUALITY))


def test_rates_of_the_grid_are_what_the_rows_say() -> None:
    assert Table([row(lr=lr) for lr in reversed(LRS)]).lrs("fanin", "pre", [0]) == LRS
    assert np.all(np.diff(LRS) > 0)
