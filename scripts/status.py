"""Which runs there are and how they stand, also while a sweep is at work: `python scripts/status.py [study]`."""

from __future__ import annotations

import sys
import time
from collections import Counter
from pathlib import Path

import rich.console
from rich.table import Table
from rich.text import Text

from modernllm.runs.progress import progress
from modernllm.runs.record import read_config
from modernllm.runs.studies import Entry, runs_in, studies_in
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
    console.print(one_study(runs_in(folder if folder.is_dir() else Path(study).expanduser())))
    return 0


def all_studies(folders: list[Path]) -> Table:
    table = Table("study", "runs", "how they stand", "last change", show_edge=False, pad_edge=False)
    for folder in folders:
        entries = runs_in(folder)
        counts = Counter(entry.word for entry in entries)
        last = max((entry.status.get("time", 0.0) for entry in entries), default=0.0)
        words = ", ".join(f"{number} {word}" for word, number in counts.most_common())
        table.add_row(Text(folder.name), str(len(entries)), words, ago(last))
    return table


def one_study(entries: list[Entry]) -> Table:
    table = Table("run", "status", "val loss", "", show_edge=False, pad_edge=False)
    for entry in entries:
        loss = entry.status.get("val_loss")
        number = f"{loss:.3f}" if isinstance(loss, float) else ""
        table.add_row(Text(entry.path.name, overflow="fold"), entry.word, number, Text(detail(entry)))
    return table


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
