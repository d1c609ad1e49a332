"""A suite: its positive controls come first, and where one of them is not seen, nothing else is believed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from test_claim import SAID
from test_flow import BASE, better, fabricate, noise

from modernllm.claims import command
from modernllm.claims.command import Court
from modernllm.claims.flow import Flow
from modernllm.claims.suite import Suite
from modernllm.executor.local import LocalExecutor
from modernllm.sweep.plan import Plan

RATES = {"own": ["optimizer.lr=3e-3"], "high": ["optimizer.lr=0.3"]}
LAYERS = {"own": ["placement=pre"], "high": ["placement=no_residual"]}
"""Arms of two controls; the arm `high` is the one that must be seen to be worse."""
KNOWN = {
    "kind": "stability", "base": BASE, "margin": 0.1, "seeds": {"evaluation": [0, 1, 2]},
    "contrasts": {"own against high": {"variant": "own", "reference": "high"}},
}  # fmt: skip
NAMES = ("layers", "rates", "mine")


def suite_in(folder: Path) -> Suite:
    """Two controls and a claim of one's own, as files."""
    said = {
        "layers": SAID | KNOWN | {"arms": LAYERS},
        "rates": SAID | KNOWN | {"arms": RATES, "lrs": []},
        "mine": SAID | {"base": BASE, "seeds": {"tuning": [10], "evaluation": [0, 1, 2, 3]}},
    }
    for name, content in said.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(content))
    *controls, mine = (str(folder / f"{name}.yaml") for name in NAMES)
    return Suite(name="small", controls=controls, claims=[mine])


@pytest.mark.parametrize("missed", [[], ["layers"], ["rates"], ["layers", "rates"]], ids=str)
def test_where_a_control_is_not_seen_no_verdict_counts(
    missed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whichever it is: a rig that misses a known effect shows nothing."""
    small, heard = suite_in(tmp_path), []

    def fabricated(self: Court, plan: Plan) -> None:
        for run in plan.todo:
            claim, arm = run.asked.origin["claim"], run.asked.origin["arm"]
            heard.append(claim)
            worse = 1.0 if arm == "high" and claim not in missed else 0.0
            known = 2.0 + worse + noise(arm, run.config["seed"])
            fabricate(run, better(arm, run.config["optimizer"]["lr"], run.config["seed"]) if claim == "mine" else known)

    monkeypatch.setattr(command, "load_suite", lambda name: small)
    monkeypatch.setattr(Court, "run", fabricated)
    monkeypatch.setattr(Flow, "certify", dict)
    monkeypatch.setattr(Flow, "equalise", dict)
    court = Court(tmp_path, LocalExecutor(workers=1, per_gpu=1), [], "local", (), False)
    assert court.suite("small", plan=False) == 0  # it ran
    assert list(dict.fromkeys(heard)) == list(NAMES)
    found: dict[str, Any] = {
        name: json.loads((tmp_path / "verdicts" / f"claim-{name}" / "verdict.json").read_text()) for name in NAMES
    }
    for name in ("layers", "rates"):
        assert (found[name]["verdict"] == "supported") == (name not in missed)
        assert found[name]["void"] is None  # no control of a control
    mine = found["mine"]
    assert {name: each["verdict"] == "supported" for name, each in mine["controls"].items()} == {
        name: name not in missed for name in ("layers", "rates")
    }
    assert (mine["verdict"], mine["exit_code"]) == (("inconclusive", 21) if missed else ("supported", 0))
    assert bool(mine["void"]) == bool(missed)
    assert all(name in mine["void"] for name in missed)
    assert ("void" in capsys.readouterr().out) == bool(missed)


def test_a_plan_has_the_controls_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = suite_in(tmp_path)
    monkeypatch.setattr(command, "load_suite", lambda name: small)
    planned: list[str] = []
    monkeypatch.setattr(Court, "plan", lambda self, claim: planned.append(claim.name))
    Court(tmp_path, LocalExecutor(workers=1, per_gpu=1), [], "local", (), False).suite("small", plan=True)
    assert planned == list(NAMES)
