"""Which runs there are and what can be freed: scripts/status.py and scripts/prune.py, and what they make of damage."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from running import run

from modernllm.report.table import Row
from modernllm.runs.directory import RunDirectory
from modernllm.runs.prune import free, prunable
from modernllm.runs.record import Run, load_run
from modernllm.runs.studies import damage, others_in, runs_in, studies_in
from modernllm.scripting import main

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
from prune import prune
from status import status


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Run:
    words = ("trainer.steps=6", "trainer.checkpoint_every=2", "trainer.keep=3", "trainer.eval_every=2")
    return run(*words, f"out={tmp_path_factory.mktemp('made')}")[1]


@pytest.fixture
def study(made: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`runs/s` with one run of each kind, by name."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "runs" / "s"
    names = ("whole", "interrupted", "failed", "at_work", "no_identity", "half_status", "half_identity", "foreign",
             "no_steps", "odd_identity")  # fmt: skip
    for name in names:
        shutil.copytree(made.path, folder / name)
        identity = json.loads((made.path / "run.json").read_text()) | {"run_id": name}
        (folder / name / "run.json").write_text(json.dumps(identity))
    mark(folder / "interrupted", status="interrupted")
    mark(folder / "failed", status="failed", reason="RuntimeError: no luck\nand more")
    mark(folder / "at_work", status="running")
    (folder / "no_identity" / "run.json").unlink()
    (folder / "half_status" / "status.json").write_text('{"status": "fini')
    (folder / "half_identity" / "run.json").write_text('{"run_id": "half')
    shutil.copy(made.path / "run.json", folder / "foreign")
    (folder / "no_steps" / "metrics.jsonl").write_text("{]\n")
    (folder / "odd_identity" / "run.json").write_text("{}")
    (folder / "notes").mkdir()
    (folder / "todo.txt").write_text("x")
    return folder


def mark(path: Path, **changed: str) -> None:
    content = json.loads((path / "status.json").read_text()) | changed
    (path / "status.json").write_text(json.dumps(content))


BROKEN = {
    "no_identity": "it has no run.json",
    "half_status": "its status.json is damaged",
    "half_identity": "run.json is damaged: ",
    "foreign": "it is the record of ",
    "no_steps": "it is finished and has no steps",
    "odd_identity": "run.json is damaged: it has no run_id, no choices",
}


def test_what_cannot_be_used_is_counted_and_named(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """F-104: nothing is left out in silence, and nothing crashes."""
    held = RunDirectory(study / "at_work")
    held.acquire()
    entries = runs_in(study)
    assert len(entries) == 10
    found = {entry.path.name: damage(entry) for entry in entries}
    assert {name for name, why in found.items() if why} == set(BROKEN)
    for name, why in BROKEN.items():
        assert why in found[name]
    assert [path.name for path in others_in(study)] == ["notes", "todo.txt"]
    assert main(status, ["s"]) == 0
    out = capsys.readouterr().out
    assert "10 runs: 6 undecided, 2 interrupted, 1 running, 1 failed" in out
    assert "! 6 cannot be used as they are:" in out
    assert "! 2 no run: notes, todo.txt" in out
    rows = {line.split("│")[0].strip(): [cell.strip() for cell in line.split("│")] for line in out.splitlines()
            if "│" in line}  # fmt: skip
    assert len(rows) == 10
    assert rows["failed"][1:] == ["failed", rows["whole"][2], "RuntimeError: no luck"]
    assert rows["at_work"][3].startswith("step 6/6  loss ")
    held.release()
    assert main(status, [str(study)]) == 0
    assert "6 undecided, 3 interrupted, 1 failed" in capsys.readouterr().out


def test_a_table_names_what_it_cannot_read(study: Path) -> None:
    """F-104."""
    for name in ("half_identity", "no_steps", "odd_identity"):
        row = Row.read(study / name, {}, "", "")
        assert (row.word, row.run) == ("damaged", None)
        assert str(study / name) in row.reason
    assert Row.read(study / "notes", {}, "", "").word == "not run"
    assert Row.read(study / "notes", {}, "failed", "no room") == Row({}, None, "failed", "no room")
    failed = Row.read(study / "failed", {}, "", "")
    assert (failed.word, failed.reason.splitlines()[0]) == ("failed", "RuntimeError: no luck")
    assert Row.read(study / "whole", {}, "failed", "killed").word == "failed"
    assert Row.read(study / "whole", {}, "", "").word == "undecided"


def test_studies_are_told_with_how_they_stand(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (study.parent / "empty").mkdir()
    (study.parent / "a_file").write_text("")
    (study.parent / "junk" / "x").mkdir(parents=True)
    assert [path.name for path in studies_in(study.parent)] == ["s"]
    assert main(status, []) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert [cell.strip() for cell in line.split("│")][:3] == ["s", "10", "6 undecided, 3 interrupted, 1 failed"]
    assert line.strip().endswith(" ago")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nothing"], 1, "error: nothing: no such folder; a study is a folder of runs, as runs/default"),
        (["out=nowhere"], 1, "error: nowhere: no study in it; out=... names another folder"),
        (["s", "t"], 2, "error: t: no such key"),
        (["s", "outt=x"], 2, "error: outt=x: no such key; did you mean out?"),
    ],
)
def test_status_says_what_it_does_not_find(
    words: list[str], code: int, said: str, study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(status, words) == code
    assert capsys.readouterr().err.startswith(said)


# --- freeing


def checkpoints(run: Path) -> list[str]:
    return sorted(path.name for path in (run / "checkpoints").iterdir())


WEIGHTS = ["best.safetensors", "final.safetensors"]
ALL = [*WEIGHTS, "step-00000002.pt", "step-00000004.pt", "step-00000006.pt"]


@pytest.mark.parametrize(
    ("keep", "left"),
    [("newest", [*WEIGHTS, "step-00000006.pt"]), ("weights", WEIGHTS), ("nothing", [])],
)
def test_prune_frees_by_rule_and_no_record(
    keep: str, left: list[str], study: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    held = RunDirectory(study / "at_work")
    held.acquire()
    before = {path: path.read_bytes() for path in study.rglob("*") if path.is_file() and path.suffix in (
        ".json", ".jsonl", ".yaml", ".txt")}  # fmt: skip
    assert main(prune, [str(study), f"keep={keep}"]) == 0
    assert "to free with really=true" in capsys.readouterr().out
    assert checkpoints(study / "whole") == ALL
    assert main(prune, [str(study), f"keep={keep}", "really=true"]) == 0
    assert checkpoints(study / "whole") == left
    for name in ("interrupted", "failed", "at_work", "half_status"):
        assert checkpoints(study / name) == ALL
    held.release()
    assert {path: path.read_bytes() for path in before} == before
    assert load_run(study / "whole").val_loss > 0
    capsys.readouterr()
    assert main(prune, [str(study), f"keep={keep}", "really=true"]) == 0
    assert capsys.readouterr().out == "      0.0 MB in 0 runs freed\n"


def test_prune_leaves_alone_what_was_taken_meanwhile(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = [each for each in prunable(runs_in(study), "nothing") if each.entry.path.name == "whole"]
    held = RunDirectory(study / "whole")
    held.acquire()
    with pytest.raises(RuntimeError, match="is being run by another process"):
        free(found[0])
    assert main(prune, [str(study), "keep=nothing", "really=true"]) == 0
    assert "! left alone: " in capsys.readouterr().out
    assert checkpoints(study / "whole") == ALL
    held.release()


def test_prune_takes_only_its_rules(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(prune, [str(study), "keep=none"]) == 2
    assert capsys.readouterr().err.startswith("error: keep=none: should be ")
    assert main(prune, []) == 2
    assert main(prune, ["absent"]) == 1
