"""Every sentence that the referee can say, made from planted data and read for what must not stand in it."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
import rich.console
from test_verdict import AT_EDGE, INSIDE, cell, concluded

from modernllm.claims.analysis import Cell, CellFindings, Finding
from modernllm.claims.judgement import Judgement
from modernllm.claims.layout import show
from modernllm.claims.paragraph import in_sentences
from modernllm.claims.rules import (
    Cost,
    Equivalence,
    Exact,
    Interaction,
    NonInferiority,
    Stability,
    Superiority,
)
from modernllm.claims.verdict import Verdict, conclude

RULES = [Superiority(0.02), Equivalence(0.02), NonInferiority(0.02), Stability(covers_critical=True), Stability(),
         Interaction(covers_critical=True), Interaction()]  # fmt: skip
WAVE = np.array([1.0, -1.0, 0.5, -0.5, 0.2, -0.2])
FACTS: dict[str, Any] = {
    "tier": "cpu", "toy": False, "source": "a test, 2026", "hash": "ab12", "margin": 0.02,
    "held-out tokens": 16384,
    "versions": [{"version": 1, "hash": "cd34", "this": False, "said": "refuted"},
                 {"version": 2, "hash": "ab12", "this": True, "said": None}],
    "looks": [3, 6], "unlike": ["trainer.steps"], "said before": ["refuted"],
    "fairness": {"matching": "none", "mismatch": {"post": {"parameters": 0.0025, "tokens": 0.0}}},
    "preflight": {"main": "1c78"},
    "mitigations": {"pre": {"clipped share": 0.12, "skipped steps": 0, "runs": 6},
                    "post": {"clipped share": 0.5, "skipped steps": 2, "runs": 6}},
    "runs": {"number": 12, "not made for this version": 3, "code": {"887a2f4": 12}},
}  # fmt: skip


def judgements() -> Iterator[Judgement]:
    """All kinds: one seed and more, no spread, near and far from 0, narrow and wide, with failures and without."""
    means, spreads = (-0.3, -0.05, -0.015, 0.0, 0.015, 0.05, 0.12, 0.3), (0.0, 0.002, 0.01, 0.05, 0.5)
    for rule, n, mean, spread, blind in product(RULES, (1, 2, 6), means, spreads, (False, True)):
        yield rule.judge(mean + spread * WAVE[:n], level=0.95, blind=blind)
    for high in (1.0, 0.1):
        yield Exact(0.0, high).judge(np.array([0.5]))
        yield Exact(0.0, high).judge(np.array([0.5, 0.6]))
    for scale in (0.5, 1.0, 2.0):
        yield timed(scale)


def timed(ratio: float) -> Judgement:
    times = 1 + 0.1 * np.sin(np.arange(20))
    return Cost().judge(ratio * times[::-1], times, level=0.95)


def of(judgement: Judgement, **changed: Any) -> Verdict:
    finding = replace(Finding("a against b", tuple(range(judgement.n)), judgement), **changed)
    found = CellFindings(Cell("main", "main", True, {"width": "64", "init": "fanin"}, ()), False, (finding,))
    return conclude(claim="x", statement="A is B", cells=[found], controls={}, facts=FACTS)


def test_no_sentence_is_broken() -> None:
    words = {}
    for judgement in judgements():
        verdict = of(judgement)
        for text in (judgement.sentence, verdict.line, verdict.paragraph):
            assert not re.search(r"None|nan|inf\b|[{}]|\(\)|  |;;|,,|\.\.|; \(", text), text
        assert (judgement.verdict == "inconclusive") == (judgement.sentence != judgement.said())
        words.setdefault((judgement.kind, judgement.verdict), judgement.sentence)
    kinds = {rule.kind for rule in RULES} | {"cost"}
    assert set(words) == {*product(kinds, ("supported", "refuted", "inconclusive")), ("exact", "supported"),
                          ("exact", "refuted")}  # fmt: skip


def test_seeds_are_named_only_where_more_of_them_would_decide() -> None:
    for judgement in judgements():
        told = re.match(r".*; (\d+) seeds would resolve", judgement.sentence)
        assert not told or int(told[1]) > judgement.n
        if judgement.verdict != "inconclusive" or judgement.mean < 0.12:
            continue  # to be shown takes time
        edge = {"choices": {"a": INSIDE, "b": AT_EDGE}}
        capped, void = of(judgement, **edge), conclude(
            claim="x", statement="A is B", cells=[of(judgement).cells[0].found], controls={}, facts={}, void="toy size"
        )  # fmt: skip
        for verdict in (capped, void):
            console = rich.console.Console(file=io.StringIO(), width=200)
            show(verdict, console)
            said = console.file.getvalue() + verdict.paragraph + verdict.to_text()  # type: ignore[attr-defined]
            assert verdict.verdict == "inconclusive"
            assert not re.search(r"seeds? (would )?resolve|run several|near a bound", said)


def judged(rule: Any, mean: float, spread: float, blind: bool = False) -> str:
    return rule.judge(mean + spread * WAVE, level=0.95, blind=blind).sentence


def test_what_no_number_of_seeds_would_decide_is_said() -> None:
    assert judged(Superiority(0.02), 0.0, 0.002, blind=True) == (
        "n=6, Δ=+0.000 [-0.002, +0.002], MDE 0.002; refuted, but for seeds at which two arms failed and so are "
        "alike: choose conditions they learn in (two arms failed at some seed)"
    )
    assert "; within 0.05 of 0, which refutes only where covers_critical is true (" in judged(Stability(), 0.0, 0.01)
    assert "; between 0 and the margin of 0.1 neither word fits (" in judged(Interaction(), 0.06, 0.005)
    assert "measurably worse" in judged(Equivalence(0.02), 0.015, 0.002)


def test_what_was_not_trained_has_no_second_init_and_needs_no_control() -> None:
    for verdict in (of(Exact(0.0, 1.0).judge(np.array([0.5]))), of(timed(0.5))):
        assert verdict.second_init == "does not apply"
        assert "second init" not in verdict.line
        assert "control" not in verdict.paragraph
    assert "second init: not run" in of(Superiority(0.02).judge(WAVE, level=0.95)).line


def test_the_facts_in_sentences() -> None:
    assert list(in_sentences(FACTS)) == [
        "Tier cpu",
        "Source: a test, 2026",
        "Margin 0.02 nats",
        "Judged on 16,384 held-out tokens",
        "Version 2 of the claim (ab12); version 1 (cd34) said refuted",
        "Looks planned at 3, 6 seeds",
        "Declared unlike: trainer.steps",
        "This very version said before: refuted",
        "Costs (not matched): beyond the first arm: post parameters +0.2%",
        "Preflight passed in 1 cell",
        "Clipped steps pre 12%, post 50%; skipped steps post 2",
        "12 runs, 3 of them not made for this version; code 887a2f4",
    ]
    assert list(in_sentences({"more": {"a": [1, 2]}, "none": None, "empty": {}})) == ["more: a 1, 2"]


def test_a_scope_is_said_once() -> None:
    verdict = concluded(cell("supported"), cell("refuted", name="std 0.02", main=False, init="normal"))
    assert verdict.paragraph.count("dim=64") == 1
    assert "std 0.02: refuted at init=normal: part 0: n=4" in verdict.paragraph
    assert verdict.cells[1].line.startswith("std 0.02: refuted at dim=64, init=normal: ")


@pytest.mark.parametrize(("unlearned", "capped"), [(2, False), (3, True), (6, True)])
def test_arms_of_which_none_learned_decide_nothing(unlearned: int, capped: bool) -> None:
    """Their capped losses are those of their starts."""
    verdict = of(Superiority(0.02).judge(0.01 * WAVE - 0.5, level=0.95, blind=True), unlearned=unlearned)
    assert verdict.verdict == ("inconclusive" if capped else "supported")
    assert (verdict.cells[0].capped == (f"no arm of a against b learned at {unlearned} of 6 seeds",)) == capped
