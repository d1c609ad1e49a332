"""What sweeps meant to run, on disk: runs that are not there, or no longer, are known by it."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from running import command, small

from modernllm.executor.local import LocalExecutor
from modernllm.runs.plans import Intended, intents_in, write_intent
from modernllm.runs.studies import planned_in
from modernllm.scripting import main

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
from status import status

CONFIG: dict[str, Any] = {
    name: {} for name in ("model", "init", "optimizer", "schedule", "trainer", "data", "tokenizer")
}
IDENTITY: dict[str, Any] = {
    "choices": {"size": "nano"}, "overrides": {}, "dead_switches": {}, "origin": {}, "corpus": "c", "tokenizer": "t",
    "validation": "v",
}  # fmt: skip


def intended(*names: str) -> list[Intended]:
    return [Intended(name, {**CONFIG, "seed": 0}, {**IDENTITY, "run_id": name}) for name in names]


def planned_names(study: Path) -> list[str]:
    return [entry.path.name for entry in planned_in(study)]


def test_several_sweeps_leave_their_plans_in_one_study(tmp_path: Path) -> None:
    study = tmp_path / "s"
    study.mkdir()
    first = write_intent(study, ["seed=0,1"], intended("a", "b"))
    write_intent(study, ["seed=1,2"], intended("b", "c"))
    again = write_intent(study, ["seed=range(0,2)"], intended("b", "a"))  # the same runs, in other words
    assert again.path == first.path
    found, damaged = intents_in(study)
    assert not damaged
    assert {intent.command: [run.run_id for run in intent.runs] for intent in found} == {
        ("seed=range(0,2)",): ["b", "a"],
        ("seed=1,2",): ["b", "c"],
    }
    assert sorted(planned_names(study)) == ["a", "b", "c"]
    assert list(study.iterdir()) == []  # a study holds runs and nothing else
    (study / "b").mkdir()
    assert sorted(planned_names(study)) == ["a", "c"]


def test_the_same_sweep_may_be_started_many_times_at_once(tmp_path: Path) -> None:
    runs = intended(*(f"run-{number}" for number in range(50)))
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: write_intent(tmp_path / "s", ["x"], runs), range(40)))
    ((intent,), damaged) = intents_in(tmp_path / "s")
    assert list(intent.runs) == runs
    assert not damaged
    assert sorted(path.name for path in intent.path.parent.iterdir()) == [".lock", intent.path.name]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "{}", '{"command": [], "runs": [{}]}', '{"command": [], "runs": 3}', '{"command": 1, "runs": []}',
     json.dumps({"command": [], "runs": [{"run_id": "a", "config": CONFIG, "identity": {"run_id": "a"}}]})],
)  # fmt: skip
def test_a_damaged_plan_is_named_and_the_others_stand(
    content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = write_intent(tmp_path / "s", ["x"], intended("a"))
    (tmp_path / "s").mkdir()
    broken = whole.path.with_name("broken.json")
    broken.write_text(content, encoding="utf-8")
    (found,), (why,) = intents_in(tmp_path / "s")
    assert found == whole
    assert why.startswith(f"{broken} is damaged: ")
    assert main(status, [str(tmp_path / "s")]) == 0
    out = capsys.readouterr().out
    assert f"! {broken} is damaged" in out
    assert "1 run: 1 planned" in out


def test_a_sweep_leaves_its_plan_and_a_lost_run_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before its first run, so that a sweep that is killed at once has left it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(LocalExecutor, "__call__", lambda *_: signal.SIGTERM)
    words = ("-m", *small("trainer.steps=3", "placement=pre,post", "seed=0,1", "out=runs", "study=s"))
    assert command(monkeypatch, *words, "plan=true") == 0
    assert not (tmp_path / "runs").exists()
    assert command(monkeypatch, *words) == 128 + signal.SIGTERM
    study = tmp_path / "runs" / "s"
    assert len(planned_names(study)) == 4
    assert not study.exists()
    (intent,), _ = intents_in(study)
    assert "seed=0,1" in intent.command
    assert {run.config["seed"] for run in intent.runs} == {0, 1}
    assert {run.identity["choices"]["placement"] for run in intent.runs} == {"pre", "post"}
    assert all(len(run.identity["validation"]) > 8 for run in intent.runs)
    capsys.readouterr()
    shutil.rmtree(intent.path.parent)
    assert planned_names(study) == []
