"""Attempts to get a verdict that the runs do not bear: each is refused, or said."""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from filelock import FileLock
from test_claim import SAID, write
from test_flow import BASE, Bench, Loss, better, claim, noise

from modernllm import experiment
from modernllm.claims import records
from modernllm.claims.claim import Claim, load_claim
from modernllm.claims.flow import Incomplete, Refused
from modernllm.claims.foreign import sources
from modernllm.claims.kin import kin
from modernllm.claims.ledger import Ledger
from modernllm.claims.looks import fitting
from modernllm.claims.provenance import maker
from modernllm.claims.records import code_of, finished
from modernllm.claims.table import Key
from modernllm.runs import directory
from modernllm.scripting import main

Rows = list[dict[str, Any]]
JUDGED = Key("main", "rope", 3e-3, 0)


def bench_of(folder: Path, said: Claim, loss: Loss = better, **options: Any) -> Bench:
    """Without the preflight, which has tests of its own and takes most of the time."""
    bench = Bench(folder, said, loss, **options)
    bench.flow.certify = dict  # type: ignore[method-assign]
    return bench


def fresh(folder: Path, **options: Any) -> Bench:
    """A new process with the same claim file and the same folder."""
    return bench_of(folder, claim(), **options)


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def edit_rows(path: Path, change: Callable[[Rows], Rows]) -> None:
    rows = change([json.loads(line) for line in path.read_text().splitlines()])
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def edit_config(path: Path, section: str, **values: Any) -> None:
    config = yaml.safe_load(path.read_text())
    config[section] |= values
    path.write_text(yaml.safe_dump(config))


