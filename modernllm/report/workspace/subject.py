"""What a workspace is about: where a study is in W&B, what sets its runs apart, what they log, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modernllm.logger import mirrored
from modernllm.logger.wandb_logger import NAME_LIMIT, shorten
from modernllm.report.page.arms import CLAIMED
from modernllm.report.page.claim_report import court_of
from modernllm.report.page.comparison import Comparison, compare
from modernllm.report.page.formats import escaped, markdown
from modernllm.report.page.reading import Record
from modernllm.report.page.report import of_court
from modernllm.report.page.tables import stories
from modernllm.report.varying import varying
from modernllm.runs.directory import from_json
from modernllm.runs.identity import WATCHING
from modernllm.runs.studies import is_run, study_at, without_runs

RATE = "optimizer.lr"
NOT_ARMS = ("seed", "study", "out", "executor", "sweep", *WATCHING)
"""What makes no other arm, by the first word of its key."""
COSTS = ("parameters.total", "flops_per_token.training")
WAYS = {"study": "a workspace shows one study"} | {key: f"{key}=... chooses one" for key in ("project", "entity")}
STORIES = 200
"""That a panel holds."""
PROBLEMS = 5
"""That an error names."""


@dataclass(frozen=True)
class Subject:
    """`group` is "" for a single run, whose siblings are not shown. `arms` are paths in W&B's config that tell arms
    apart, a learning rate among them; `differing` are all that differ but the seed, `costs` what a loss is plotted
    against. `history` and `summary` are names of metrics; `verdict` and `events` are Markdown.
    """

    name: str
    project: str
    entity: str
    group: str
    arms: tuple[str, ...]
    differing: tuple[str, ...]
    costs: tuple[str, ...]
    history: tuple[str, ...]
    summary: tuple[str, ...]
    verdict: str
    events: str
    runs: tuple[Path, ...]
    unmirrored: tuple[Path, ...]
    """Runs that were recorded without W&B."""


def subject(word: str, *, root: Path, project: str = "", entity: str = "") -> Subject:
    """Of a study or a claim's folder, by path or by name in `root`. FileNotFoundError names what leads nowhere,
    ValueError says why there is nothing to show in W&B, or that it is in more than one place there.
    """
    folder = study_at(word, root)
    court = court_of(folder)
    if court and not court.studied.is_dir():
        raise ValueError(f"{folder}: this claim has no runs, so there is nothing of it in W&B")
    found = of_court(court, ()) if court else compare([str(folder)], (), root)
    records = [record for record in found.records if not (record.missing or record.unreadable)]
    there = [record for record in records if (record.path / "wandb" / "id").exists()]
    if not there:
        raise ValueError(_nothing(folder, found, len(records)))
    shown = [mirrored.configuration(record.config, record.identity) for record in there]
    arms, differing = _keys(there, shown)
    return Subject(
        name=court.statement if court else found.title,
        project=project or _only("project", there),
        entity=entity or _only("entity", there),
        group="" if is_run(folder) else shorten(_only("study", there), NAME_LIMIT),
        arms=arms,
        differing=differing,
        costs=tuple(path for path in COSTS if any(_at(of, path) is not None for of in shown)),
        history=tuple(mirrored.names(row for record in _one_of_each(found, there) for row in _logged(record.path))),
        summary=tuple(mirrored.names(mirrored.summary(record.status) for record in there)),
        verdict=markdown(found, court),
        events=_events(found),
        runs=tuple(record.path for record in there),
        unmirrored=tuple(record.path for record in records if record not in there),
    )


def _nothing(folder: Path, found: Comparison, records: int) -> str:
    """Why there is nothing of it to show."""
    if records:
        return f"{folder}: none of its {records} runs is in W&B: they were run without logger=wandb"
    return "\n    ".join([without_runs(folder) + ", none that can be read", *found.problems[:PROBLEMS]])


def _only(key: str, records: Sequence[Record]) -> str:
    """Where the mirror put them; "" for the default. ValueError if in several places."""
    found = {(record.config if key == "study" else record.config["logger"]).get(key) or "" for record in records}
    if len(found) > 1:
        raise ValueError(f"its runs are in several places in W&B ({key} {', '.join(sorted(found))}): {WAYS[key]}")
    return found.pop()


def _keys(records: Sequence[Record], shown: Sequence[Mapping[str, Any]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Paths in what the mirror shows of runs: those that make arms, and all that differ; both without the seed."""
    asked = varying([record.identity["overrides"] for record in records])
    paths = [f"choices.{key}" if key in shown[0]["choices"] else key for key in asked if _first(key) not in NOT_ARMS]
    origins = [f"origin.{key}" for key in CLAIMED]
    differing = [path for path in dict.fromkeys([*origins, *paths]) if len({str(_at(of, path)) for of in shown}) > 1]
    claimed = all(record.identity.get("origin") for record in records)
    arms = [path for path in differing if not claimed or path in (*origins, RATE)]
    return tuple(arms), tuple(differing)


def _first(key: str) -> str:
    return key.partition(".")[0]


def _at(values: Any, path: str) -> Any:
    for part in path.split("."):
        values = values.get(part) if isinstance(values, Mapping) else None
    return values


def _one_of_each(found: Comparison, records: Sequence[Record]) -> list[Record]:
    """For every arm the run that got farthest: siblings log the same."""
    ours = [[record for record in arm.records if record in records] for arm in found.arms]
    return [max(arm, key=lambda record: record.status.get("step") or 0) for arm in ours if arm]


def _logged(run: Path) -> Iterator[dict[str, Any]]:
    """Every row that the mirror was told."""
    yield from _rows(run / "metrics.jsonl")
    yield from map(mirrored.telemetry, _rows(run / "telemetry.jsonl"))


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """A damaged line, or a half-written one, ends them."""
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            row = from_json(json.loads(line))
        except ValueError:
            return
        if not isinstance(row, dict):
            return
        yield row


def _events(found: Comparison) -> str:
    lines = ["| arm | how its runs ended |", "|---|---|"]
    lines += [f"| {escaped(arm.label)} | {_counted(arm.outcomes.most_common())} |" for arm in found.arms]
    told = stories(found.records)
    told = [*told[:STORIES], f"and {len(told) - STORIES} more"] if len(told) > STORIES else told
    return "\n".join([*lines, "", *(f"* {escaped(story)}" for story in told or ["Everything was finite."])])


def _counted(counts: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{number} {word}" for word, number in counts)
