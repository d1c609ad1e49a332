"""The command line of the referee."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import rich.console

from modernllm.claims.analysis import contrasts
from modernllm.claims.claim import Claim, load_claim, shipped
from modernllm.claims.flow import Flow, Incomplete, Stopped
from modernllm.claims.judgement import Judgement
from modernllm.claims.layout import show, show_all
from modernllm.claims.looks import fitting
from modernllm.claims.power import detectable
from modernllm.claims.study import TOY_SIZE, Study
from modernllm.claims.suite import load_suite, suites
from modernllm.claims.verdict import Verdict
from modernllm.executor.local import LocalExecutor
from modernllm.quantities import Count
from modernllm.report.live import LiveTable
from modernllm.sweep.estimate import durations, in_words
from modernllm.sweep.notes import summary
from modernllm.sweep.plan import Plan

FAILED, SIGNALLED = 1, 128
LOG_WIDTH = 160
"""Columns of a table where nobody's terminal says how many there are."""


def check_claim(
    *,
    claim: str = "",
    suite: str = "",
    plan: bool = False,
    looks: list[Count] | None = None,
    out: str = "runs",
    workers: Count | Literal["auto"] = "auto",
    logger: str = "local",
    config_dir: str = "",
) -> int:
    """Plan, preflight, train and judge a claim: a shipped one by its name, or your own by its file.

    plan=true says what it would cost and what its seeds could see, and trains nothing. suite=... hears several claims;
    claim=... suite=toy hears one at a size where only the machinery is tested. looks=3,6,9 judges after so many seeds,
    at levels that pay for looking. Everything lands in out=...: the runs, and verdicts/<claim>/. Interrupted, the same
    command goes on. config_dir=... has components of your own, as for train.py --config-dir.

    Exit code: 0 supported, 20 refuted, 21 inconclusive, 22 conditional; any other is an error. A suite exits 0 when
    it ran, plan=true when it could be planned; a claim at toy size is inconclusive whatever it finds.
    """
    if not claim and not suite:
        raise ValueError(
            f"claim=... or suite=... is missing; claims: {', '.join(shipped())}; suites: {', '.join(suites())}"
        )
    if claim and suite not in ("", "toy"):
        raise ValueError(f"claim={claim} suite={suite}: a suite has its own claims; beside claim=... only suite=toy")
    executor = LocalExecutor(workers=workers, per_gpu=1)
    folders = (config_dir,) if config_dir else ()
    court = Court(Path(out).expanduser(), executor, looks or [], logger, folders, suite == "toy")
    try:
        if claim:
            return court.plan(load_claim(claim)) if plan else court.hear(load_claim(claim)).exit_code
        return court.suite(suite, plan)
    except Stopped as stopped:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return SIGNALLED + int(stopped.args[0])
    except Incomplete as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED


@dataclass
class Court:
    """Hears claims one after the other, with the same means for all."""

    out: Path
    executor: LocalExecutor
    looks: Sequence[int]
    logger: str
    config_dirs: tuple[str, ...]
    toy: bool

    def __post_init__(self) -> None:
        width = None if sys.stdout.isatty() else LOG_WIDTH
        self.console = rich.console.Console(highlight=False, soft_wrap=True, width=width)

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, emoji=False)

    def study(self, claim: Claim) -> Study:
        return Study(claim, [f"out={self.out}", f"logger={self.logger}"], self.config_dirs, self.toy)

    def suite(self, name: str, plan: bool) -> int:
        """Controls first; where one is not seen, every claim is heard all the same, and void."""
        suite = load_suite(name)
        if plan:
            for claim in [*suite.load_controls(), *suite.load()]:
                self.plan(claim)
                self.say("")
            return 0
        controls = {claim.name: seen(self.hear(claim)) for claim in suite.load_controls()}
        verdicts = [self.hear(claim, controls) for claim in suite.load()]
        self.say("")
        show_all(verdicts, self.console)
        if self.toy:
            self.say(TOY_SIZE)
        return 0

    def plan(self, claim: Claim) -> int:
        """Runs, tokens, time here, and what the seeds could see; nothing is trained."""
        study = self.study(claim)
        self.say(f"{claim.name}: {claim.claim}")
        self.say(f"{claim.kind}, tier {claim.tier}; {claim.source}")
        if claim.untrained:
            self.say(f"no training; about {claim.minutes:g} min")
            return 0
        best = {(cell, arm): study.lrs(cell)[0] for cell in claim.cells for arm in claim.arms}
        keys = study.tuning_keys() + study.evaluation_keys(study.evaluation, best)
        plan = Plan([study.plan(key) for key in keys], retry=True, overwrite=False)
        self.say(f"arms: {', '.join(claim.arms)}; cells: {' | '.join(claim.cells)}")
        self.say(protocol(study))
        self.say(summary(plan))
        seconds, places = durations(plan.todo), len(self.executor.places(plan.todo))
        self.say(
            f"{sum(run.tokens for run in plan.todo):,} tokens; about {in_words(sum(seconds) / places)} with {places} "
            "at a time, from steps measured here"
        )
        counts = fitting(self.looks, len(study.evaluation)) if self.looks else [len(study.evaluation)]
        number = contrasts(study.cells())
        self.say(f"{number} contrasts share an error rate of 5 %" if number > 1 else "1 contrast, error rate 5 %")
        for seeds in counts:
            self.say(detectable(study, self.out, seeds))
        return 0

    def hear(self, claim: Claim, controls: Mapping[str, Judgement] | None = None) -> Verdict:
        study = self.study(claim)
        folder = self.out / "verdicts" / study.name
        flow = Flow(study, folder, self.run, self.say, self.looks, controls or {})
        self.say(f"{claim.name}: {claim.claim}")
        verdict = flow.verdict({})
        self.say("")
        show(verdict, self.console)
        self.say(f"files: {folder}  (verdict.json has a paragraph to paste)")
        return verdict

    def run(self, plan: Plan) -> int | None:
        """Under a live table; the signal that stopped it, or None."""
        self.say(summary(plan))
        with LiveTable(plan.todo, len(plan.done), self.console) as live:
            return self.executor(plan.todo, live)


def seen(control: Verdict) -> Judgement:
    """What a positive control showed; not more than its cell may say, which may be capped."""
    cell = control.cells[0]
    return replace(cell.found.findings[0].judgement, verdict=cell.verdict)


def protocol(study: Study) -> str:
    """Which learning rates at which seeds, and the margin: `learning rates 0.001, 0.01 at seeds 0, 1; margin 0.02`."""
    rates = study.lrs(next(iter(study.claim.cells)))
    told = f"learning rate{'s' * (len(rates) != 1)} {', '.join(f'{rate:g}' for rate in rates)}"
    if study.claim.compares_rates:
        told = "the learning rate of each arm"
    seeds = ", ".join(map(str, study.evaluation))
    if study.claim.tuned:
        told += f" at seeds {', '.join(map(str, study.tuning))}; the best of each arm"
    return f"{told} at seeds {seeds}; margin {study.claim.margin:g} nats"