TAMPERED: list[tuple[str, Callable[[Path], object], str]] = [
    ("last loss lost", lambda run: edit_rows(run / "metrics.jsonl", lambda rows: rows[:-1]), "metrics.jsonl nan"),
    ("a better loss", lambda run: edit_rows(run / "metrics.jsonl", lambda rows: [rows[0], rows[1] | {"val_loss": 0.1}]),
     "status.json says val_loss"),
    ("first loss lost", lambda run: edit_rows(run / "metrics.jsonl", lambda rows: rows[1:]), "no loss before"),
    ("no metrics", lambda run: (run / "metrics.jsonl").unlink(), "no loss before the first step"),
    ("garbled metrics", lambda run: (run / "metrics.jsonl").write_text("{\n"), "metrics.jsonl, line 1 is damaged"),
    ("no run.json", lambda run: (run / "run.json").unlink(), "it has no run.json"),
    ("garbled configuration", lambda run: (run / "config.yaml").write_text("a: ["), "config.yaml is damaged"),
    ("no loss", lambda run: edit(run / "status.json", lambda s: s.pop("val_loss")), "is damaged ('val_loss')"),
    ("another model", lambda run: edit_config(run / "config.yaml", "model", dim=64), "holds another run"),
    ("fewer steps", lambda run: edit_config(run / "config.yaml", "trainer", steps=50), "holds another run"),
    ("another rate", lambda run: edit_config(run / "config.yaml", "optimizer", lr=1.0), "holds another run"),
    ("other validation", lambda run: edit(run / "run.json", lambda made: made.update(validation="x")), "another run"),
    ("other tokenizer", lambda run: edit(run / "run.json", lambda made: made.update(tokenizer="x")), "another run"),
    ("other text", lambda run: edit(run / "run.json", lambda made: made.update(corpus="x")), "another run"),
    ("another name", lambda run: edit(run / "run.json", lambda made: made.update(run_id="x")), "another run"),
    ("other code", lambda run: edit(run / "run.json", lambda made: made["origin"].update(code="x")), "by other code"),
]  # fmt: skip


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which everything was run and judged; the runs are under `out` of that very place."""
    folder = tmp_path_factory.mktemp("heard")
    fresh(folder).flow.verdict({})
    return folder


@pytest.mark.parametrize(
    ("tamper", "told"), [(how, told) for _, how, told in TAMPERED], ids=[n for n, _, _ in TAMPERED]
)
def test_a_record_that_is_not_the_planned_runs_is_no_evidence(
    tamper: Callable[[Path], object], told: str, heard: Path, tmp_path: Path
) -> None:
    planned = fresh(heard).study.plan(JUDGED)
    assert finished(planned)
    kept = shutil.copytree(planned.path, tmp_path / "kept")
    try:
        tamper(planned.path)
        with pytest.raises(ValueError, match="delete that folder") as refused:
            finished(planned)
        assert told in str(refused.value)
        assert str(planned.path) in str(refused.value)
    finally:
        shutil.rmtree(planned.path)
        shutil.copytree(kept, planned.path)


def test_the_record_of_a_real_run_is_believed(tmp_path: Path) -> None:
    """What is computed again of a fabricated record holds of one that training left."""
    bench = bench_of(tmp_path, claim(base=short()))
    planned = bench.study.plan(JUDGED)
    assert finished(planned) is None
    _, done = experiment.run(deepcopy(planned.config), planned.asked)
    run = finished(planned)
    assert run
    assert run.val_loss == done.val_loss
    edit_config(planned.path / "config.yaml", "schedule", warmup=0.5)
    with pytest.raises(ValueError, match="holds another run"):
        finished(planned)


def short() -> list[str]:
    return [word for word in BASE if not word.startswith("trainer.steps")] + ["trainer.steps=3"]


def test_a_damaged_record_leaves_the_claim_without_a_verdict_until_it_is_run_again(tmp_path: Path) -> None:
    bench = fresh(tmp_path)
    bench.flow.verdict({})
    path = bench.study.plan(JUDGED).path
    edit_rows(path / "metrics.jsonl", lambda rows: rows[:-1])
    with pytest.raises(Incomplete, match="1 of 4 runs have no result"):
        fresh(tmp_path).flow.verdict({})
    shutil.rmtree(path)
    again = fresh(tmp_path)
    assert again.flow.verdict({}).verdict == "supported"
    assert again.turns == [[("rope", 3e-3, 0)]]


def test_a_status_that_is_lost_is_a_run_to_be_made_again(tmp_path: Path) -> None:
    bench = fresh(tmp_path)
    bench.flow.verdict({})
    path = bench.study.plan(JUDGED).path
    (path / "status.json").write_text("{")
    (path / "metrics.jsonl").unlink()
    again = fresh(tmp_path)
    again.flow.verdict({})
    assert again.turns == [[("rope", 3e-3, 0)]]


def test_runs_of_other_versions_are_told(tmp_path: Path) -> None:
    fresh(tmp_path).flow.verdict({})
    more = bench_of(tmp_path, claim(seeds={"tuning": [10], "evaluation": [0, 1, 2]}))
    verdict = more.flow.verdict({})
    assert verdict.facts["runs"] == {"number": 12, "not made for this version": 10, "code": {"None": 12}}
    assert any(line.startswith("10 of 12 runs were not made for this version") for line in more.told)
    shutil.rmtree(more.flow.folder)  # with the ledger, the history goes; the runs remember
    assert fresh(tmp_path).flow.verdict({}).facts["runs"]["not made for this version"] == 0


def test_a_stale_verdict_does_not_outlive_its_claim(tmp_path: Path) -> None:
    bench = fresh(tmp_path)
    bench.flow.verdict({})
    changed = bench_of(tmp_path, claim(margin=0.5, lrs=[1e-3, 3e-3, 1e-2, 2e-2]))
    changed.flow.execute = lambda plan: 15
    with pytest.raises(KeyboardInterrupt):
        changed.flow.verdict({})
    assert not (bench.flow.folder / "verdict.json").exists()
    assert bench.flow.ledger.said(bench.study.claim) == ["supported"]
    again = fresh(tmp_path)
    again.flow.verdict({})
    again.flow.execute = lambda plan: 15
    assert (bench.flow.folder / "verdict.json").exists()


def test_an_edited_verdict_is_written_anew(tmp_path: Path) -> None:
    bench = fresh(tmp_path)
    bench.flow.verdict({})
    edit(bench.flow.folder / "verdict.json", lambda found: found.update(verdict="refuted", exit_code=20))
    again = fresh(tmp_path)
    assert again.flow.verdict({}).exit_code == 0
    assert again.verdict_file["verdict"] == "supported"


def test_a_version_that_changes_its_word_says_so(tmp_path: Path) -> None:
    """As where runs were deleted and made again until they were liked."""
    bench = fresh(tmp_path)
    bench.flow.verdict({})
    shutil.rmtree(tmp_path / "claim-mine")
    other = bench_of(tmp_path, claim(), lambda arm, lr, seed: better("learned" if arm == "rope" else "rope", lr, seed))
    verdict = other.flow.verdict({})
    assert verdict.verdict == "refuted"
    assert verdict.facts["said before"] == ["supported"]
    assert "! this very version said before: supported" in other.told


def test_looks_that_do_not_end_with_the_seeds_are_refused(tmp_path: Path) -> None:
    for looks, told in (([2, 4], "2 evaluation seeds"), ([3, 6, 9], "2 evaluation seeds"), ([2, 2], "growing numbers")):
        bench = fresh(tmp_path, looks=looks)
        with pytest.raises(ValueError, match=told):
            bench.flow.verdict({})
        assert bench.turns == []
    assert fitting([2, 5], 5) == (2, 5)


def test_other_looks_after_the_first_are_refused(tmp_path: Path) -> None:
    said = claim(seeds={"tuning": [10], "evaluation": list(range(6))})
    bench_of(tmp_path, said, looks=[3, 6]).flow.verdict({})
    for looks in ([2, 4, 6], []):
        with pytest.raises(ValueError, match="was begun with looks=3,6"):
            bench_of(tmp_path, said, looks=looks).flow.verdict({})
    assert bench_of(tmp_path, said, looks=[3, 6]).flow.verdict({}).facts["looks"] == [3, 6]


def test_what_was_looked_at_is_told_by_the_next_version(tmp_path: Path) -> None:
    """As where a first look was not liked: the seeds are cut, and it is judged as if there had been no look."""

    def undecided(arm: str, lr: float, seed: int) -> float:
        return 2.0 + abs(math.log10(lr / 3e-3)) + 60 * noise(arm, seed)

    said = claim(seeds={"tuning": [10], "evaluation": list(range(6))})
    bench = bench_of(tmp_path, said, undecided, looks=[3, 6])
    made = bench.flow.execute
    bench.flow.execute = lambda plan: 15 if any(run.config["seed"] == 3 for run in plan.todo) else made(plan)
    with pytest.raises(KeyboardInterrupt):
        bench.flow.verdict({})
    cut = bench_of(tmp_path, claim(seeds={"tuning": [10], "evaluation": [0, 1, 2]}), undecided)
    verdict = cut.flow.verdict({})
    assert [version.get("looked at") for version in verdict.facts["versions"]] == [3, None]
    assert any(line.endswith("came to no verdict, looked at with 3 seeds") for line in cut.told)


def test_two_processes_do_not_hear_one_claim(tmp_path: Path) -> None:
    bench = fresh(tmp_path)
    bench.flow.folder.mkdir(parents=True)
    with FileLock(bench.flow.folder / ".lock"), pytest.raises(ValueError, match="another process is hearing"):
        bench.flow.verdict({})
    assert bench.turns == []


def test_cells_that_are_one_are_refused(tmp_path: Path) -> None:
    for again in ({}, {"overrides": ["model.n_layers=1"]}, {"overrides": ["trainer.threads=1"]}):
        bench = bench_of(tmp_path, claim(cells={"main": {"main": True}, "again": again}))
        with pytest.raises(Refused, match="cells main and again are the same runs"):
            bench.flow.verdict({})
        assert bench.turns == []


def full(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """No room for files of that name."""
    replace = os.replace

    def fails(source: Path, target: Path) -> None:
        if Path(target).name == name:
            raise OSError(28, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(directory.os, "replace", fails)


def test_a_full_disk_is_no_verdict_and_the_ledger_knows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bench = fresh(tmp_path)
    full(monkeypatch, "verdict.json")
    with pytest.raises(OSError, match=r"cannot write .*verdict\.json"):
        bench.flow.verdict({})
    assert sorted(path.name for path in bench.flow.folder.iterdir() if path.name != ".lock") == [
        "claim.json", "fairness.json", "ledger.jsonl",
    ]  # fmt: skip
    assert bench.flow.ledger.said(bench.study.claim) == ["supported"]


def test_a_torn_line_of_the_ledger_is_mended_and_a_damaged_one_is_told(tmp_path: Path) -> None:
    first, ledger = load_claim(write(tmp_path)), Ledger(tmp_path / "ledger.jsonl")
    ledger.freeze(first)
    with ledger.path.open("a") as file:
        file.write('{"event": "verd')  # killed here
    ledger.record(first, {"verdict": "refuted", "reason": "r", "line": "l", "void": None})
    assert ledger.said(first) == ["refuted"]
    ledger.path.write_text("{}\n")
    with pytest.raises(ValueError, match="is damaged, and with it the history of the claim"):
        ledger.said(first)


def test_a_model_of_other_hands_does_not_choose_the_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    def leaves() -> int:
        raise SystemExit(0)  # in an import, or in a forward pass of the preflight

    def stops() -> int:
        raise KeyboardInterrupt

    assert main(leaves, []) == 1
    with pytest.raises(KeyboardInterrupt):  # `startup` has a word and a code for it
        main(stops, [])
    assert "SystemExit" in capsys.readouterr().err


def test_code_of_other_hands_is_part_of_what_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that a leaking version of a module made is not reused after the leak was closed for the preflight."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "mine_a.py").write_text("class Norm:\n    sees = 'all'\n")
    config = {"allow_targets": ["mine_a.Norm"]}
    first = code_of(config)
    (tmp_path / "mine_a.py").write_text("class Norm:\n    sees = 'past'\n")
    assert first != code_of(config)
    assert code_of({"allow_targets": []}) == {}


def test_code_of_other_hands_is_all_that_it_is_written_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The leak may stand in another file; what lies beside and is not imported does not count."""
    monkeypatch.syspath_prepend(tmp_path)
    files = {
        "mine_b/__init__.py": "", "mine_b/norm.py": "from . import maths\nfrom .deep.er import f\nclass Norm: pass\n",
        "mine_b/maths.py": "import torch\nimport beside_b\n", "mine_b/deep/er.py": "f = 1\n", "beside_b.py": "",
        "mine_b/apart.py": "", "other_b.py": "",
    }  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    counted = {"mine_b/__init__.py", "mine_b/norm.py", "mine_b/maths.py", "mine_b/deep/er.py", "beside_b.py"}
    assert set(sources("mine_b.norm.Norm")) == counted
    first = code_of({"allow_targets": ["mine_b.norm.Norm"]})
    for name in files:
        (tmp_path / name).write_text(files[name] + "x = 1\n")
        assert (code_of({"allow_targets": ["mine_b.norm.Norm"]}) != first) == (name in counted)
        (tmp_path / name).write_text(files[name])
    assert set(sources("scipy.stats.ttest_rel")) == {"scipy/stats/__init__.py"}
    assert len(sources("math.sqrt")) == len(sources("json.loads")) == 1
    assert sources("nowhere_b.Norm") == {}


