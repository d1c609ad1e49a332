"""The command line of the referee."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import rich.console

from modernllm.claims.claim import load_claim, shipped
from modernllm.claims.flow import Flow, Incomplete, Run, Stopped
from modernllm.claims.study import Study
from modernllm.executor import Executor
from modernllm.executor.local import LocalExecutor
from modernllm.quantities import Count
from modernllm.report.live import LiveTable
from modernllm.sweep.notes import summary
from modernllm.sweep.plan import Plan

FAILED, SIGNALLED = 1, 128
SuiteName = Literal["toy", "fast", "full"]


def check_claim(
    *,
    claim: str = "",
    suite: SuiteName | None = None,
    plan: bool = False,
    looks: list[Count] | None = None,
    out: str = "runs",
    workers: Count | Literal["auto"] = "auto",
    logger: str = "local",
) -> int:
    """Plan, preflight, train and judge a claim: a shipped one by its name, or your own by its file.

    Exit code: 0 supported, 20 refuted, 21 inconclusive, 22 conditional; any other is an error. A suite exits 0 when
    it ran. Interrupted, the same command goes on. Everything lands in out=...: the runs, and verdicts/<claim>/.
    """
    if not claim and not suite:
        raise ValueError(f"claim=... or suite=toy|fast|full; the shipped claims are {', '.join(shipped())}")
    claims = [load_claim(claim)] if claim else [load_claim(name) for name in shipped()]
    executor = LocalExecutor(workers=workers, per_gpu=1)
    codes = []
    for each in claims:
        study = Study(each, [f"out={out}", f"logger={logger}"], toy=suite == "toy")
        try:
            codes.append(one_claim(study, Path(out), executor, plan=plan, looks=looks or []))
        except Stopped as stopped:
            print("stopped; the same command goes on from here", file=sys.stderr)
            return SIGNALLED + int(stopped.args[0])
        except Incomplete as error:
            print(f"error: {each.name}: {error}", file=sys.stderr)
            return FAILED
    return codes[0] if claim else 0


def one_claim(study: Study, out: Path, executor: Executor, *, plan: bool, looks: Sequence[int]) -> int:
    console = rich.console.Console(highlight=False, soft_wrap=True)

    def say(text: str) -> None:
        console.print(text, markup=False, emoji=False)

    claim = study.claim
    say(f"{claim.name}: {claim.claim}")
    folder = out / "verdicts" / study.name
    flow = Flow(study, folder, with_console(executor, console), say, looks)
    if plan:
        return 0
    verdict = flow.verdict({})
    say("")
    for cell in verdict.cells:
        say(cell.line)
    say("")
    say(verdict.line)
    say(f"files: {folder}")
    return verdict.exit_code


def with_console(executor: Executor, console: rich.console.Console) -> Run:
    """Runs under a live table."""

    def execute(plan: Plan) -> int | None:
        console.print(summary(plan), markup=False, emoji=False)
        with LiveTable(plan.todo, len(plan.done), console) as live:
            return executor(plan.todo, live)

    return execute
