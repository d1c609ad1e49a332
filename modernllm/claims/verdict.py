"""From the judgements of a claim's cells to one word, its exit code, its JSON and a paragraph to paste."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from modernllm.claims.analysis import CellFindings, Finding
from modernllm.claims.judgement import SYMBOLS, Judgement, Word
from modernllm.claims.paragraph import grounds, in_sentences
from modernllm.claims.statistics.multiplicity import holm

ClaimWord = Literal["supported", "refuted", "inconclusive", "conditional"]
EXIT_CODES: dict[ClaimWord, int] = {"supported": 0, "refuted": 20, "inconclusive": 21, "conditional": 22}
"""Every other exit code is an error."""
SCHEMA = "modernllm.verdict/1"


@dataclass(frozen=True)
class CellVerdict:
    """`capped` says why a cell may not decide although its judgements would; `seeds_help`, whether more of them could
    make it decide.
    """

    found: CellFindings
    verdict: Word
    capped: tuple[str, ...]
    seeds_help: bool = True

    @property
    def name(self) -> str:
        return self.found.cell.name

    @property
    def line(self) -> str:
        """The cell's word, its scope and its numbers."""
        return self.line_at(self.found.cell.scope)

    def line_at(self, scope: Mapping[str, str]) -> str:
        """The same with only so much of the scope."""
        numbers = " | ".join(f"{finding.contrast}: {self.sentence(finding)}" for finding in self.found.findings)
        capped = f" [{'; '.join(self.capped)}]" if self.capped else ""
        there = f" at {scope_words(scope)}" if scope else ""
        return f"{self.name}: {self.verdict}{there}: {numbers}{capped}"

    def sentence(self, finding: Finding) -> str:
        """Of a judgement, without the seeds that would decide where none would."""
        return finding.judgement.sentence if self.seeds_help else finding.judgement.said()