ARMS = SAID["arms"]
RATED = {"rope": ["optimizer.lr=1e-3"], "learned": ["optimizer.lr=1e-1"]}
FORGED: list[tuple[dict[str, Any], str]] = [
    ({"seeds": {"tuning": [10], "evaluation": [0, 0, 1]}}, "evaluation: [0] more than once"),
    ({"seeds": {"tuning": [10], "evaluation": [True, 2]}}, "is a number, not true or false"),
    ({"seeds": {"tuning": [10], "evaluation": []}}, "at least 1 item"),
    ({"seeds": {"tuning": [10], "evaluation": [-1]}}, "greater than or equal to 0"),
    ({"margin": float("nan")}, "margin: Input should be a finite number"),
    ({"margin": 0}, "margin: Input should be greater than or equal to 0.000001"),
    ({"margin": -0.1}, "margin: Input should be greater than or equal to 0.000001"),
    ({"margin": True}, "margin: is a number, not true or false"),
    ({"margin": float("inf")}, "margin: Input should be a finite number"),
    ({"margin": 10, "kind": "equivalence"}, "margin: Input should be less than or equal to 1"),
    ({"margin": 1e-9}, "margin: Input should be greater than or equal to 0.000001"),
    ({"lrs": [1e-3, 1e-3, 1e-2]}, "lrs: 0.001 more than once"),
    ({"lrs": [1e-3, 1.0000001e-3, 1e-2]}, "lrs: 0.001 more than once"),
    ({"lrs": [1e-3, 1.01e-3, 1.02e-3]}, "lrs: 0.001 and 0.00101 are a factor of 1.01 apart"),
    ({"lrs": [1e-3, 3e-3, 1e-2, 1.3e-2]}, "a factor of 1.3 apart"),
    ({"base": ["seed=3"]}, "base: seed cannot be set there: seeds says which are run"),
    ({"arms": ARMS | {"learned": ["position=learned", "optimizer.lr=9"]}}, "optimizer.lr cannot be set there: lrs"),
    ({"arms": ARMS | {"learned": ["trainer.held_out=tuning"]}}, "trainer.held_out cannot be set there: what chooses"),
    ({"arms": RATED}, "arms: kind=superiority compares no learning rates, so no arm sets optimizer.lr"),
    ({"arms": RATED, "kind": "stability"}, "lrs: the arms set optimizer.lr themselves; leave one of both out"),
    ({"arms": RATED, "kind": "stability", "lrs": [], "lr": 1e-3}, "lr: the arms set optimizer.lr themselves"),
    ({"arms": RATED, "kind": "stability", "lrs": [], "cells": {"main": {"main": True, "lr": 1e-3}}}, "cells.main.lr: "),
    ({"arms": {"rope": ["optimizer.lr=1e-3"], "learned": ["position=learned", "optimizer.lr=1e-1"]}, "lrs": [],
      "kind": "stability"}, "where arms set optimizer.lr, it is all that they differ in"),
    ({"arms": RATED | {"learned": []}, "kind": "stability", "lrs": []}, "lrs: kind=stability needs a grid"),
    ({"arms": RATED | {"learned": []}, "kind": "stability"}, "arms.rope: optimizer.lr cannot be set there: lrs or lr"),
    ({"arms": RATED, "kind": "stability", "lrs": [], "base": ["optimizer.lr=1"]}, "base: optimizer.lr cannot be set"),
    ({"arms": ARMS | {"learned": ["position=learned", "++seed=9"]}}, "arms.learned: seed cannot be set there"),
    ({"cells": {"main": {"main": True, "overrides": ["study=x"]}}}, "cells.main.overrides: study cannot be set there"),
    ({"base": ["out=/tmp"]}, "out cannot be set there"),
    ({"base": ["resume=x"]}, "resume cannot be set there"),
    ({"base": ["model.dim=32", "model.dim=64"]}, "base: model.dim is written more than once"),
    ({"cells": {"main": {"main": True}, "x": {"overrides": ["position=rope"]}}}, "position is set by the arm "),
    ({"contrasts": {"x": {"variant": "rope", "reference": "rope"}}}, "an arm is not compared with itself"),
    ({"contrasts": {"x": SAID["contrasts"]["rope against learned"], "y": {"variant": "learned", "reference": "rope"}}},
     "learned and rope are compared more than once"),
    ({"kind": "interaction", "lrs": [], "lr": 1e-3, "contrasts": {"x": {"needy": ["rope", "learned"],
      "robust": ["learned", "rope"]}}}, "rope, learned stands in it more than once"),
    ({"kind": "exact", "arms": None, "probes": {"x": {"measure": "m", "low": 2, "high": 1}}}, "write the smaller one"),
    ({"kind": "exact", "arms": None, "probes": {"x": {"measure": "m", "low": 0, "high": float("inf")}}}, "finite"),
]  # fmt: skip


