"""What is known of a claim's cells before any run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from test_flow import BASE, Bench, claim, noise

from modernllm.claims.apart import Apart
from modernllm.claims.study import Study


def test_a_scope_says_what_sets_the_cells_apart(tmp_path: Path) -> None:
    """In every cell: a cell with another start and another QK norm is no second initialisation of the main one."""
    cells: dict[str, Any] = {
        "main": {"main": True},
        "std 0.02": {"overrides": ["init=normal"]},
        "both": {"overrides": ["init=normal", "qk_norm=head"]},
        "capped": {"overrides": ["attention.softcap=30.0", "schedule.warmup=0.0"]},
    }
    study = Study(claim(base=BASE, cells=cells), [f"out={tmp_path}"])
    main = study.scope("main")
    assert (main["width"], main["steps"], main["init"], main["qk_norm"]) == ("32", "100", "fanin", "none")
    apart = {name: {key: value for key, value in study.scope(name).items() if main[key] != value} for name in cells}
    assert apart == {
        "main": {},
        "std 0.02": {"init": "normal"},
        "both": {"init": "normal", "qk_norm": "head"},
        "capped": {"attention.softcap": "30.0", "schedule.warmup": "0.0"},
    }


def test_what_chooses_a_rate_is_measured_apart_from_what_judges_it(tmp_path: Path) -> None:
    """Also beyond the grid; and nothing is asked for where nothing is chosen."""
    study = Study(claim(base=BASE, seeds={"tuning": [10, 11], "evaluation": [0, 1]}), [f"out={tmp_path}"])
    study.grids["main"] = [1e-3, 3e-3, 1e-2, 3e-2]
    best = {("main", arm): 3e-3 for arm in study.claim.arms}
    lists = [
        {study.plan(key).config["trainer"]["held_out"] for key in keys}
        for keys in (study.tuning_keys(), study.evaluation_keys([0, 1], best))
    ]
    assert len(study.tuning_keys()) == 2 * 4 * 2
    assert lists == [{"tuning"}, {"evaluation"}]
    assert study.held_out("main") == {arm: Apart(tuning=7, evaluation=8, shared=0) for arm in ("rope", "learned")}
    mapped = Study(claim(base=BASE, kind="stability"), [f"out={tmp_path}"])
    assert mapped.held_out("main") == {}
    assert not any("held_out" in word for key in mapped.evaluation_keys([10], {}) for word in mapped.overrides(key))


def test_a_text_that_is_too_short_to_choose_on_is_refused_before_anything(tmp_path: Path) -> None:
    study = Study(claim(base=[*BASE[:-1], "trainer.validation_tokens=16384"]), [f"out={tmp_path}"])
    assert study.planned("main", "rope")  # enough to judge
    with pytest.raises(ValueError, match=r"trainer\.held_out=tuning: .*; trainer\.validation_tokens=\d+ leaves it, or"):
        study.held_out("main")


@pytest.mark.parametrize(("slow", "fast"), [(("1e-3", "1e-1"), ("1e-3", "1e-1")), (("1e-3", "1e-1"), ("1e-3", "3e-2"))])
def test_the_rate_may_be_one_factor_of_two(slow: tuple[str, str], fast: tuple[str, str], tmp_path: Path) -> None:
    """Of an interaction, at the same two rates on both sides."""
    pairs = {"post": fast, "pre": slow}
    arms = {
        f"{name} {n}": [f"placement={name}", f"optimizer.lr={rates[n]}"]
        for name, rates in pairs.items()
        for n in (0, 1)
    }
    contrasts = {"rate x placement": {"needy": ["post 1", "post 0"], "robust": ["pre 1", "pre 0"]}}
    made = {"kind": "interaction", "arms": arms, "contrasts": contrasts, "lrs": [], "seeds": {"evaluation": [0, 1]}}
    if slow != fast:
        with pytest.raises(ValueError, match="all pairs have the same two"):
            claim(**made)
        return
    study = Study(claim(**made), [f"out={tmp_path}"])
    rates = {key.arm: study.plan(key).config["optimizer"]["lr"] for key in study.evaluation_keys([0, 1], {})}
    assert rates == {"post 0": 1e-3, "post 1": 1e-1, "pre 0": 1e-3, "pre 1": 1e-1}
    (contrast,) = study.cells()[0].contrasts
    assert contrast.weights == {"post 1": 1.0, "post 0": -1.0, "pre 1": -1.0, "pre 0": 1.0}


def test_arms_may_be_told_apart_by_their_rates_where_nothing_is_tuned(tmp_path: Path) -> None:
    """Each is run at its own, in one column; the scope has them all, and the word rests on their losses alone."""
    arms = {"own": ["optimizer.lr=3e-3"], "high": ["optimizer.lr=0.3"]}
    contrasts = {"own against high": {"variant": "own", "reference": "high"}}
    said = claim(kind="stability", arms=arms, contrasts=contrasts, lrs=[], margin=0.1, seeds={"evaluation": [0, 1, 2]})
    asked: list[tuple[str, float, int]] = []

    def loss(arm: str, lr: float, seed: int) -> float:
        asked.append((arm, lr, seed))
        return {3e-3: 2.0, 0.3: 9.0}[lr] + noise(arm, seed)  # 6.0 at the start

    verdict = Bench(tmp_path, said, loss).flow.verdict({})
    assert sorted(asked) == [(arm, lr, seed) for arm, lr in (("high", 0.3), ("own", 3e-3)) for seed in (0, 1, 2)]
    assert verdict.scope["lr"] == "0.003|0.3"
    assert verdict.cells[0].found.findings[0].judgement.mean == pytest.approx(4.0, abs=0.01)  # capped
    assert verdict.verdict == "supported"
