"""A study as a W&B workspace: what its JSON says, held against what the mirror really writes."""

from __future__ import annotations

import json
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fabricated import fabricate
from offline_runs import nobody_at_home
from wandb_server import KEY, serving

from modernllm.logger import server as asked
from modernllm.report.workspace.subject import Subject, subject
from modernllm.scripting import main

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # wandb-workspaces is written for pydantic 1
    from modernllm.report.workspace.workspace import as_json, workspace

sys.path.append(str(Path(__file__).parents[2] / "scripts"))
import dashboard as script
from dashboard import dashboard

SECTIONS = ["Verdict", "Loss", "Stability", "Depth profiles", "Events", "Cost"]


@pytest.fixture(autouse=True)
def _no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody_at_home(tmp_path, monkeypatch)


def mirrored(study: Path, project: str = "p", **of: Any) -> Path:
    """A fabricated run, as if W&B had been told of it."""
    folder = fabricate(study, **of, changed={"logger.project": project, "logger.entity": "us"})
    (folder / "wandb").mkdir()
    (folder / "wandb" / "id").write_text(f"{folder.name}-abc\n")
    return folder


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Two placements, two rates, two seeds; one of them broke, and one was not told to W&B."""
    folder = tmp_path / "runs" / "s"
    for placement, loss in (("pre", 2.2), ("post", 2.4)):
        for lr in (1e-3, 3e-3):
            for seed in range(2):
                mirrored(folder, placement=placement, lr=lr, seed=seed, loss=loss, layers=3)
    mirrored(folder, placement="post", lr=1e-2, seed=0, loss=2.4, outcome="nonfinite", nonfinite_at=20)
    fabricate(folder, placement="pre", lr=1e-2, seed=0, loss=2.2)
    return folder


def view(about: Subject) -> dict[str, Any]:
    return json.loads(as_json(workspace(about)))


def panels(made: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """By section."""
    return {section["name"]: section["panels"] for section in made["spec"]["section"]["panelBankConfig"]["sections"]}


def of_type(found: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [panel["config"] for panel in found if panel["viewType"] == kind]


def test_sections_panels_and_groups(study: Path) -> None:
    found = view(subject(str(study), root=Path()))
    assert (found["entity"], found["project"], found["displayName"]) == ("us", "p", "s")
    by_section = panels(found)
    assert list(by_section) == SECTIONS
    assert all(by_section.values())

    (runs,) = found["spec"]["section"]["runSets"]
    assert runs["grouping"] == [
        {"section": "config", "name": "choices.value.placement"},
        {"section": "config", "name": "optimizer.value.lr"},
    ]
    assert runs["filters"]["filters"] == [
        {"key": {"section": "run", "name": "group"}, "op": "=", "value": "default", "disabled": False}
    ]
    assert runs["runFeed"]["columnOrder"][:6] == [
        "run:displayName", "config:choices.value.placement", "config:optimizer.value.lr", "config:seed.value",
        "summary:outcome", "summary:val_loss",
    ]  # fmt: skip

    curves = [curve for panels in by_section.values() for curve in of_type(panels, "Run History Line Plot")]
    assert {(curve["xAxis"], curve["groupAgg"], curve["groupArea"]) for curve in curves} == {
        ("tokens", "mean", "minmax")
    }
    assert [curve["metrics"] for curve in of_type(by_section["Loss"], "Run History Line Plot")] == [
        ["val_loss"], ["loss"], ["val_bits_per_byte"],
    ]  # fmt: skip
    (profile,) = [bar for bar in of_type(by_section["Depth profiles"], "Bar Chart") if "gradient" in bar["chartTitle"]]
    assert profile["metrics"] == [f"grad_norm/layer.{layer:02}" for layer in range(3)]
    (grid,) = of_type(by_section["Verdict"], "Parallel Coordinates Plot")
    assert [(column["accessor"], column.get("log")) for column in grid["columns"]] == [
        ("config:choices.value.placement", None), ("config:optimizer.value.lr", True), ("summary:val_loss", None),
    ]  # fmt: skip
    axes = [section["localPanelSettings"]["xAxis"] for section in
            found["spec"]["section"]["panelBankConfig"]["sections"]]  # fmt: skip
    assert {*axes, found["spec"]["section"]["settings"]["xAxis"]} == {"tokens"}


def test_the_verdict_and_the_events_are_in_words(study: Path) -> None:
    by_section = panels(view(subject(str(study), root=Path())))
    (verdict,) = of_type(by_section["Verdict"], "Markdown Panel")
    assert verdict["value"].startswith("**pre and post cannot be told apart with 2 seeds**")
    (events,) = of_type(by_section["Events"], "Markdown Panel")
    assert "| post | 4 ok, 1 nonfinite, 1 missing |" in events["value"]
    assert "non-finite at step 20: loss nan; first non-finite: forward of blocks.2" in events["value"]


def test_seeds_alone_are_one_group_and_no_grid(tmp_path: Path) -> None:
    for seed in range(2):
        mirrored(tmp_path / "s", seed=seed, loss=2.0)
    found = view(subject(str(tmp_path / "s"), root=Path()))
    assert found["spec"]["section"]["runSets"][0]["grouping"] == [{"section": "run", "name": "group"}]
    by_section = panels(found)
    assert not of_type(by_section["Verdict"], "Parallel Coordinates Plot")
    assert by_section["Depth profiles"] == []  # without telemetry


def test_of_many_series_the_first_middle_and_last_layer_are_shown(tmp_path: Path) -> None:
    mirrored(tmp_path / "s", loss=2.0, layers=12)
    curves = of_type(panels(view(subject(str(tmp_path / "s"), root=Path())))["Depth profiles"], "Run History Line Plot")
    (entropy,) = [curve["metrics"] for curve in curves if curve["chartTitle"] == "attention entropy"]
    assert entropy == [
        f"attention_entropy/layer.{layer:02}.head.{head:02}" for layer in (0, 6, 11) for head in range(4)
    ]


def test_a_claim_shows_its_verdict_and_groups_by_cell_and_arm(tmp_path: Path) -> None:
    studied, folder = tmp_path / "claim-norms", tmp_path / "verdicts" / "claim-norms"
    for placement in ("pre", "post"):
        for cell in ("main", "deep"):
            for seed in range(2):
                origin = {"claim": "norms", "hash": "h", "cell": cell, "arm": f"arm {placement}"}
                mirrored(studied, placement=placement, seed=seed, loss=2.0, origin=origin)
    folder.mkdir(parents=True)
    judged = {"kind": "superiority", "verdict": "supported", "mean": -0.2, "interval": [-0.3, -0.1], "level": 0.95,
              "n": 2, "mde": 0.1, "seeds_needed": None, "flags": ["a | b"]}  # fmt: skip
    cells = [
        {"name": name, "main": name == "main", "verdict": "supported", "scope": {}, "capped": [],
         "findings": [{"contrast": "pre against post", "judgement": judged, "choices": {}, "seeds": [0, 1]}]}
        for name in ("main", "deep")
    ]  # fmt: skip
    verdict = {"verdict": "supported", "statement": "Pre beats post", "reason": "supported in main", "void": None,
               "scope": {"width": "64"}, "second_init": "not run", "cells": cells}  # fmt: skip
    (folder / "verdict.json").write_text(json.dumps(verdict), encoding="utf-8")

    found = view(subject("verdicts/claim-norms", root=tmp_path))
    assert found["displayName"] == "Pre beats post"
    assert [key["name"] for key in found["spec"]["section"]["runSets"][0]["grouping"]] == [
        "origin.value.cell", "origin.value.arm",
    ]  # fmt: skip
    (told,) = of_type(panels(found)["Verdict"], "Markdown Panel")
    assert told["value"].startswith("**supported: Pre beats post**\n\nsupported in main\n\nScope: width=64;")
    assert (
        "| main | pre against post | supported | -0.2 | -0.3 to -0.1 at 95 % | 2 | 0.1 | – | a \\| b |" in told["value"]
    )


def test_names_that_the_library_would_garble(study: Path) -> None:
    about = subject(str(study), root=Path())
    odd = view(replace(about, group="lr=3", name="Pre = post, at lr < 3e-3 \N{ROCKET}"))
    assert odd["displayName"] == "Pre post, at lr 3e-3"
    assert view(replace(about, name="\N{ROCKET}"))["displayName"] == "runs"
    assert shown(odd) == shown(view(replace(about, group="a\rb"))) == {run.name + "-abc" for run in about.runs}
    assert shown(view(replace(about, group="\N{ROCKET} (a, b) or c!"))) == "\N{ROCKET} (a, b) or c!"


def shown(made: dict[str, Any]) -> str | set[str]:
    """The group whose runs are in the view, or the names of those that are."""
    (runs,) = made["spec"]["section"]["runSets"][0]["filters"]["filters"]
    assert (runs["key"]["name"], runs["op"]) in {("group", "="), ("name", "IN")}
    return runs["value"] if runs["op"] == "=" else set(runs["value"])


def test_a_single_run_is_shown_without_its_siblings(study: Path) -> None:
    run = subject(str(study), root=Path()).runs[0]
    assert shown(view(subject(str(run), root=Path()))) == {f"{run.name}-abc"}


def test_what_leads_nowhere_says_where_to_look(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def told(*words: str) -> str:
        assert main(dashboard, [*words, "dry_run=true"]) == 1
        return capsys.readouterr().err

    root = study.parent
    assert "default: no such folder, and no study of that name in root=" in told("default", f"root={root}")
    assert f"{root}: no runs in it; it is a folder of studies: s" in told(str(root))
    broken = mirrored(tmp_path / "broken", loss=2.0)
    (broken / "config.yaml").write_text("null")
    assert "none that can be read" in (error := told(str(broken.parent)))
    assert broken.name in error
    for word, meant in (("out=x.json", "only dry_run=true writes"), ("url=x dry_run=true", "saves nothing there")):
        assert main(dashboard, [str(study), *word.split()]) == 2
        assert meant in capsys.readouterr().err


def test_damaged_telemetry_ends_what_is_read(study: Path) -> None:
    for run in study.iterdir():
        (run / "telemetry.jsonl").write_bytes(b'{"step": 1, "tokens": 9, "sharpness": {"hessian": 2.0}}\n[1, 2]\n\xff')
    by_section = panels(view(subject(str(study), root=Path())))
    assert [bar["chartTitle"] for bar in of_type(by_section["Stability"], "Run History Line Plot")][-1] == "sharpness"


def test_what_is_not_in_wandb_is_said(study: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "view.json"
    assert main(dashboard, [str(study), "dry_run=true", f"out={target}"]) == 0
    assert "! 1 of its runs have no mirror" in capsys.readouterr().err
    assert list(panels(json.loads(target.read_text()))) == SECTIONS
    fabricate(tmp_path / "local", loss=2.0)
    assert main(dashboard, [str(tmp_path / "local"), "dry_run=true"]) == 1
    assert "none of its 1 runs is in W&B: they were run without logger=wandb" in capsys.readouterr().err
    mirrored(study, loss=2.0, seed=9, project="q")
    assert main(dashboard, [str(study), "dry_run=true"]) == 1
    assert "its runs are in several places in W&B (project p, q): project=... chooses one" in capsys.readouterr().err
    assert main(dashboard, [str(study), "dry_run=true", "project=q"]) == 0
    assert json.loads(capsys.readouterr().out)["project"] == "q"
    assert main(dashboard, ["nowhere", "dry_run=true"]) == 1
    assert "nowhere" in capsys.readouterr().err


def test_without_a_network_it_says_so(
    study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(asked, "server", lambda: "http://127.0.0.1:9")
    assert main(dashboard, [str(study)]) == 1
    assert "no answer from W&B at http://127.0.0.1:9" in capsys.readouterr().err


@pytest.mark.slow
def test_it_is_saved_and_replaced(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the real client, in a process of its own, since it reads its settings once; the server is a stand-in."""

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run([sys.executable, script.__file__, *words], capture_output=True, text=True, timeout=300)

    with serving() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        refused = call(str(study))
        assert refused.returncode == 1
        assert f"not logged in to W&B at {server.url}: `wandb login` does that" in refused.stderr
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        saved = call(str(study))
        url = saved.stdout.splitlines()[-1]
        assert (saved.returncode, url.partition("?")[0]) == (0, f"{server.url}/us/p")
        (name,) = server.views
        assert [section["name"] for section in spec(server.views[name])["panelBankConfig"]["sections"]] == SECTIONS
        before = spec(server.views[name])
        mirrored(study, loss=2.0, seed=9, lr=2e-3)
        again = call(str(study), f"url={url}")
        assert (again.returncode, again.stdout.splitlines()[-1]) == (0, url)
        assert list(server.views) == [name]
        assert server.views[name]["id"] == f"id of {name}"
        assert spec(server.views[name])["panelBankConfig"] != before["panelBankConfig"]
        wrong = call(str(study), f"url={url}", "entity=them")
        assert wrong.returncode == 1
        assert "is a view of us/p, the runs are in them/p" in wrong.stderr


def spec(view: dict[str, Any]) -> dict[str, Any]:
    return json.loads(view["spec"])["section"]