@pytest.mark.parametrize(("changed", "told"), FORGED, ids=[told[:40] for _, told in FORGED])
def test_a_forged_claim_is_refused(changed: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"mine\.yaml") as refused:
        load_claim(write(tmp_path, **changed))
    assert told in str(refused.value)


@pytest.mark.parametrize("text", ["margin: 0.5\n", "cells: {a: {main: true}, a: {overrides: [init=normal]}}\n"])
def test_a_key_that_is_written_twice_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(SAID) + text)
    with pytest.raises(ValueError, match="is written more than once"):
        load_claim(str(path))


def renamed(folder: Path, name: str, **changed: Any) -> Bench:
    return bench_of(folder, Claim(**(claim(**changed).model_dump() | {"name": name})))


def test_another_name_does_not_hide_what_was_said(tmp_path: Path) -> None:
    """By the sentence, and by the arms: however the one is written, and whatever the others are called."""
    worse = bench_of(tmp_path, claim(), lambda arm, lr, seed: better("learned" if arm == "rope" else "rope", lr, seed))
    assert worse.flow.verdict({}).verdict == "refuted"
    said = {"claim": "mine", "hash": worse.study.claim.hash, "said": "refuted"}

    same = renamed(tmp_path, "other", claim="rope beats  learned positions.", margin=0.03)
    verdict = same.flow.verdict({})
    assert verdict.facts["under other names"] == [said | {"same": "sentence and arms"}]
    assert f"mine ({said['hash']}), of the same sentence and arms, said refuted" in same.told
    assert "Under other names: mine (" in verdict.paragraph

    arms = {"b": ["position=learned", "model.dim=32"], "a": ["model.dim=32", "position=rope"]}
    base = [word for word in BASE if word != "model.dim=32"]
    contrasts = {"x": {"variant": "a", "reference": "b"}}
    spelled = renamed(tmp_path, "third", claim="Rotations win", arms=arms, base=base, contrasts=contrasts)
    assert [(each["claim"], each["same"]) for each in kin(spelled.flow.folder, spelled.study)] == [
        ("mine", "arms"), ("other", "arms"),
    ]  # fmt: skip

    arms = {"none": ["position=none"], "rope": ["position=rope"]}
    contrasts = {"x": {"variant": "none", "reference": "rope"}}
    unlike = renamed(tmp_path, "fourth", claim="No positions win", arms=arms, contrasts=contrasts)
    assert kin(unlike.flow.folder, unlike.study) == []


