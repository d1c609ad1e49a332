"""From the table of a claim's runs to a judgement on every contrast of every cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from modernllm.claims.judgement import Judgement
from modernllm.claims.measures import Measure, Measured
from modernllm.claims.rules import Rule
from modernllm.claims.statistics.multiplicity import ALPHA, bonferroni_level
from modernllm.claims.statistics.rates import clopper_pearson, sign_test
from modernllm.claims.table import FAILED, Table
from modernllm.claims.tuning import Choice


@dataclass(frozen=True)
class Contrast:
    """Sum over arms of weight · measure, one number a seed. Weights sum to zero; the rule says what sign it wants."""

    name: str
    measure: Measure
    weights: Mapping[str, float]

    def __post_init__(self) -> None:
        if len(self.weights) < 2 or abs(sum(self.weights.values())) > 1e-12:
            raise ValueError(f"weights {dict(self.weights)} of {self.name}: two arms or more, and a sum of zero")


def excess(name: str, measure: Measure, *, variant: str, reference: str) -> Contrast:
    """measure(variant) - measure(reference): for superiority, equivalence and non-inferiority of the variant."""
    return Contrast(name, measure, {variant: 1.0, reference: -1.0})


def gain(name: str, measure: Measure, *, variant: str, reference: str) -> Contrast:
    """measure(reference) - measure(variant): for stability of the variant, whose regret should be the smaller."""
    return Contrast(name, measure, {reference: 1.0, variant: -1.0})


def interaction(name: str, measure: Measure, *, needy: tuple[str, str], robust: tuple[str, str]) -> Contrast:
    """(off - on) of the needy pair less (off - on) of the robust one; pairs are written (off, on)."""
    return Contrast(name, measure, {needy[0]: 1.0, needy[1]: -1.0, robust[0]: -1.0, robust[1]: 1.0})


@dataclass(frozen=True)
class Cell:
    """Pre-registered conditions. `runs` is the cell of the table's rows; several cells may read the same runs.

    Several contrasts of one cell are parts of one statement: all have to hold there.
    """

    name: str
    runs: str
    main: bool
    scope: Mapping[str, str]
    contrasts: tuple[Contrast, ...]


@dataclass(frozen=True)
class Finding:
    """One contrast in one cell."""

    contrast: str
    seeds: tuple[int, ...]
    judgement: Judgement
    choices: Mapping[str, Choice] = field(default_factory=dict)
    outcomes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By arm, see `describe_outcomes`."""
    unlearned: int = 0
    """Seeds at which no arm learned."""
    mcnemar_p: float | None = None
    """Exact, of the pairs of which one run failed; description."""
    beside: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)


@dataclass(frozen=True)
class CellFindings:
    cell: Cell
    tuned: bool
    """Whether the rule asks for arms at their own best learning rates."""
    findings: tuple[Finding, ...]


def assess(
    table: Table,
    *,
    rule: Rule,
    cells: Sequence[Cell],
    tuning_seeds: Sequence[int],
    evaluation_seeds: Sequence[int],
    alpha: float = ALPHA,
) -> list[CellFindings]:
    """Judge all m contrasts of all cells, each at level 1 - alpha / m.

    `alpha` is 0.05, or at a planned look m · `look_alpha(looks, m)`. ValueError for a missing run, for a seed in both
    lists or twice in one, and for cells that share a name or none of which is a main one.
    """
    check_seeds(tuning_seeds, evaluation_seeds)
    check_cells(cells)
    level = bonferroni_level(contrasts(cells), alpha)
    return [
        CellFindings(
            cell=cell,
            tuned=rule.tuned,
            findings=tuple(
                find(
                    table,
                    rule=rule,
                    runs=cell.runs,
                    contrast=contrast,
                    tuning_seeds=tuning_seeds,
                    evaluation_seeds=evaluation_seeds,
                    level=level,
                )
                for contrast in cell.contrasts
            ),
        )
        for cell in cells
    ]


def find(
    table: Table,
    *,
    rule: Rule,
    runs: str,
    contrast: Contrast,
    tuning_seeds: Sequence[int],
    evaluation_seeds: Sequence[int],
    level: float,
) -> Finding:
    """One contrast, judged on the evaluation seeds."""
    arms = list(contrast.weights)
    measured = contrast.measure(table, runs, arms, tuning=tuning_seeds, evaluation=evaluation_seeds)
    differences, blind = differences_of(contrast, measured)
    return Finding(
        contrast=contrast.name,
        seeds=tuple(evaluation_seeds),
        judgement=rule.judge(differences, level=level, blind=blind),
        choices=measured.choices,
        outcomes=describe_outcomes(arms, measured),
        unlearned=int(measured.failed.all(axis=0).sum()),
        mcnemar_p=mcnemar_p(measured),
        beside=measured.beside,
    )


def differences_of(contrast: Contrast, measured: Measured) -> tuple[np.ndarray, bool]:
    """One number a seed, and whether the sample is blind: at some seed two arms or more did not learn, so that their
    capped losses agree for that reason.
    """
    weights = np.array(list(contrast.weights.values()))
    return weights @ measured.values, bool((measured.failed.sum(axis=0) >= 2).any())


def describe_outcomes(arms: Sequence[str], measured: Measured) -> dict[str, dict[str, Any]]:
    """By arm: how often each outcome came, and `failed` of `n` runs with an exact 95 % `interval`.

    There is none with several runs a seed: those are not independent.
    """
    found: dict[str, dict[str, Any]] = {}
    for arm, words in zip(arms, measured.outcomes, strict=True):
        failed = sum(word in FAILED for word in words)
        interval = list(clopper_pearson(failed, len(words))) if _one_a_seed(measured) else None
        found[arm] = {"counts": dict(Counter(words)), "failed": failed, "n": len(words), "interval": interval}
    return found


def mcnemar_p(measured: Measured) -> float | None:
    """None but for two arms with one run a seed."""
    if len(measured.failed) != 2 or not _one_a_seed(measured):
        return None
    first, second = measured.failed
    return sign_test(int((first & ~second).sum()), int((second & ~first).sum()))


def _one_a_seed(measured: Measured) -> bool:
    return len(measured.outcomes[0]) == measured.values.shape[1]


def contrasts(cells: Sequence[Cell]) -> int:
    """m, over all cells: whatever can turn the verdict is paid for."""
    return sum(len(cell.contrasts) for cell in cells)


def check_cells(cells: Sequence[Cell]) -> None:
    names = [cell.name for cell in cells]
    if len(set(names)) < len(names):
        raise ValueError(f"cells {names}: each needs a name of its own")
    if not any(cell.main for cell in cells):
        raise ValueError(f"cells {names}: mark the main one, which decides where cells do not disagree")
    if empty := [cell.name for cell in cells if not cell.contrasts]:
        raise ValueError(f"cells {empty} have no contrast to judge")


def check_seeds(tuning: Sequence[int], evaluation: Sequence[int]) -> None:
    if shared := sorted(set(tuning) & set(evaluation)):
        raise ValueError(f"seeds {shared} are both for tuning and for evaluation: what chose cannot also judge")
    if len(set(evaluation)) < len(evaluation) or len(set(tuning)) < len(tuning):
        raise ValueError(f"seeds {list(tuning)} and {list(evaluation)}: write each once")
    if not evaluation:
        raise ValueError("no evaluation seeds: nothing would be judged")
