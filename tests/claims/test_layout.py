"""A verdict on the terminal."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import get_args

import pytest
import rich.console
from test_verdict import AT_EDGE, INSIDE, cell, concluded

from modernllm.claims.analysis import CellFindings
from modernllm.claims.claim import Kind
from modernllm.claims.layout import READ_AS, show, show_all, split
from modernllm.claims.verdict import Verdict


def shown(verdict: Verdict, width: int = 160) -> list[str]:
    console = rich.console.Console(file=io.StringIO(), width=width, highlight=False)
    show(verdict, console)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def broken(found: CellFindings, failed: int) -> CellFindings:
    outcomes = {"pre": {"failed": 0, "n": 4}, "post": {"failed": failed, "n": 4}}
    return replace(found, findings=tuple(replace(finding, outcomes=outcomes) for finding in found.findings))


def test_the_word_its_scope_and_a_row_a_cell() -> None:
    verdict = concluded(
        broken(cell("supported"), 3),
        cell("refuted", name="std 0.02", main=False, init="normal"),
        cell("inconclusive", name="[wide]", main=False, dim="128"),
    )
    lines = shown(verdict)
    assert lines[:2] == ["conditional: Pre beats Post", "at dim=64, init=fanin; second init: disagreed: normal refuted"]
    rows = [[part.strip() for part in line.split("│")] for line in lines if "│" in line]
    assert rows == [
        ["main", "supported", "-0.500 [-0.515, -0.485]", "", "broke: post 3 of 4"],
        ["std 0.02", "refuted", "+0.500 [+0.485, +0.515]", "init=normal", "reversed"],
        ["[wide]", "inconclusive", "+0.000 [-0.044, +0.044]", "dim=128", "17 seeds would resolve δ=0.02"],
    ]
    assert "Δ [95 % interval]" in lines[3]
    assert lines[-2:] == [
        "part 0: 4 seeds, margin 0.02 nats",
        "Δ: loss of the variant less loss of the reference, in nats; below 0 the variant is better",
    ]


def test_several_contrasts_have_a_row_each() -> None:
    lines = shown(concluded(cell("supported", "refuted")))
    rows = [[part.strip() for part in line.split("│")][:2] for line in lines if "│" in line]
    assert rows == [["main", "refuted"], ["part 0", "supported"], ["part 1", "refuted"]]
    assert "there" not in lines[3]  # one cell: its scope is the verdict's


def test_what_keeps_a_cell_from_deciding_and_what_voids_a_verdict() -> None:
    capped = concluded(cell("supported", choices={"pre": INSIDE, "post": AT_EDGE}))
    assert "! main cannot decide: the best learning rate of post, 0.01, is at the edge of its grid" in shown(capped)
    missed = cell("inconclusive").findings[0].judgement
    assert shown(concluded(cell("supported"), control=missed))[2].startswith(
        "! void: the positive control was not seen"
    )


def test_a_narrow_terminal_loses_nothing() -> None:
    lines = shown(concluded(cell("inconclusive", name="a cell with a long name", main=True)), width=60)
    table = [line for line in lines if "│" in line]
    assert all(len(line) <= 60 for line in table)
    assert "+0.000 [-0.044, +0.044]" in table[0]


def test_a_suite_has_a_row_a_claim_and_says_what_they_share_once() -> None:
    console = rich.console.Console(file=io.StringIO(), width=120, highlight=False)
    show_all([concluded(cell("supported")), concluded(cell("refuted", init="normal"))], console)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    rows = [[part.strip() for part in line.split("│")] for line in lines if "│" in line]
    assert rows == [
        ["toy", "supported", "supported in main", "init=fanin"],
        ["toy", "refuted", "refuted in main", "init=normal"],
    ]
    assert lines[-1] == "all at dim=64"


def test_a_scope_is_split_into_shared_and_own() -> None:
    assert split([{"a": "1", "b": "2"}, {"a": "1"}]) == ({"a": "1"}, [{"b": "2"}, {}])


@pytest.mark.parametrize("kind", get_args(Kind))
def test_every_kind_says_how_it_is_read(kind: str) -> None:
    assert READ_AS[kind].partition(":")[0] in ("Δ", "ratio", "value")