@dataclass(frozen=True)
class Verdict:
    """What is said about a claim, where, and on what grounds."""

    claim: str
    statement: str
    verdict: ClaimWord
    reason: str
    scope: Mapping[str, str]
    """Of the main cells."""
    cells: tuple[CellVerdict, ...]
    second_init: str
    controls: Mapping[str, Judgement]
    """By name: known effects that the same rig was shown before."""
    void: str | None
    facts: Mapping[str, Any]

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    @property
    def line(self) -> str:
        """One line that never travels without its scope."""
        void = f"; void: {self.void}" if self.void else ""
        return f"{self.verdict}: {self.statement} [{self.where}] ({self.reason}{void})"

    @property
    def where(self) -> str:
        """The scope, and whether a second initialisation agreed, in words."""
        init = f"; second init: {self.second_init}" if self.trained else ""
        return scope_words(self.scope) + init

    @property
    def trained(self) -> bool:
        return trained(self.cells)

    @property
    def paragraph(self) -> str:
        """The line, every cell with its numbers, learning rates and failed runs, and the facts beside them."""
        parts = [self.line]
        for cell in self.cells:
            apart = {key: value for key, value in cell.found.cell.scope.items() if self.scope.get(key) != value}
            parts.append(cell.line_at(apart))
            parts += [words for finding in cell.found.findings for words in grounds(finding)]
        if self.trained and not self.controls:
            parts.append("No positive control was run")
        parts += in_sentences(self.facts)
        return " ".join(f"{words}." for words in parts)

    def to_json(self) -> dict[str, Any]:
        """Strict JSON (no NaN, no infinity: null instead), under the schema "modernllm.verdict/1":

        verdict      supported | refuted | inconclusive | conditional
        exit_code    0 | 20 | 21 | 22
        claim, statement, reason, line, paragraph    strings
        scope        {name: value}, of the main cells
        second_init  "agreed", "not run", "disagreed: ...", or "does not apply" where nothing was trained
        void         why no verdict may be drawn from these runs, or null
        controls     {name: judgement} on each positive control, empty where none was run
        contrasts    m, among which the error rate is shared
        cells        [{name, main, verdict, scope, capped: [reason], findings: [finding]}]
          finding    {contrast, seeds: [int], judgement, p_holm, choices, outcomes, mcnemar_p, beside}
          judgement  the fields of `Judgement`, with `values` one a seed, and its `sentence`
          choices    {arm: {lr, interior, grid, losses}}, of the tuning seeds
          outcomes   {arm: {counts: {outcome: n}, failed, n, interval}}
          beside     {name: {arm: number}}, descriptions
        facts        what the caller adds: mitigation counts, mismatch, tier, ...
        """
        adjusted = iter(adjusted_p([cell.found for cell in self.cells]))
        return strict(
            {
                "schema": SCHEMA,
                "claim": self.claim,
                "statement": self.statement,
                "verdict": self.verdict,
                "exit_code": self.exit_code,
                "reason": self.reason,
                "scope": dict(self.scope),
                "second_init": self.second_init,
                "void": self.void,
                "controls": {name: judgement.to_json() for name, judgement in self.controls.items()},
                "contrasts": sum(len(cell.found.findings) for cell in self.cells),
                "cells": [
                    {
                        "name": cell.name,
                        "main": cell.found.cell.main,
                        "verdict": cell.verdict,
                        "scope": dict(cell.found.cell.scope),
                        "capped": cell.capped,
                        "findings": [_finding_json(cell, each, next(adjusted)) for each in cell.found.findings],
                    }
                    for cell in self.cells
                ],
                "facts": dict(self.facts),
                "line": self.line,
                "paragraph": self.paragraph,
            }
        )

    def to_text(self) -> str:
        """`to_json` as text for a file."""
        return json.dumps(self.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def conclude(
    *,
    claim: str,
    statement: str,
    cells: Sequence[CellFindings],
    controls: Mapping[str, Judgement],
    facts: Mapping[str, Any],
    void: str | None = None,
) -> Verdict:
    """One word from all cells, in this order:

    1. inconclusive, and void, where the caller says why nothing can be shown, as at toy size, and where a positive
       control was run and not supported: a rig that misses a known effect shows nothing. No `controls` are for
       suites of toy size, where none can show.
    2. conditional, where at least one pre-registered cell is supported and at least one refuted, main or not.
    3. supported where all main cells are, refuted where all main cells are, inconclusive otherwise. Cells that are
       merely inconclusive make nothing conditional, and cells that are not main neither support nor refute alone.

    A cell is supported where all its contrasts are, refuted where one of them is, inconclusive otherwise; and
    inconclusive in any case (*capped*) where a chosen learning rate stands at the edge of its grid, where a main cell
    of a quality kind compares arms at rates that were not chosen for each, or where no arm of a contrast learned at
    half of the seeds or more: what differs between them then is where they started.
    """
    if not any(found.cell.main for found in cells):
        raise ValueError(f"claim {claim}: no main cell was judged")
    void = void or unseen(controls)
    judged = tuple(judge_cell(found, void) for found in cells)
    word, reason = ("inconclusive", "void") if void else combine(judged)
    return Verdict(
        claim=claim,
        statement=statement,
        verdict=word,
        reason=reason,
        scope=joint_scope([found.cell.scope for found in cells if found.cell.main]),
        cells=judged,
        second_init=second_init(judged),
        controls=controls,
        void=void,
        facts=facts,
    )


def unseen(controls: Mapping[str, Judgement]) -> str | None:
    """Which known effects were missed; None where all were seen."""
    missed = {name: judgement for name, judgement in controls.items() if judgement.verdict != "supported"}
    if not missed:
        return None
    told = "; ".join(f"{name}, {judgement.verdict}: {judgement.sentence}" for name, judgement in missed.items())
    return f"the positive control was not seen ({told})"


def judge_cell(found: CellFindings, void: str | None = None) -> CellVerdict:
    """See `conclude`. ValueError for a cell without a finding."""
    if not found.findings:
        raise ValueError(f"cell {found.cell.name} has no finding")
    words = [finding.judgement.verdict for finding in found.findings]
    word: Word = "inconclusive"
    if "refuted" in words:
        word = "refuted"
    elif set(words) == {"supported"}:
        word = "supported"
    capped = caps(found)
    return CellVerdict(found, "inconclusive" if capped else word, capped, not (capped or void))


def caps(found: CellFindings) -> tuple[str, ...]:
    """Why a cell may not decide: its learning rates, or arms of which none learned. Each reason once."""
    reasons = []
    for finding in found.findings:
        reasons += [
            f"the best learning rate of {arm}, {choice.lr:g}, is at the edge of its grid"
            for arm, choice in finding.choices.items()
            if not choice.interior
        ]
        if found.tuned and found.cell.main and not finding.choices:
            reasons.append(f"learning rates were not chosen for each arm of {finding.contrast}")
        n = finding.judgement.n
        if finding.unlearned and 2 * finding.unlearned >= n:
            reasons.append(f"no arm of {finding.contrast} learned at {finding.unlearned} of {n} seeds")
    return tuple(dict.fromkeys(reasons))


def combine(cells: Sequence[CellVerdict]) -> tuple[ClaimWord, str]:
    """The word and why, by rules 2 and 3 of `conclude`."""
    by_word = {word: [cell.name for cell in cells if cell.verdict == word] for word in ("supported", "refuted")}
    if by_word["supported"] and by_word["refuted"]:
        return "conditional", f"supported in {_names(by_word['supported'])}, refuted in {_names(by_word['refuted'])}"
    main = [cell for cell in cells if cell.found.cell.main]
    if len({cell.verdict for cell in main}) == 1:
        word = main[0].verdict
        capped = [cell.name for cell in main if cell.capped]
        return word, f"{word} in {_names([cell.name for cell in main])}" + (
            f", {_names(capped)} capped" if capped else ""
        )
    return "inconclusive", "; ".join(f"{cell.name} {cell.verdict}" for cell in main)


def second_init(cells: Sequence[CellVerdict]) -> str:
    """Whether cells that differ from a main one in nothing but the scope's `init` say the same."""
    if not trained(cells):
        return "does not apply"
    twins = [
        (cell, other)
        for cell in cells
        if cell.found.cell.main
        for other in cells
        if _init(cell) != _init(other) and _rest(cell) == _rest(other)
    ]
    other_words = [f"{_init(other)} {other.verdict}" for cell, other in twins if other.verdict != cell.verdict]
    if not twins:
        return "not run"
    return f"disagreed: {', '.join(dict.fromkeys(other_words))}" if other_words else "agreed"


def trained(cells: Sequence[CellVerdict]) -> bool:
    """Whether anything rests on runs, and not on measurements alone."""
    return any(finding.judgement.kind not in SYMBOLS for cell in cells for finding in cell.found.findings)


def joint_scope(scopes: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Every key with its values, written a|b where they differ."""
    keys = dict.fromkeys(key for scope in scopes for key in scope)
    return {key: "|".join(dict.fromkeys(str(scope.get(key, "-")) for scope in scopes)) for key in keys}


def scope_words(scope: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in scope.items()) or "unknown scope"


def adjusted_p(cells: Sequence[CellFindings]) -> list[float | None]:
    """Holm's p of every finding, in order; unknown ones count as 1, exact checks and costs are no tests."""
    judgements = [finding.judgement for found in cells for finding in found.findings]
    tests = [judgement for judgement in judgements if judgement.kind not in SYMBOLS]
    adjusted = iter(holm(np.array([1.0 if test.p is None else test.p for test in tests])))
    return [None if judgement.kind in SYMBOLS else float(next(adjusted)) for judgement in judgements]


def strict(value: Any) -> Any:
    """Plain JSON: numpy numbers become Python's, numbers that are not finite null. TypeError for anything else."""
    if isinstance(value, Mapping):
        return {str(key): strict(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [strict(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    raise TypeError(f"{value!r} of type {type(value).__name__} is no JSON")


def _finding_json(cell: CellVerdict, finding: Finding, p_holm: float | None) -> dict[str, Any]:
    return {
        "contrast": finding.contrast,
        "seeds": finding.seeds,
        "judgement": finding.judgement.to_json() | {"sentence": cell.sentence(finding)},
        "p_holm": p_holm,
        "choices": {
            arm: {"lr": choice.lr, "interior": choice.interior, "grid": choice.grid, "losses": choice.losses}
            for arm, choice in finding.choices.items()
        },
        "outcomes": finding.outcomes,
        "mcnemar_p": finding.mcnemar_p,
        "beside": finding.beside,
    }


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)


def _init(cell: CellVerdict) -> str | None:
    return cell.found.cell.scope.get("init")


def _rest(cell: CellVerdict) -> dict[str, str]:
    return {key: value for key, value in cell.found.cell.scope.items() if key != "init"}
