"""The noise floor, and what a plan says it could see."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import chi2
from test_claim import write
from test_flow import BASE, Bench, better, claim, fabricate, noise

from modernllm.claims.flow import Incomplete
from modernllm.claims.noise import FIRST_SEED, Floor, measure, of_claim, of_overrides
from modernllm.claims.power import ASSUMED, detectable, find_floor, floor_key, keep_floor
from modernllm.claims.statistics.power import minimum_detectable_effect, seeds_needed
from modernllm.executor import Observer
from modernllm.sweep.plan import Planned


class Fabricating:
    """An executor whose runs end with a loss of their seed's own."""

    def __init__(self, broken: int | None = None) -> None:
        self.broken = broken

    def __call__(self, runs: Sequence[Planned], observer: Observer) -> int | None:
        for run in runs:
            seed = run.config["seed"]
            if seed == self.broken:
                fabricate(run, math.nan, "nonfinite")
            else:
                fabricate(run, 2.0 + noise("floor", seed))


def test_a_floor_is_measured_kept_and_found(tmp_path: Path) -> None:
    plan = of_overrides(BASE, 6, tmp_path)
    assert [run.config["seed"] for run in plan.unique] == list(range(FIRST_SEED, FIRST_SEED + 6))
    floor = measure(plan, Fabricating(), tmp_path)
    losses = [2.0 + noise("floor", FIRST_SEED + n) for n in range(6)]
    assert floor.sd == pytest.approx(np.std(losses, ddof=1))
    config = plan.unique[0].config
    found = find_floor(tmp_path, [config | {"seed": 7, "optimizer": config["optimizer"] | {"lr": 1.0}}])
    assert found
    assert (found.sd, found.n) == (pytest.approx(floor.sd), 6)
    assert find_floor(tmp_path, [config | {"trainer": config["trainer"] | {"steps": 99}}]) is None
    keep_floor(tmp_path, config | {"trainer": config["trainer"] | {"steps": 99}}, 0.5, 3, "else")
    assert find_floor(tmp_path, [config]) == found


def test_a_floor_is_that_of_the_windows_which_judge(tmp_path: Path) -> None:
    """Also where a claim tunes on the very seeds that a floor would take."""
    with pytest.raises(ValueError, match=r"trainer\.held_out=tuning: the floor is that of the windows which judge"):
        of_overrides([*BASE, "trainer.held_out=tuning"], 3, tmp_path)
    path = write(tmp_path, base=BASE, seeds={"tuning": [FIRST_SEED, FIRST_SEED + 2], "evaluation": [0, 1]})
    plan = of_claim(path, 3, tmp_path)
    assert [run.config["seed"] - FIRST_SEED for run in plan.unique] == [1, 3, 4]
    assert {run.config["trainer"]["held_out"] for run in plan.unique} == {"evaluation"}


def test_the_interval_of_a_spread_is_exact() -> None:
    floor = Floor((1.0, 2.0, 3.0, 4.0))
    low, high = (floor.sd * math.sqrt(3 / chi2.ppf(q, 3)) for q in (0.975, 0.025))
    assert f"standard deviation {floor.sd:.4f} [{low:.4f}, {high:.4f}] nats" in floor.lines[0]
    assert "A against A, first half of the seeds less the second: -2.0000 (noise of 1.2910 expected)" in floor.lines[1]


def test_a_seed_without_a_finite_loss_is_no_floor(tmp_path: Path) -> None:
    plan = of_overrides(BASE, 3, tmp_path)
    with pytest.raises(Incomplete, match="1 of 3 seeds have no finite loss"):
        measure(plan, Fabricating(broken=FIRST_SEED + 1), tmp_path)
    assert not (tmp_path / "noise_floor.json").exists()


def test_a_floor_belongs_to_all_seeds_and_rates(tmp_path: Path) -> None:
    study = Bench(tmp_path, claim(), better).study
    one, other = (study.planned("main", arm).config for arm in ("rope", "learned"))
    assert floor_key(one) != floor_key(other)
    assert floor_key(one) == floor_key(one | {"seed": 5, "optimizer": one["optimizer"] | {"lr": 0.5}})
    assert floor_key(one) != floor_key(one | {"optimizer": one["optimizer"] | {"weight_decay": 0.5}})


def test_a_plan_says_what_its_seeds_could_see(tmp_path: Path) -> None:
    study = Bench(tmp_path, claim(), better).study
    guessed = minimum_detectable_effect(ASSUMED, 6, 0.95)
    assert detectable(study, tmp_path, 6).startswith(f"6 seeds detect {guessed:.3f} nats at 80 % (seed noise 0.020 in")
    assert "assumed; scripts/noise_floor.py measures it" in detectable(study, tmp_path, 6)
    keep_floor(tmp_path, study.planned("main", "learned").config, 0.1, 8, "learned")
    known = minimum_detectable_effect(0.1 * math.sqrt(2), 6, 0.95)
    assert detectable(study, tmp_path, 6).startswith(f"6 seeds detect {known:.3f} nats at 80 % (seed noise 0.141 in")
    assert "measured over 8 seeds" in detectable(study, tmp_path, 6)
    needed = seeds_needed(0.02, 0.1 * math.sqrt(2), 0.95)
    assert detectable(study, tmp_path, 6).endswith(f"; for the margin of 0.02 {needed} seeds are needed")
    assert "margin" not in detectable(study, tmp_path, 2000)
