"""Claim files: what they must say, and how a wrong one is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from modernllm.claims.claim import load_claim, shipped
from modernllm.claims.ledger import Ledger
from modernllm.claims.paragraph import earlier
from modernllm.claims.suite import load_suite, suites

SAID: dict[str, Any] = {
    "claim": "RoPE beats learned positions",
    "source": "a test",
    "kind": "superiority",
    "tier": "cpu",
    "minutes": 1,
    "arms": {"rope": ["position=rope"], "learned": ["position=learned"]},
    "contrasts": {"rope against learned": {"variant": "rope", "reference": "learned"}},
    "lrs": [1e-3, 3e-3, 1e-2],
    "seeds": {"tuning": [10], "evaluation": [0, 1]},
    "margin": 0.02,
}


def write(folder: Path, **changed: Any) -> str:
    content = {key: value for key, value in (SAID | changed).items() if value is not None}
    (folder / "mine.yaml").write_text(yaml.safe_dump(content))
    return str(folder / "mine.yaml")


def test_shipped_claims_and_suites_can_be_read() -> None:
    assert {"prenorm_warmup", "prenorm_lr", "rmsnorm", "sqrt_dk", "sqrt_dk_exact"} <= set(shipped())
    for name in shipped():
        claim = load_claim(name)
        assert claim.source.count("20")  # a year
    for name in suites():
        suite = load_suite(name)
        assert {claim.name for claim in suite.load()} <= set(shipped())
        controls = [] if name == "toy" else ["control_no_residual", "control_learning_rate"]
        assert [claim.name for claim in suite.load_controls()] == controls
    assert set(load_suite("toy").claims) == set(shipped())


def test_a_claim_of_ones_own_is_a_file(tmp_path: Path) -> None:
    claim = load_claim(write(tmp_path))
    assert (claim.name, claim.kind, claim.margin) == ("mine", "superiority", 0.02)
    assert [cell for cell, of in claim.cells.items() if of.main] == ["main"]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"claim": None}, "claim: is missing"),
    ({"kind": "better"}, "kind: Input should be 'superiority'"),
    ({"margins": 0.1}, "margins: no such key; did you mean margin"),
    ({"margin": None}, "margin: is missing: the smallest effect of interest"),
    ({"margin": -0.1}, "margin: Input should be greater than or equal to 0.000001"),
    ({"arms": {"rope": []}}, "two arms are compared"),
    ({"lrs": [1e-3, 1e-2]}, "lrs: kind=superiority needs a grid of three learning rates"),
    ({"lrs": [], "lr": 1e-3}, "lrs: kind=superiority needs a grid of three learning rates"),
    ({"seeds": {"evaluation": [0, 1]}}, "seeds.tuning: is missing"),
    ({"seeds": {"tuning": [0], "evaluation": [0, 1]}}, "seeds: [0] are both for tuning and for evaluation"),
    ({"contrasts": {"x": {"variant": "rope", "reference": "larned"}}}, "no arm larned; did you mean learned?"),
    ({"contrasts": {"x": {"variant": "rope"}}}, "has either variant and reference, or needy and robust"),
    ({"kind": "interaction", "lrs": [], "lr": 1e-3}, "kind=interaction compares needy and robust"),
    ({"cells": {"one": {}}}, "mark the main one with main: true"),
    ({"cells": {"one": {"main": True, "lr": 1e-3}}}, "goes over the grid lrs in every cell"),
    ({"kind": "exact"}, "kind=exact: has probes, and no arms"),
    ({"arms": SAID["arms"] | {"idle": []}}, "arms: idle stands in no contrast"),
]


@pytest.mark.parametrize(("changed", "told"), REFUSED, ids=[told[:40] for _, told in REFUSED])
def test_a_wrong_claim_is_refused_with_its_key(changed: dict[str, Any], told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"mine\.yaml") as refused:
        load_claim(write(tmp_path, **changed))
    assert told in str(refused.value)


@pytest.mark.parametrize("text", ["[1, 2]", "a: [", "claim: x\nname: y\n"])
def test_what_is_no_claim_at_all_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text(text)
    with pytest.raises(ValueError, match=r"bad\.yaml"):
        load_claim(str(tmp_path / "bad.yaml"))


def test_an_unknown_name_brings_the_near_ones() -> None:
    with pytest.raises(ValueError, match="did you mean prenorm_warmup"):
        load_claim("prenorm_warmpu")
    with pytest.raises(ValueError, match="there are fast, full, toy"):
        load_suite("slow")


def test_the_hash_is_of_what_is_said(tmp_path: Path) -> None:
    """Neither order nor comments nor the file's name count; any value does."""
    first = load_claim(write(tmp_path))
    path = tmp_path / "other.yaml"
    path.write_text("# the same\n" + yaml.safe_dump(dict(reversed(SAID.items()))))
    assert load_claim(str(path)).hash == first.hash
    for changed in ({"margin": 0.021}, {"seeds": {"tuning": [10], "evaluation": [0, 2]}}, {"source": "else"}):
        assert load_claim(write(tmp_path, **changed)).hash != first.hash


def test_the_ledger_keeps_every_version_and_what_it_said(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "deep" / "ledger.jsonl")
    first = load_claim(write(tmp_path))
    ledger.freeze(first)
    ledger.freeze(first)
    assert [version["said"] for version in ledger.versions(first)] == [None]
    ledger.record(first, {"verdict": "refuted", "reason": "r", "line": "l", "void": None, "cells": []})
    second = load_claim(write(tmp_path, margin=0.5))
    ledger.freeze(second)
    versions = ledger.versions(second)
    assert [(v["version"], v["hash"], v["this"], v["said"]) for v in versions] == [
        (1, first.hash, False, "refuted"),
        (2, second.hash, True, None),
    ]
    assert earlier(versions) == [f"version 1 ({first.hash}) said refuted"]
