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
from modernllm.claims.statistics.multiplicity import holm

ClaimWord = Literal["supported", "refuted", "inconclusive", "conditional"]
EXIT_CODES: dict[ClaimWord, int] = {"supported": 0, "refuted": 20, "inconclusive": 21, "conditional": 22}
"""Every other exit code is an error."""
SCHEMA = "modernllm.verdict/1"


@dataclass(frozen=True)
class CellVerdict:
    """`capped` says why a cell may not decide although its judgements would."""

    found: CellFindings
    verdict: Word
    capped: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.found.cell.name

    @property
    def line(self) -> str:
        """The cell's word, its scope and its numbers."""
        numbers = " | ".join(f"{finding.contrast}: {finding.judgement.sentence}" for finding in self.found.findings)
        capped = f" [{'; '.join(self.capped)}]" if self.capped else ""
        return f"{self.name}: {self.verdict} at {scope_words(self.found.cell.scope)}: {numbers}{capped}"


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
    control: Judgement | None
    void: str | None
    facts: Mapping[str, Any]

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    @property
    def line(self) -> str:
        """One line that never travels without its scope."""
        void = f"; void: {self.void}" if self.void else ""
        return (
            f"{self.verdict}: {self.statement} [{scope_words(self.scope)}; second init: {self.second_init}] "
            f"({self.reason}{void})"
        )

    @property
    def paragraph(self) -> str:
        """The line, every cell with its numbers, learning rates and failed runs, and the facts beside them."""
        parts = [f"{self.line}."]
        for cell in self.cells:
            parts.append(f"{cell.line}.")
            parts += [f"{words}." for finding in cell.found.findings for words in _grounds(finding)]
        if self.control is None:
            parts.append("No positive control was run.")
        parts += [f"{key}: {value}." for key, value in self.facts.items()]
        return " ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Strict JSON (no NaN, no infinity: null instead), under the schema "modernllm.verdict/1":

        verdict      supported | refuted | inconclusive | conditional
        exit_code    0 | 20 | 21 | 22
        claim, statement, reason, line, paragraph    strings
        scope        {name: value}, of the main cells
        second_init  "agreed", "not run", or "disagreed: ..."
        void         why no verdict may be drawn from these runs, or null
        control      the judgement on the positive control, or null where none was run
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
                "control": self.control.to_json() if self.control else None,
                "contrasts": sum(len(cell.found.findings) for cell in self.cells),
                "cells": [
                    {
                        "name": cell.name,
                        "main": cell.found.cell.main,
                        "verdict": cell.verdict,
                        "scope": dict(cell.found.cell.scope),
                        "capped": cell.capped,
                        "findings": [_finding_json(finding, next(adjusted)) for finding in cell.found.findings],
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
    control: Judgement | None,
    facts: Mapping[str, Any],
) -> Verdict:
    """One word from all cells, in this order:

    1. inconclusive, and void, where the positive control was run and not supported: a rig that misses a known effect
       shows nothing. `control=None` is for suites of toy size, where it cannot show.
    2. conditional, where at least one pre-registered cell is supported and at least one refuted, main or not.
    3. supported where all main cells are, refuted where all main cells are, inconclusive otherwise. Cells that are
       merely inconclusive make nothing conditional, and cells that are not main neither support nor refute alone.

    A cell is supported where all its contrasts are, refuted where one of them is, inconclusive otherwise; and
    inconclusive in any case (*capped*) where a chosen learning rate stands at the edge of its grid, or where a main
    cell of a quality kind compares arms at rates that were not chosen for each.
    """
    if not any(found.cell.main for found in cells):
        raise ValueError(f"claim {claim}: no main cell was judged")
    judged = tuple(judge_cell(found) for found in cells)
    void = None
    if control is not None and control.verdict != "supported":
        void = f"the positive control was not seen ({control.verdict}: {control.sentence})"
    word, reason = ("inconclusive", "void") if void else combine(judged)
    return Verdict(
        claim=claim,
        statement=statement,
        verdict=word,
        reason=reason,
        scope=joint_scope([found.cell.scope for found in cells if found.cell.main]),
        cells=judged,
        second_init=second_init(judged),
        control=control,
        void=void,
        facts=facts,
    )


def judge_cell(found: CellFindings) -> CellVerdict:
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
    return CellVerdict(found, "inconclusive" if capped else word, capped)


def caps(found: CellFindings) -> tuple[str, ...]:
    """Why the learning rates of a cell do not allow a decision; each reason once."""
    reasons = []
    for finding in found.findings:
        reasons += [
            f"the best learning rate of {arm}, {choice.lr:g}, is at the edge of its grid"
            for arm, choice in finding.choices.items()
            if not choice.interior
        ]
        if found.tuned and found.cell.main and not finding.choices:
            reasons.append(f"learning rates were not chosen for each arm of {finding.contrast}")
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


def _finding_json(finding: Finding, p_holm: float | None) -> dict[str, Any]:
    return {
        "contrast": finding.contrast,
        "seeds": finding.seeds,
        "judgement": finding.judgement.to_json(),
        "p_holm": p_holm,
        "choices": {
            arm: {"lr": choice.lr, "interior": choice.interior, "grid": choice.grid, "losses": choice.losses}
            for arm, choice in finding.choices.items()
        },
        "outcomes": finding.outcomes,
        "mcnemar_p": finding.mcnemar_p,
        "beside": finding.beside,
    }


def _grounds(finding: Finding) -> list[str]:
    """Sign flips, learning rates, runs that failed."""
    judgement, found = finding.judgement, []
    if judgement.sign_flip_p is not None and judgement.sign_flip_floor is not None:
        found.append(f"Sign-flip p={judgement.sign_flip_p:.3g} (smallest reachable {judgement.sign_flip_floor:.3g})")
    if finding.choices:
        found.append("Learning rates " + ", ".join(f"{arm} {choice.lr:g}" for arm, choice in finding.choices.items()))
    if finding.outcomes:
        failed = (f"{arm} {outcome['failed']} of {outcome['n']}" for arm, outcome in finding.outcomes.items())
        found.append("Failed runs " + ", ".join(failed))
    return found


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)


def _init(cell: CellVerdict) -> str | None:
    return cell.found.cell.scope.get("init")


def _rest(cell: CellVerdict) -> dict[str, str]:
    return {key: value for key, value in cell.found.cell.scope.items() if key != "init"}
