"""A claim put to the test, with runs that are written by hand: what the flow makes of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from test_claim import SAID

from modernllm.claims.claim import Claim
from modernllm.claims.flow import Flow, Incomplete, Stopped
from modernllm.claims.statistics.sequential import look_alpha
from modernllm.claims.study import Study
from modernllm.claims.table import Key
from modernllm.preparation import read_text
from modernllm.runs.directory import RunDirectory
from modernllm.sweep.plan import Plan, Planned

Loss = Callable[[str, float, int], float]
"""Final loss by arm, learning rate and seed."""
BASE = ["size=nano", "model.dim=32", "model.n_layers=1", "data=synthetic", "data.n_documents=40",
        "model.context_length=32", "trainer.steps=100", "trainer.validation_tokens=256"]  # fmt: skip


def claim(**changed: Any) -> Claim:
    return Claim(name="mine", **(SAID | {"base": BASE} | changed))


def fabricate(run: Planned, loss: float, outcome: str | None = "ok") -> None:
    """The record that a run would leave, without the run."""
    directory = RunDirectory(run.path)
    directory.acquire()
    made_of = {"floors": {"unigram": 3.0, "bigram": 2.0}, "device": "cpu", "dead_switches": run.dead, **texts(run)}
    asked = {"choices": run.asked.choices, "overrides": run.asked.overrides, "origin": dict(run.asked.origin)}
    directory.open(run.config, {"run_id": run.run_id, **made_of, **asked})
    directory.metrics({"step": 0, "val_loss": 6.0})
    if math.isfinite(loss):
        directory.metrics({"step": run.config["trainer"]["steps"], "val_loss": loss})
    done = {"outcome": outcome, "val_loss": loss, "tokens": run.tokens, "clipped_share": 0.25, "skipped_steps": 0}
    directory.mark("finished", **done)
    directory.release()


TEXTS: dict[str, dict[str, str]] = {}


def texts(run: Planned) -> dict[str, str]:
    """Hashes of text, vocabulary and validation windows, read once for all runs that share them."""
    length, trainer = run.config["model"]["context_length"], run.config["trainer"]
    windows = trainer["validation_tokens"], trainer["held_out"]
    key = json.dumps([run.config["data"], run.config["tokenizer"], length, windows])
    if key not in TEXTS:
        TEXTS[key] = read_text(deepcopy(run.config)).hashes
    return TEXTS[key]


class Bench:
    """A flow whose runs are fabricated from `loss`; `asked` are the (arm, lr, seed) that it was asked for, in turns."""

    def __init__(self, folder: Path, said: Claim, loss: Loss, **options: Any) -> None:
        self.study = Study(said, [f"out={folder}", "logger=local"])
        self.turns: list[list[tuple[str, float, int]]] = []
        self.told: list[str] = []
        self.loss = loss
        self.flow = Flow(self.study, folder / "verdicts" / self.study.name, self.execute, self.told.append, **options)

    def execute(self, plan: Plan) -> int | None:
        asked = []
        for run in plan.todo:
            arm = run.asked.origin["arm"]
            point = (arm, run.config["optimizer"]["lr"], run.config["seed"])
            loss = self.loss(*point)
            fabricate(run, loss, "nonfinite" if math.isnan(loss) else "ok")
            asked.append(point)
        self.turns.append(asked)
        return None

    @property
    def verdict_file(self) -> dict[str, Any]:
        return json.loads((self.flow.folder / "verdict.json").read_text())


def noise(arm: str, seed: int) -> float:
    """Of a few thousandths, another for each arm: pairs whose difference never changes would be no repeats."""
    return float(np.random.default_rng([seed, len(arm), ord(arm[-1])]).normal(0, 0.003))


def better(arm: str, lr: float, seed: int) -> float:
    """RoPE is better by 0.3, and both are best at the middle rate."""
    return 2.0 + (0.3 if arm == "learned" else 0.0) + abs(math.log10(lr / 3e-3)) + noise(arm, seed)


def test_a_quality_claim_tunes_then_judges(tmp_path: Path) -> None:
    said = claim(seeds={"tuning": [10, 11], "evaluation": [0, 1, 2, 3]})
    bench = Bench(tmp_path, said, better)
    verdict = bench.flow.verdict({"more": 1})
    tuning, evaluation = bench.turns
    assert sorted(tuning) == sorted(
        (arm, lr, seed) for arm in ("rope", "learned") for lr in (1e-3, 3e-3, 1e-2) for seed in (10, 11)
    )
    assert sorted(evaluation) == sorted((arm, 3e-3, seed) for arm in ("rope", "learned") for seed in range(4))
    assert (verdict.verdict, verdict.exit_code) == ("supported", 0)
    (finding,) = verdict.cells[0].found.findings
    assert finding.judgement.mean == pytest.approx(-0.3, abs=0.01)
    assert {arm: choice.lr for arm, choice in finding.choices.items()} == {"rope": 3e-3, "learned": 3e-3}
    kept = bench.verdict_file
    assert kept["facts"]["mitigations"]["rope"] == {"clipped share": 0.25, "skipped steps": 0, "runs": 4}
    assert (kept["facts"]["more"], kept["facts"]["hash"]) == (1, said.hash)
    assert kept["scope"]["width"] == "32"
    assert kept["scope"]["position"] == "learned|rope"
    assert [version["this"] for version in kept["facts"]["versions"]] == [True]


def test_every_run_says_on_whose_behalf_it_was_made(tmp_path: Path) -> None:
    bench = Bench(tmp_path, claim(), better)
    key = Key("main", "rope", 3e-3, 0)
    run = bench.study.plan(key)
    assert run.asked.origin == {"claim": "mine", "hash": bench.study.claim.hash, "cell": "main", "arm": "rope"}
    assert run.path.parent == tmp_path / "claim-mine"
    assert (run.config["seed"], run.config["optimizer"]["lr"], run.config["trainer"]["keep"]) == (0, 3e-3, 1)
    assert run.asked.overrides == {"position": "rope", "optimizer.lr": "0.003", "seed": "0"}
    assert bench.study.row(key) is None


def test_an_edge_extends_the_grid_once_for_every_arm(tmp_path: Path) -> None:
    def loss(arm: str, lr: float, seed: int) -> float:
        best = 3e-2 if arm == "rope" else 3e-3  # the grid ends at 1e-2
        return 2.0 + abs(math.log10(lr / best)) + noise(arm, seed)

    bench = Bench(tmp_path, claim(), loss)
    verdict = bench.flow.verdict({})
    _, extended, evaluation = bench.turns
    assert sorted(extended) == [("learned", 0.0333, 10), ("rope", 0.0333, 10)]
    assert ("rope", 0.0333, 0) in evaluation
    assert ("learned", 3e-3, 0) in evaluation
    assert any("0.0333" in line for line in bench.told)
    assert verdict.verdict == "inconclusive"  # still at the edge: capped
    assert "edge" in verdict.cells[0].line


def test_a_missing_run_is_never_a_verdict(tmp_path: Path) -> None:
    """A planted crash: no exit as a verdict, and nothing written that looks like one."""
    bench = Bench(tmp_path, claim(), better)
    made = bench.execute

    def crash(plan: Plan) -> int | None:
        for run in plan.todo[:-1]:
            made(Plan([run], retry=True, overwrite=False))
        broken = RunDirectory(plan.todo[-1].path)
        broken.acquire()
        broken.mark("failed", reason="RuntimeError: planted")
        broken.release()
        return None

    bench.flow.execute = crash
    with pytest.raises(Incomplete, match="RuntimeError: planted"):
        bench.flow.verdict({})
    assert not (bench.flow.folder / "verdict.json").exists()
    assert bench.flow.ledger.versions(bench.study.claim)[0]["said"] is None
    bench.flow.execute = made
    bench.flow.verdict({})
    assert bench.verdict_file["verdict"] == "supported"


def test_a_signal_stops_and_the_same_claim_goes_on(tmp_path: Path) -> None:
    bench = Bench(tmp_path, claim(), better)
    made = bench.execute
    bench.flow.execute = lambda plan: 15
    with pytest.raises(Stopped) as stopped:
        bench.flow.verdict({})
    assert stopped.value.args == (15,)
    bench.flow.execute = made
    bench.flow.verdict({})
    n = sum(map(len, bench.turns))
    bench.flow.verdict({})  # all there: nothing is run again
    assert sum(map(len, bench.turns)) == n


def test_a_run_that_broke_counts_and_is_told(tmp_path: Path) -> None:
    def loss(arm: str, lr: float, seed: int) -> float:
        return math.nan if arm == "learned" and seed == 1 else better(arm, lr, seed)

    bench = Bench(tmp_path, claim(seeds={"tuning": [10], "evaluation": [0, 1, 2, 3]}), loss)
    verdict = bench.flow.verdict({})
    (finding,) = verdict.cells[0].found.findings
    assert finding.outcomes["learned"]["failed"] == 1
    assert finding.outcomes["learned"]["n"] == 4
    assert finding.judgement.n == 4
    assert min(finding.judgement.values) == pytest.approx(2.0 - 6.0, abs=0.01)  # capped at the loss at the start


def test_looks_stop_as_soon_as_all_is_decided(tmp_path: Path) -> None:
    said = claim(seeds={"tuning": [10], "evaluation": list(range(9))})
    bench = Bench(tmp_path, said, better, looks=[3, 6, 9])
    verdict = bench.flow.verdict({})
    assert verdict.verdict == "supported"
    assert {seed for _, _, seed in bench.turns[-1]} == {0, 1, 2}
    (finding,) = verdict.cells[0].found.findings
    assert finding.judgement.n == 3
    assert finding.judgement.level == pytest.approx(1 - look_alpha([3, 6, 9]))


def test_looks_go_on_where_nothing_is_decided(tmp_path: Path) -> None:
    def loss(arm: str, lr: float, seed: int) -> float:
        return 2.0 + abs(math.log10(lr / 3e-3)) + 60 * noise(arm, seed)

    said = claim(seeds={"tuning": [10], "evaluation": list(range(9))})
    bench = Bench(tmp_path, said, loss, looks=[3, 6, 9])
    assert bench.flow.verdict({}).verdict == "inconclusive"
    assert [line for line in bench.told if line.startswith("look at")] == [
        "look at 3 seeds: not decided, going on",
        "look at 6 seeds: not decided, going on",
    ]


def test_a_changed_claim_is_a_new_version_and_the_old_word_is_told(tmp_path: Path) -> None:
    Bench(tmp_path, claim(), better).flow.verdict({})
    again = Bench(tmp_path, claim(margin=0.5), better)
    again.flow.verdict({})
    assert [version["said"] for version in again.verdict_file["facts"]["versions"]] == ["supported", None]
    assert any(line.endswith("said supported") for line in again.told)


def test_an_interaction_is_judged_at_its_rate(tmp_path: Path) -> None:
    arms = {f"{p} {w}": [f"placement={p}", f"schedule.warmup={s}"] for p in ("pre", "post") for w, s in
            (("cold", 0), ("warm", 0.5))}  # fmt: skip
    said = claim(
        kind="interaction", arms=arms, lrs=[], lr=3e-3, margin=0.1, seeds={"evaluation": [0, 1, 2, 3]},
        contrasts={"i": {"needy": ["post cold", "post warm"], "robust": ["pre cold", "pre warm"]}},
        cells={"main": {"main": True}, "slow": {"lr": 1e-3}},
    )  # fmt: skip

    def loss(arm: str, lr: float, seed: int) -> float:
        return 2.0 + (0.5 if arm == "post cold" and lr > 2e-3 else 0.0) + noise(arm, seed)

    bench = Bench(tmp_path, said, loss)
    verdict = bench.flow.verdict({})
    means = {cell.name: cell.found.findings[0].judgement.mean for cell in verdict.cells}
    assert means == pytest.approx({"main": 0.5, "slow": 0.0}, abs=0.02)
    assert {cell.name: cell.verdict for cell in verdict.cells} == {"main": "supported", "slow": "inconclusive"}
    assert {lr for _, lr, _ in bench.turns[0]} == {1e-3, 3e-3}


def test_runs_that_cells_share_are_made_where_they_are_first_needed(tmp_path: Path) -> None:
    """The main cell comes first, and is whole before the others begin."""
    cells = {"main": {"main": True}, "same but for one arm": {"overrides": ["readout=norm"]}}
    arms = {"pre": ["placement=pre"], "post": ["placement=post"]}
    contrasts = {"pre against post": {"variant": "pre", "reference": "post"}}
    bench = Bench(tmp_path, claim(arms=arms, contrasts=contrasts, cells=cells), better)
    plan = Plan([bench.study.plan(key) for key in bench.study.tuning_keys()], retry=True, overwrite=False)
    assert len(plan.runs) == 12
    assert [run.asked.origin["cell"] for run in plan.unique] == ["main"] * 6 + ["same but for one arm"] * 3


def test_a_claim_file_travels_with_its_verdict(tmp_path: Path) -> None:
    bench = Bench(tmp_path, claim(), better)
    bench.flow.verdict({})
    kept = json.loads((bench.flow.folder / "claim.json").read_text())
    assert Claim(**kept).hash == bench.study.claim.hash
    assert yaml.safe_load(json.dumps(kept)) == kept