def relabel(path: Path, **made_by: Any) -> None:
    edit(path / "run.json", lambda made: made.update(made_by))


def test_arms_that_other_code_made_are_not_compared(tmp_path: Path) -> None:
    """Where no run of one arm has the code of any of the other; else the states are named."""
    bench = fresh(tmp_path)
    bench.flow.verdict({})
    paths = {arm: [bench.study.plan(Key("main", arm, 3e-3, seed)).path for seed in (0, 1)] for arm in ARMS}
    dirty = {"code": {"commit": "a" * 40, "dirty": True}}
    for seed in (0, 1):
        relabel(paths["rope"][seed], **dirty, source="1" * 64)
        relabel(paths["learned"][seed], **dirty, source="2" * 64)
    (bench.flow.folder / "verdict.json").unlink()
    with pytest.raises(ValueError, match=r"main: all runs of rope \(.*1\) and learned \(.*2\) were made by other code"):
        fresh(tmp_path).flow.verdict({})
    assert not (bench.flow.folder / "verdict.json").exists()
    relabel(paths["learned"][0], source="1" * 64)
    again = fresh(tmp_path)
    assert again.flow.verdict({}).facts["runs"]["code"] == {
        "None": 6, "aaaaaaaaaa with changes 11111111": 3, "aaaaaaaaaa with changes 22222222": 1,
    }  # fmt: skip
    assert any(line.startswith("! the runs were made by 3 states of the code") for line in again.told)
    clean = {"code": {"commit": "a" * 40, "dirty": False}, "versions": {"torch": "2.1"}, "machine": {"processor": "x"}}
    assert maker(clean | {"source": "3" * 64}) == "aaaaaaaaaa, torch 2.1, x"


def test_a_link_to_another_run_is_another_run(tmp_path: Path) -> None:
    bench = fresh(tmp_path)
    bench.flow.verdict({})
    one, other = (bench.study.plan(Key("main", "rope", 3e-3, seed)).path for seed in (0, 1))
    shutil.rmtree(other)
    other.symlink_to(one)
    with pytest.raises(Incomplete, match="holds another run"):
        fresh(tmp_path).flow.verdict({})
    other.unlink()
    shutil.copytree(one, other)
    with pytest.raises(Incomplete, match="holds another run"):
        fresh(tmp_path).flow.verdict({})


def test_a_record_is_read_once_and_what_is_judged_stays_what_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh(tmp_path).flow.verdict({})
    read: list[Path] = []
    load = records.load_result
    monkeypatch.setattr(records, "load_result", lambda path: (read.append(path), load(path))[1])
    bench = fresh(tmp_path)
    bench.flow.verdict({})
    assert len(read) == len(set(read)) == 10
    kept = bench.study.row(JUDGED)
    edit_rows(bench.study.plan(JUDGED).path / "metrics.jsonl", lambda rows: rows[:1])
    assert bench.study.row(JUDGED) == kept
