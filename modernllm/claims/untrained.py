"""Findings of claims that need no training: exact measurements, and the time of a step."""

from __future__ import annotations

import numpy as np

from modernllm.claims.analysis import Cell, CellFindings, Finding
from modernllm.claims.claim import Claim
from modernllm.claims.exact import MEASUREMENTS
from modernllm.claims.rules import Cost, Exact
from modernllm.claims.statistics.multiplicity import bonferroni_level
from modernllm.claims.study import Study
from modernllm.config.nearest import did_you_mean

REPEATS, TOY_REPEATS = 200, 20
"""Timed steps of each arm."""


def exact_findings(claim: Claim) -> list[CellFindings]:
    """Every probe has to lie in its interval. ValueError for a measurement that there is not."""
    findings = []
    for name, probe in claim.probes.items():
        if probe.measure not in MEASUREMENTS:
            near = did_you_mean(probe.measure, MEASUREMENTS)
            raise ValueError(f"probes.{name}.measure={probe.measure}: no such measurement{near}")
        try:
            values = MEASUREMENTS[probe.measure](**probe.arguments)
        except TypeError as error:
            raise ValueError(f"probes.{name}.arguments: {error}") from None
        findings.append(Finding(name, (), Exact(probe.low, probe.high).judge(np.asarray(values, dtype=np.float64))))
    cell = Cell("main", "main", True, {"training": "none"}, ())
    return [CellFindings(cell=cell, tuned=False, findings=tuple(findings))]


def cost_findings(study: Study) -> list[CellFindings]:
    """Whole training steps of every arm of a cell, timed in turns on one thread."""
    from modernllm.benchmark.bare import in_turns

    claim = study.claim
    level = bonferroni_level(len(claim.cells) * len(claim.contrasts))
    found = []
    for name, of in claim.cells.items():
        configs = {arm: study.planned(name, arm).config for arm in claim.arms}
        times = in_turns(configs, TOY_REPEATS if study.toy else REPEATS)
        findings = [
            Finding(contrast, (), Cost().judge(times[str(pair.variant)], times[str(pair.reference)], level=level))
            for contrast, pair in claim.contrasts.items()
        ]
        cell = Cell(name, name, of.main, study.scope(name) | {"threads": "1"}, ())
        found.append(CellFindings(cell=cell, tuned=False, findings=tuple(findings)))
    return found
