"""What a person should know of a plan before it is carried out: in sentences."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from modernllm.report.varying import varying
from modernllm.runs.directory import read_json
from modernllm.runs.identity import code_state
from modernllm.runs.record import read_identity
from modernllm.sweep.plan import Plan

SHOWN = 5
"""Runs that a sentence names."""


def summary(plan: Plan) -> str:
    """`12 runs: 3 finished already, 1 to go on with, 8 to run`."""
    going_on = plan.of("interrupted") + (plan.of("failed") if plan.retry else [])
    done, elsewhere = len(plan.done), 0 if plan.overwrite else len(plan.of("running"))
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
    columns = varying([run.asked.overrides for run in plan.runs])
    same: dict[Path, list[int]] = defaultdict(list)
    for place, run in enumerate(plan.runs):
        same[run.path].append(place)
    found = [places for places in same.values() if len(places) > 1]
    for places in found[:SHOWN]:
        names = [" ".join(f"{key}={column[place]}" for key, column in columns.items()) for place in places]
        names = list(dict.fromkeys(names))
        differ = varying([plan.runs[place].asked.overrides for place in places])
        idle = [key for key in differ if key in plan.runs[places[0]].dead]
        why = f"nothing reads {', '.join(idle)} there" if idle else "they resolve to the same values"
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        named = f": {' and '.join(names[:SHOWN])}{more}" if names != [""] else ""
        yield f"{len(places)} of the jobs are one run ({why if differ else 'they are equal'}){named}"
    if len(found) > SHOWN:
        yield f"and so are those of {len(found) - SHOWN} further runs"


def asked_in_vain(plan: Plan) -> Iterator[str]:
    """Choices that were asked for and change nothing, where that is not said of equal jobs already."""
    found = Counter(
        (group, choice) for run in plan.unique for group, choice in run.dead.items() if group in run.asked.overrides
    )
    varied = varying([run.asked.overrides for run in plan.runs])
    for (group, choice), number in found.items():
        if group not in varied:
            yield f"nothing reads {group}={choice} in {number} of the runs: any other choice gives the same run"


def other_code(plan: Plan) -> Iterator[str]:
    """Runs that were made, or begun, by another version of this program."""
    here = code_state()["commit"]
    if here is None:
        return
    begun = [run for run in plan.todo if not plan.overwrite and plan.status[run.path]]
    for runs, words in (
        (plan.done, "of the finished runs were made by other code ({}): overwrite=true runs them again"),
        (begun, "of the runs to go on with were begun by other code ({}): overwrite=true starts them afresh"),
    ):
        commits = [_commit(run.path) for run in runs]
        others = [commit for commit in commits if commit not in (here, "")]
        if others:
            named = ", ".join(sorted({commit[:7] for commit in others}))
            yield f"{len(others)} " + words.format(f"{named}; here {here[:7]}")


def _commit(run: Path) -> str:
    """Of the code that made a run; "" where that is not known."""
    try:
        return str(read_json(run / "run.json").get("code", {}).get("commit") or "")
    except (OSError, ValueError):
        return ""


def other_text(plan: Plan) -> Iterator[str]:
    """Runs in the study whose text was asked for in the same words and was another one."""
    planned = {_text(run.asked.choices, run.asked.overrides): run.text["corpus"] for run in plan.unique}
    for study in dict.fromkeys(run.path.parent for run in plan.unique):
        found = 0
        for path in study.glob("*/run.json"):
            with suppress(OSError, ValueError, AttributeError):  # damaged ones are for status.py to tell
                identity = read_identity(path)
                key = _text(identity["choices"], identity["overrides"])
                found += key in planned and identity["corpus"] != planned[key]
        if found:
            were = "run in {} was" if found == 1 else "runs in {} were"
            yield f"{found} {were.format(study)} made with another text under the same name: not one of these"


def _text(choices: Mapping[str, str], overrides: Mapping[str, str]) -> tuple[Any, ...]:
    """The words that a text was asked for in."""
    about = {key: value for key, value in overrides.items() if key.startswith(("data.", "tokenizer."))}
    return choices.get("data"), choices.get("tokenizer"), choices.get("size"), *sorted(about.items())
