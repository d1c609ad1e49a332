"""`scripts/check_claim.py` as a person meets it, with real runs at toy size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from test_claim import write
from test_flow import BASE

from modernllm.claims.claim import shipped
from modernllm.claims.command import check_claim
from modernllm.claims.exact import score_variance_slope, softmax_gradient_ratio, softmax_gradient_spread
from modernllm.scripting import main


def test_a_plan_trains_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, base=BASE, seeds={"tuning": [10], "evaluation": [0, 1, 2]})
    assert check_claim(claim=path, plan=True, out=str(tmp_path / "runs")) == 0
    said = capsys.readouterr().out
    assert "12 runs: 12 to run" in said  # 2 arms x (3 rates x 1 tuning seed + 3 evaluation seeds)
    assert "at a time, from steps measured here" in said
    assert "3 seeds detect " in said
    assert "arms: learned, rope; cells: main" in said
    assert "learning rates 0.001, 0.003, 0.01 at seeds 10; the best of each arm at seeds 0, 1, 2; margin 0.02" in said
    assert not (tmp_path / "runs").exists()


def test_an_exact_claim_is_judged_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    probe = {"measure": "score_variance_slope", "arguments": {"head_dims": [8, 32, 128], "samples": 20000}}
    said = {"kind": "exact", "arms": None, "contrasts": None, "lrs": None, "seeds": None, "margin": None}
    for low, word, code in ((0.95, "supported", 0), (1.2, "refuted", 20)):
        path = write(tmp_path, **said, probes={"slope": probe | {"low": low, "high": low + 0.1}})
        assert check_claim(claim=path, out=str(tmp_path / "runs")) == code
        verdict = json.loads((tmp_path / "runs" / "verdicts" / "claim-mine" / "verdict.json").read_text())
        assert (verdict["verdict"], verdict["exit_code"]) == (word, code)
    said = capsys.readouterr().out
    assert "said supported" in said  # the first version, told with the second
    assert "refuted: " in said
    assert "not within 1.2 to 1.3" in said


def test_scores_have_the_variance_of_their_width() -> None:
    assert score_variance_slope([8, 32, 128], 20000)[0] == pytest.approx(1, abs=0.03)
    assert score_variance_slope([8, 32, 128], 20000, "sqrt")[0] == pytest.approx(0, abs=0.03)
    assert score_variance_slope([8, 32, 128], 20000, "width")[0] == pytest.approx(-1, abs=0.03)


def test_wide_heads_saturate_the_softmax_unless_scaled() -> None:
    assert softmax_gradient_ratio([8, 512], 64, 500, "none")[0] > 3
    assert softmax_gradient_spread([8, 64, 512], 64, 500, "sqrt")[0] < 1.03
    assert softmax_gradient_spread([8, 64, 512], 64, 500, "none")[0] > 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "claim=... or suite=... is missing; claims: "),
        (["claim=prenorm_warmpu"], "did you mean prenorm_warmup"),
        (["suite=slow"], "no such suite"),
        (["claim=rmsnorm", "look=3"], "no such key; did you mean looks"),
        (["claim=rmsnorm", "suite=fast"], "a suite has its own claims; beside claim=... only suite=toy"),
        (["claim=nix.yaml"], "claim=nix.yaml: no such file; shipped are "),
        (["claim=my claim, 2.yaml"], "the name of the file names folders, and has ' ' ',' in it"),
    ],
)
def test_a_wrong_command_is_one_error(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(check_claim, words) in (1, 2)
    assert told in capsys.readouterr().err


def test_arms_that_are_one_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A dead switch: nothing reads the norm where there is none; nothing is trained."""
    dead = {"rope": ["norm=rmsnorm"], "learned": ["norm=layernorm"]}
    path = write(tmp_path, base=[*BASE, "placement=none"], arms=dead)
    assert main(check_claim, [f"claim={path}", f"out={tmp_path / 'runs'}"]) == 1
    assert "REFUSED" in capsys.readouterr().err
    assert not (tmp_path / "runs" / "claim-mine").exists()


@pytest.mark.slow
def test_every_shipped_claim_is_heard_at_toy_size(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check_claim(suite="toy", out=str(tmp_path)) == 0
    assert "the machinery was exercised" in capsys.readouterr().out
    for name in shipped():
        verdict = json.loads((tmp_path / "verdicts" / f"toy-{name}" / "verdict.json").read_text())
        assert verdict["facts"]["toy"] is True
        assert verdict["exit_code"] in (0, 20, 21, 22)
