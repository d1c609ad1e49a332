"""Which runs there are and how they stand, also while a sweep is at work: `python scripts/status.py [study]`."""

from __future__ import annotations

import modernllm.startup  # noqa: F401 (before all others)

import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import rich.console
from rich.table import Table
from rich.text import Text

from modernllm.runs.plans import intents_in
from modernllm.runs.progress import progress
from modernllm.runs.record import read_config
from modernllm.runs.studies import Entry, damage, others_in, planned_in, runs_in, studies_in
from modernllm.scripting import main


def status(study: str = "", /, *, out: str = "runs") -> int:
    """The studies in `out`, or the runs of one study: a name in `out`, or the path of its folder."""
    console = rich.console.Console(highlight=False, width=None if sys.stdout.isatty() else 160)
    if not study:
        found = list(studies_in(Path(out).expanduser()))
        if not found:
            raise FileNotFoundError(f"{out}: no study in it; out=... names another folder")
        console.print(all_studies(found))
        return 0
    folder = Path(out).expanduser() / study
    folder = folder if folder.is_dir() else Path(study).expanduser()
    entries = runs_in(folder)
    every = [*entries, *planned_in(folder)]
    console.print(one_study(every))
    for line in (count(every), *remarks(folder, entries)):
        console.print(line, markup=False, emoji=False, soft_wrap=True)
    return 0


def all_studies(folders: list[Path]) -> Table:
    table = Table("study", "runs", "how they stand", "last change", show_edge=False, pad_edge=False)
    for folder in folders:
        entries = [*runs_in(folder), *planned_in(folder)]
        last = max((changed(entry) for entry in entries), default=0.0)
        table.add_row(Text(folder.name), str(len(entries)), count(entries).partition(": ")[2], ago(last))
    return table


def count(entries: list[Entry]) -> str:
    counts = Counter(entry.word for entry in entries)
    words = ", ".join(f"{number} {word}" for word, number in counts.most_common())
    return f"{len(entries)} run{'s' * (len(entries) != 1)}: {words}"


def changed(entry: Entry) -> float:
    """When, in seconds since 1970; 0 if it is not known."""
    moment = entry.status.get("time")
    return float(moment) if isinstance(moment, int | float) else 0.0


def one_study(entries: list[Entry]) -> Table:
    table = Table("run", "status", "val loss", "", show_edge=False, pad_edge=False)
    for entry in entries:
        loss = entry.status.get("val_loss")
        number = f"{loss:.3f}" if isinstance(loss, float) else ""
        table.add_row(Text(entry.path.name, overflow="fold"), entry.word, number, Text(detail(entry)))
    return table


def remarks(folder: Path, entries: list[Entry]) -> Iterator[str]:
    """What cannot be used, counted and named."""
    damaged = [(entry.path.name, why) for entry in entries if (why := damage(entry))]
    if damaged:
        yield f"! {len(damaged)} cannot be used as they are:"
        yield from (f"    {name}: {why}" for name, why in damaged)
    if others := [path.name for path in others_in(folder)]:
        yield f"! {len(others)} no run: {', '.join(others)}"
    yield from (f"! {why}" for why in intents_in(folder)[1])


def detail(entry: Entry) -> str:
    """How far a run at work is; why another has no result."""
    if entry.word == "running":
        found = progress(entry.path)
        if found is None:
            return "starting"
        steps = read_config(entry.path / "config.yaml")["trainer"]["steps"]
        return f"step {found.step}/{steps}  loss {found.loss:.3f}  {found.tokens_per_s:,.0f} tokens/s"
    return str(entry.status.get("reason") or "").partition("\n")[0]


def ago(moment: float) -> str:
    """In words; "" if it is not known."""
    if not moment:
        return ""
    seconds = max(0.0, time.time() - moment)
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit} ago"
    return f"{seconds:.0f} s ago"


if __name__ == "__main__":
    raise SystemExit(main(status))
