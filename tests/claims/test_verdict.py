"""From cells to one word, its exit code, its JSON and its paragraph."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import product
from typing import Any

import numpy as np
import pytest

from modernllm.claims.analysis import Cell, CellFindings, Finding
from modernllm.claims.judgement import Judgement, Word
from modernllm.claims.rules import Exact, Superiority
from modernllm.claims.tuning import Choice
from modernllm.claims.verdict import Verdict, conclude, joint_scope, strict

WAVE = np.array([0.01, -0.01, 0.005, -0.005])
SAMPLES: dict[Word, np.ndarray] = {"supported": WAVE - 0.5, "refuted": WAVE + 0.5, "inconclusive": 3 * WAVE}
INSIDE = Choice(3e-3, (1e-3, 3e-3, 1e-2), (2.4, 2.2, 2.6))
AT_EDGE = Choice(1e-2, (1e-3, 3e-3, 1e-2), (2.4, 2.2, 2.1))
WORDS: tuple[Word, ...] = ("supported", "refuted", "inconclusive")


def judged(word: Word) -> Judgement:
    judgement = Superiority(0.02).judge(SAMPLES[word], level=0.95)
    assert judgement.verdict == word
    return judgement


def cell(
    *words: Word,
    name: str = "main",
    main: bool = True,
    tuned: bool = True,
    choices: Mapping[str, Choice] | None = None,
    **scope: str,
) -> CellFindings:
    chosen = {"pre": INSIDE, "post": INSIDE} if choices is None else choices
    findings = tuple(Finding(f"part {i}", (0, 1, 2, 3), judged(word), choices=chosen) for i, word in enumerate(words))
    return CellFindings(Cell(name, name, main, {"dim": "64", "init": "fanin"} | scope, ()), tuned, findings)


def concluded(*cells: CellFindings, control: Judgement | None = None, **facts: Any) -> Verdict:
    controls = {"rig": control} if control else {}
    return conclude(claim="toy", statement="Pre beats Post", cells=cells, controls=controls, facts=facts)


@pytest.mark.parametrize(("word", "code"), [("supported", 0), ("refuted", 20), ("inconclusive", 21)])
def test_one_cell(word: Word, code: int) -> None:
    verdict = concluded(cell(word))
    assert (verdict.verdict, verdict.exit_code, verdict.reason) == (word, code, f"{word} in main")


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        (("supported", "supported"), "supported"),
        (("supported", "inconclusive"), "inconclusive"),
        (("supported", "refuted"), "refuted"),  # parts of one statement: it fails with one of them
        (("inconclusive", "refuted"), "refuted"),
        (("inconclusive", "inconclusive"), "inconclusive"),
    ],
)
def test_parts_of_a_cell_all_have_to_hold(parts: tuple[Word, ...], expected: str) -> None:
    assert concluded(cell(*parts)).verdict == concluded(cell(*parts[::-1])).verdict == expected


@pytest.mark.parametrize(
    ("main", "other", "expected", "code"),
    [
        ("supported", "supported", "supported", 0),
        ("supported", "inconclusive", "supported", 0),
        ("supported", "refuted", "conditional", 22),
        ("refuted", "supported", "conditional", 22),
        ("refuted", "inconclusive", "refuted", 20),
        ("refuted", "refuted", "refuted", 20),
        ("inconclusive", "supported", "inconclusive", 21),
        ("inconclusive", "refuted", "inconclusive", 21),
        ("inconclusive", "inconclusive", "inconclusive", 21),
    ],
)
def test_main_cells_decide_unless_cells_disagree(main: Word, other: Word, expected: str, code: int) -> None:
    verdict = concluded(cell(main), cell(other, name="other", main=False))
    assert (verdict.verdict, verdict.exit_code) == (expected, code)


@pytest.mark.parametrize("words", list(product(WORDS, repeat=3)))
def test_several_main_cells_have_to_agree(words: tuple[Word, Word, Word]) -> None:
    verdict = concluded(*(cell(word, name=f"c{i}") for i, word in enumerate(words)))
    if {"supported", "refuted"} <= set(words):
        assert verdict.verdict == "conditional"
    elif len(set(words)) == 1:
        assert verdict.verdict == words[0]
    else:
        assert verdict.verdict == "inconclusive"
        assert verdict.reason == "; ".join(f"c{i} {word}" for i, word in enumerate(words))


def test_underpowered_cells_make_nothing_conditional() -> None:
    others = [cell("inconclusive", name=f"c{i}", main=False) for i in range(5)]
    assert concluded(cell("inconclusive"), cell("supported", name="s", main=False), *others).verdict == "inconclusive"
    assert concluded(cell("supported"), *others).verdict == "supported"


def test_a_rate_at_the_edge_of_its_grid_caps() -> None:
    edge = {"pre": INSIDE, "post": AT_EDGE}
    for word in WORDS:
        verdict = concluded(cell(word, choices=edge))
        assert verdict.verdict == "inconclusive"
        assert verdict.reason == "inconclusive in main, main capped"
        assert verdict.cells[0].capped == ("the best learning rate of post, 0.01, is at the edge of its grid",)
    other = cell("refuted", name="other", main=False, choices=edge)
    assert concluded(cell("supported"), other).verdict == "supported"  # hence no condition either


def test_quality_at_rates_that_nobody_chose_caps_main_cells() -> None:
    verdict = concluded(cell("supported", choices={}))
    assert verdict.verdict == "inconclusive"
    assert verdict.cells[0].capped == ("learning rates were not chosen for each arm of part 0",)
    high = cell("refuted", name="lr 1e-2", main=False, choices={})  # a regime is allowed to fix the rate
    assert concluded(cell("supported"), high).verdict == "conditional"
    assert concluded(cell("supported", tuned=False, choices={})).verdict == "supported"


@pytest.mark.parametrize(
    ("control", "expected", "void"),
    [("supported", "supported", False), ("inconclusive", "inconclusive", True), ("refuted", "inconclusive", True)],
)
def test_a_rig_that_misses_its_positive_control_shows_nothing(control: Word, expected: str, void: bool) -> None:
    verdict = concluded(cell("supported"), cell("refuted", name="b", main=False), control=judged(control))
    assert verdict.verdict == ("inconclusive" if void else "conditional")
    verdict = concluded(cell("supported"), control=judged(control))
    assert verdict.verdict == expected
    assert (verdict.void is not None) == void
    assert ("void: the positive control was not seen" in verdict.line) == void
    assert verdict.exit_code == (21 if void else 0)


@pytest.mark.parametrize("missed", [[], ["one"], ["other"], ["one", "other"]])
def test_every_positive_control_has_to_be_seen(missed: list[str]) -> None:
    controls = {name: judged("inconclusive" if name in missed else "supported") for name in ("one", "other")}
    verdict = conclude(claim="toy", statement="s", cells=[cell("supported")], controls=controls, facts={})
    assert verdict.verdict == ("inconclusive" if missed else "supported")
    told = "; ".join(f"{name}, inconclusive: {controls[name].sentence}" for name in missed)
    assert verdict.void == (f"the positive control was not seen ({told})" if missed else None)
    kept = verdict.to_json()["controls"]
    assert {name: judgement["verdict"] for name, judgement in kept.items()} == {
        name: "inconclusive" if name in missed else "supported" for name in ("one", "other")
    }


def test_toy_suites_have_no_positive_control_and_say_so() -> None:
    verdict = concluded(cell("supported"))
    assert verdict.to_json()["controls"] == {}
    assert "No positive control was run." in verdict.paragraph


def test_no_cells_no_verdict() -> None:
    with pytest.raises(ValueError, match="no main cell"):
        concluded()
    with pytest.raises(ValueError, match="no main cell"):
        concluded(cell("supported", main=False))
    with pytest.raises(ValueError, match="cell main has no finding"):
        concluded(cell())


@pytest.mark.parametrize(
    ("other", "scope", "expected"),
    [
        ("supported", {"init": "gpt2"}, "agreed"),
        ("refuted", {"init": "gpt2"}, "disagreed: gpt2 refuted"),
        ("inconclusive", {"init": "gpt2"}, "disagreed: gpt2 inconclusive"),
        ("supported", {"init": "gpt2", "dim": "96"}, "not run"),  # differs in more than its init
        ("supported", {"init": "fanin", "dim": "96"}, "not run"),
    ],
)
def test_a_second_init(other: Word, scope: dict[str, str], expected: str) -> None:
    verdict = concluded(cell("supported"), cell(other, name="other", main=False, **scope))
    assert verdict.second_init == expected
    assert f"second init: {expected}]" in verdict.line


def test_no_line_without_its_scope() -> None:
    verdict = concluded(cell("supported"), cell("inconclusive", name="wide", main=False, dim="96"))
    assert verdict.line == ("supported: Pre beats Post [dim=64, init=fanin; second init: not run] (supported in main)")
    assert all("at dim=" in found.line for found in verdict.cells)
    assert joint_scope([{"a": "1", "b": "2"}, {"a": "3", "b": "2"}, {"a": "1"}]) == {"a": "1|3", "b": "2|-"}


def test_the_paragraph() -> None:
    outcomes = {"pre": {"failed": 0, "n": 4}, "post": {"failed": 2, "n": 4}}
    finding = Finding("loss", (0, 1, 2, 3), judged("supported"), {"pre": INSIDE, "post": INSIDE}, outcomes)
    found = CellFindings(Cell("main", "main", True, {"dim": "64"}, ()), True, (finding,))
    verdict = concluded(found, control=judged("supported"), tier="cpu", clipped="3 %")
    assert verdict.paragraph == (
        "supported: Pre beats Post [dim=64; second init: not run] (supported in main). "
        "main: supported: loss: n=4, Δ=-0.500 [-0.515, -0.485], MDE 0.019. "
        "Sign-flip p=0.125 (smallest reachable 0.125). Learning rates pre 0.003, post 0.003. "
        "Failed runs pre 0 of 4, post 2 of 4. Tier cpu. clipped: 3 %."
    )


def test_json_as_documented() -> None:
    verdict = concluded(
        cell("supported", "supported"),
        cell("inconclusive", name="other", main=False, init="gpt2"),
        control=judged("supported"),
        mismatch=np.float64(0.01),
        seconds=math.inf,
    )
    found = json.loads(verdict.to_text(), parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert found == verdict.to_json()
    assert set(found) == {
        "schema", "claim", "statement", "verdict", "exit_code", "reason", "scope", "second_init", "void", "controls",
        "contrasts", "cells", "facts", "line", "paragraph",
    }  # fmt: skip
    assert (found["schema"], found["verdict"], found["exit_code"]) == ("modernllm.verdict/1", "supported", 0)
    assert found["contrasts"] == 3
    assert found["facts"] == {"mismatch": 0.01, "seconds": None}
    assert found["scope"] == {"dim": "64", "init": "fanin"}
    main, other = found["cells"]
    assert set(main) == {"name", "main", "verdict", "scope", "capped", "findings"}
    assert (main["main"], other["main"], other["verdict"]) == (True, False, "inconclusive")
    finding = main["findings"][0]
    assert set(finding) == {
        "contrast", "seeds", "judgement", "p_holm", "choices", "outcomes", "mcnemar_p", "beside",
    }  # fmt: skip
    assert finding["choices"]["pre"] == {
        "lr": 3e-3, "interior": True, "grid": [1e-3, 3e-3, 1e-2], "losses": [2.4, 2.2, 2.6],
    }  # fmt: skip
    judgement = finding["judgement"]
    assert judgement["values"] == [-0.49, -0.51, -0.495, -0.505]
    assert judgement["sentence"] == judged("supported").sentence
    assert finding["p_holm"] == pytest.approx(3 * judgement["p"])
    assert other["findings"][0]["p_holm"] == pytest.approx(other["findings"][0]["judgement"]["p"])


def test_what_is_unknown_is_null_and_counts_as_one_among_the_p() -> None:
    alone = Finding("one seed", (0,), Superiority(0.02).judge(np.array([0.1]), level=0.95))
    check = Finding("slope", (0,), Exact(0.0, 1.0).judge(np.array([0.5])))
    known = Finding("loss", (0, 1, 2, 3), judged("supported"))
    found = CellFindings(Cell("main", "main", True, {}, ()), False, (alone, check, known))
    one, two, three = concluded(found).to_json()["cells"][0]["findings"]
    assert one["judgement"]["interval"] is one["judgement"]["mde"] is one["judgement"]["sd"] is None
    assert (one["p_holm"], two["p_holm"]) == (1.0, None)
    assert three["p_holm"] == pytest.approx(2 * three["judgement"]["p"])


def test_exact_claims() -> None:
    held, failed = (Finding("slope", (0,), Exact(0.0, 1.0).judge(np.array([x]))) for x in (0.5, 2.0))
    cells = {name: CellFindings(Cell(name, name, True, {}, ()), False, (part,)) for name, part in
             (("held", held), ("failed", failed))}  # fmt: skip
    assert concluded(cells["held"]).exit_code == 0
    assert concluded(cells["failed"]).exit_code == 20
    assert concluded(*cells.values()).exit_code == 22


def test_strict_refuses_what_json_does_not_know() -> None:
    assert strict({"a": (np.int64(1), np.bool_(True), float("nan"), None, "x")}) == {"a": [1, True, None, None, "x"]}
    with pytest.raises(TypeError, match="set is no JSON"):
        strict({"a": {1}})
