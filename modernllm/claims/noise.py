"""The noise floor: the baseline against itself, so that a difference between arms has something to be larger than."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, islice
from pathlib import Path

import numpy as np
import rich.console

from modernllm.claims.claim import load_claim
from modernllm.claims.flow import Incomplete
from modernllm.claims.power import keep_floor
from modernllm.claims.records import finished
from modernllm.claims.statistics.power import seeds_needed
from modernllm.claims.study import Study
from modernllm.claims.table import Key
from modernllm.executor import Executor
from modernllm.report.live import LiveTable
from modernllm.sweep.notes import summary
from modernllm.sweep.plan import Plan, Planned, make_plan
from modernllm.sweep.request import Requests

FIRST_SEED = 1000
"""Away from the seeds of claims and of people."""
MARGINS = (0.005, 0.01, 0.02, 0.05)
"""Nats, for which the seeds that are needed are told."""


@dataclass(frozen=True)
class Floor:
    """Final validation losses of one configuration at several seeds."""

    losses: tuple[float, ...]

    @property
    def sd(self) -> float:
        return float(np.std(self.losses, ddof=1))

    @property
    def lines(self) -> list[str]:
        n, sd = len(self.losses), self.sd
        low, high = (sd * factor for factor in _sd_factors(n))
        halves = np.mean(self.losses[: n // 2]) - np.mean(self.losses[n // 2 :])
        expected = sd * math.sqrt(1 / (n // 2) + 1 / (n - n // 2))
        lines = [
            f"{n} seeds: mean {np.mean(self.losses):.4f}, standard deviation {sd:.4f} [{low:.4f}, {high:.4f}] nats",
            f"A against A, first half of the seeds less the second: {halves:+.4f} (noise of {expected:.4f} expected)",
        ]
        for margin in MARGINS:
            needed = seeds_needed(margin, sd * math.sqrt(2))
            lines.append(
                f"a difference of {margin:g} nats needs {needed or 'more than 10000'} seeds, unless pairing helps"
            )
        return lines


def _sd_factors(n: int) -> tuple[float, float]:
    """Of the exact 95 % interval of a standard deviation from n normal values: sqrt((n-1)/chi2)."""
    from scipy.stats import chi2

    return math.sqrt((n - 1) / chi2.ppf(0.975, n - 1)), math.sqrt((n - 1) / chi2.ppf(0.025, n - 1))


def of_overrides(overrides: Sequence[str], seeds: int, out: Path) -> Plan:
    """The baseline that these overrides name, at seeds of its own, on the windows that judge. ValueError for others."""
    if "trainer.held_out=tuning" in overrides:
        raise ValueError("trainer.held_out=tuning: the floor is that of the windows which judge; leave it out")
    requests, jobs = Requests(), []
    for seed in range(FIRST_SEED, FIRST_SEED + seeds):
        words = ["logger=local", *overrides, f"seed={seed}", f"out={out}", "study=noise-floor"]
        words = list({word.partition("=")[0]: word for word in words}.values())
        jobs.append(requests(words))
    return make_plan(jobs, retry=True, overwrite=False)


def of_claim(name: str, seeds: int, out: Path) -> Plan:
    """The reference of a claim's main cell, at the middle of its rates, on the windows that judge."""
    claim = load_claim(name)
    if claim.untrained:
        raise ValueError(f"claim={name}: kind={claim.kind} has no noise of seeds")
    study = Study(claim, [f"out={out}", "logger=local"])
    cell = next(cell for cell, of in claim.cells.items() if of.main)
    first = next(iter(claim.contrasts.values()))
    arm = first.reference or first.arms[-1]
    rates = study.lrs(cell)
    judging = (seed for seed in count(FIRST_SEED) if seed not in claim.seeds.tuning)
    keys = [Key(cell, arm, rates[len(rates) // 2], seed) for seed in islice(judging, seeds)]
    runs = [study.plan(key) for key in keys]
    moved = [replace(run, config=run.config | {"study": "noise-floor"}, path=_moved(run, out)) for run in runs]
    return Plan(moved, retry=True, overwrite=False)


def _moved(run: Planned, out: Path) -> Path:
    return out / "noise-floor" / run.run_id


def measure(plan: Plan, executor: Executor, out: Path) -> Floor:
    """Run what is missing, and keep the floor where plans look for it. Incomplete if a seed has no finite result,
    ValueError for a record that is not the planned run's.
    """
    console = rich.console.Console(highlight=False, soft_wrap=True)
    console.print(summary(plan), markup=False, emoji=False)
    if plan.todo:
        with LiveTable(plan.todo, len(plan.done), console) as live:
            if signal := executor(plan.todo, live):
                raise KeyboardInterrupt(signal)
    runs = [finished(run) for run in plan.unique]
    losses = [run.val_loss for run in runs if run and math.isfinite(run.val_loss)]
    if len(losses) < len(plan.unique):
        raise Incomplete(f"{len(plan.unique) - len(losses)} of {len(plan.unique)} seeds have no finite loss: no floor")
    floor = Floor(tuple(losses))
    keep_floor(out, plan.unique[0].config, floor.sd, len(losses), plan.unique[0].words)
    return floor
