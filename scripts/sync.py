"""Upload what W&B has not got yet of a study's runs: `python scripts/sync.py <study>`."""

from __future__ import annotations

import modernllm.startup  # noqa: F401 (before all others)

from collections import Counter
from pathlib import Path

from modernllm.logger.server import answering
from modernllm.logger.upload import Standing, standing, upload
from modernllm.quantities import Positive
from modernllm.runs.directory import RunDirectory
from modernllm.runs.studies import Entry, is_run, runs_in, study_at, without_runs
from modernllm.scripting import main


def sync(study: str, /, *, dry_run: bool = False, timeout: Positive = 600.0, root: str = "runs") -> int:
    """Upload the offline runs of a study, one after the other, and say of each run what became of it: uploaded, already
    there, still running, nothing to upload, or failed and why.

    The study is a folder of runs, a claim's folder in runs/verdicts, or a name in root=...; one run folder does as
    well. The same command again does what is left. dry_run=true says what would be uploaded, without a server. A run
    that takes longer than timeout=... seconds is given up until then. Exit code 1 if any failed.
    """
    folder = study_at(study, Path(root).expanduser())
    entries = _entries(folder)
    if not entries:
        raise FileNotFoundError(without_runs(folder))
    found = Counter[str]()
    for entry in entries:
        became = _standing(entry)
        if became.word == "to upload" and not dry_run:
            became = _uploaded(entry, became, timeout)
        found[became.word] += 1
        print(f"{became.word:<17}  {entry.path.name}{f': {became.why}' if became.why else ''}", flush=True)
    counted = ", ".join(f"{number} {word}" for word, number in found.most_common())
    print(f"{len(entries)} run{'s' * (len(entries) != 1)}: {counted}")
    return int(found["failed"] > 0)


def _entries(folder: Path) -> list[Entry]:
    if is_run(folder):
        return [Entry(folder, RunDirectory(folder).status())]
    beside = folder.parent.parent / folder.name  # where the runs of a claim are
    return runs_in(beside if folder.parent.name == "verdicts" and beside.is_dir() else folder)


def _standing(entry: Entry) -> Standing:
    try:
        return standing(entry)
    except (OSError, ValueError) as error:  # its record is damaged, those of the others need not be
        return Standing("failed", str(error))


def _uploaded(entry: Entry, waiting: Standing, timeout: float) -> Standing:
    answering()
    try:
        return upload(entry.path, waiting.files, timeout)
    except OSError as error:  # the folder of this run cannot be written to
        return Standing("failed", str(error))


if __name__ == "__main__":
    raise SystemExit(main(sync))
