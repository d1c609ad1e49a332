"""What chooses a learning rate does not judge it: certified before any run, and told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
from test_flow import BASE, Bench, better, claim

from modernllm.claims.apart import Apart
from modernllm.claims.preflight.apart import check_apart
from modernllm.claims.study import Study
from modernllm.data.held_out import HeldOut
from modernllm.sweep.plan import Planned

SENTENCE = "7 windows choose learning rates, 8 judge, no token in both"


def measured_on(run: Planned, held_out: HeldOut, n_tokens: int = 256) -> Planned:
    trainer = run.config["trainer"] | {"held_out": held_out, "validation_tokens": n_tokens}
    return replace(run, config=run.config | {"trainer": trainer})


def test_a_claim_that_tunes_says_what_chose_and_what_judged(tmp_path: Path) -> None:
    """On screen, in the certificate, in the fairness record and in the verdict; and the runs are what was said."""
    bench = Bench(tmp_path, claim(), better)
    bench.flow.verdict({})
    assert SENTENCE in bench.told
    numbers = {"tuning": 7, "evaluation": 8, "shared": 0}
    both = {"rope": numbers, "learned": numbers}
    checks = json.loads((bench.flow.folder / "certificate.json").read_text())["main"]["checks"]
    (check,) = [check for check in checks if check["name"] == "held out"]
    assert (check["passed"], check["sentence"], check["details"]) == (True, SENTENCE, both)
    assert json.loads((bench.flow.folder / "fairness.json").read_text())["main"]["held_out"] == both
    assert bench.verdict_file["facts"]["fairness"]["held out"] == SENTENCE
    study = bench.study
    best = {("main", arm): 3e-3 for arm in ("rope", "learned")}
    hashes = [
        {json.loads((study.plan(key).path / "run.json").read_text())["validation"] for key in keys}
        for keys in (study.tuning_keys(), study.evaluation_keys(study.evaluation, best))
    ]
    assert [len(each) for each in hashes] == [1, 1]
    assert hashes[0] != hashes[1]


def test_windows_in_common_are_counted_and_refused(tmp_path: Path) -> None:
    """8 windows of 32 tokens and one target each: all of them where both lists are one."""
    study = Study(claim(base=BASE), [f"out={tmp_path}"])
    judged, tokens = study.planned("main", "rope"), np.arange(1000, dtype=np.uint16)
    one_list = Apart.of(tokens, measured_on(judged, "evaluation"), judged)
    assert one_list == Apart(tuning=8, evaluation=8, shared=8 * 33)
    # two windows of another evaluation are of this one too: its first and its last
    assert Apart.of(tokens, measured_on(judged, "evaluation", 64), judged).shared == 2 * 33
    check = check_apart({"rope": one_list, "learned": Apart(tuning=7, evaluation=8, shared=0)})
    assert not check.passed
    assert check.sentence == (
        "rope: 8 windows choose learning rates, 8 judge, 264 tokens in both; leave trainer.held_out to the claim: "
        "tuning for runs that choose, evaluation for those that are judged"
    )
    assert not check_apart({"rope": Apart(tuning=0, evaluation=8, shared=0)}).passed
