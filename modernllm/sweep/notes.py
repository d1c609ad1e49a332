"""What a person should know of a plan before it is carried out: in sentences."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from modernllm.report.table import varying
from modernllm.runs.directory import read_json
from modernllm.runs.identity import code_state
from modernllm.sweep.plan import Plan, Planned

SHOWN = 5
"""Runs that a sentence names."""


def summary(plan: Plan) -> str:
    """`12 runs: 3 finished, 1 to go on with, 8 to start`."""
    going_on = plan.of("interrupted") + (plan.of("failed") if plan.retry else [])
    done, elsewhere = len(plan.done), len(plan.of("running"))
    failed = 0 if plan.retry or plan.overwrite else len(plan.of("failed"))
    new = len(plan.todo) - (0 if plan.overwrite else len(going_on) + elsewhere)
    parts = {
        "finished already": done - failed,
        "failed before (retry=true tries again)": failed,
        "to go on with": 0 if plan.overwrite else len(going_on),
        "being run by another process": elsewhere,
        "to run": new,
    }
    told = ", ".join(f"{number} {words}" for words, number in parts.items() if number)
    return f"{len(plan.unique)} run{'s' * (len(plan.unique) != 1)}: {told}"


def notes(plan: Plan) -> Iterator[str]:
    yield from repeated(plan)
    yield from asked_in_vain(plan)
    yield from other_code(plan)
    yield from other_text(plan)


def repeated(plan: Plan) -> Iterator[str]:
    """Jobs that are one run: asked for twice, or different only in what nothing reads there."""
    same: dict[Path, list[Planned]] = defaultdict(list)
    for run in plan.runs:
        same[run.path].append(run)
    for runs in same.values():
        if len(runs) > 1:
            differ = varying([run.asked.overrides for run in runs])
            idle = [key for key in differ if key in runs[0].dead]
            why = f"nothing reads {', '.join(idle)} there" if idle else "they resolve to the same values"
            words = list(dict.fromkeys(run.words for run in runs))
            named = " and ".join(words[:SHOWN]) + (f" and {len(words) - SHOWN} more" if len(words) > SHOWN else "")
            yield f"{len(runs)} of the jobs are one run ({why if differ else 'they are equal'}): {named}"


def asked_in_vain(plan: Plan) -> Iterator[str]:
    """Choices that were asked for and change nothing, where that is not said of equal jobs already."""
    found = Counter(
        (group, choice) for run in plan.unique for group, choice in run.dead.items() if group in run.asked.overrides
    )
    for (group, choice), number in found.items():
        if group not in varying([run.asked.overrides for run in plan.runs]):
            yield f"nothing reads {group}={choice} in {number} of the runs: any other choice gives the same run"


def other_code(plan: Plan) -> Iterator[str]:
    """Finished runs that were made by another version of this program."""
    here = code_state()["commit"]
    commits = [
        read_json(run.path / "run.json")["code"]["commit"] for run in plan.done if (run.path / "run.json").exists()
    ]
    others = [commit for commit in commits if commit != here]
    if others and here:
        named = ", ".join(sorted({str(commit)[:7] for commit in others}))
        yield (
            f"{len(others)} of the finished runs were made by other code ({named}; here {here[:7]}): "
            "overwrite=true runs them again"
        )


def other_text(plan: Plan) -> Iterator[str]:
    """Runs in the study whose text went by the same name and was another one."""
    planned = {(run.asked.choices["data"], run.asked.choices["tokenizer"]): run.corpus for run in plan.unique}
    for study in {run.path.parent for run in plan.unique}:
        found = 0
        for path in sorted(study.glob("*/run.json")):
            identity = read_json(path)
            key = (identity["choices"]["data"], identity["choices"]["tokenizer"])
            found += key in planned and identity["corpus"] != planned[key]
        if found:
            yield f"{found} runs in {study} were made with another text under the same name: they are not these"
