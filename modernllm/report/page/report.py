"""From words of a command line to the text of a report: a comparison, a claim's report, or the gallery of a suite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from modernllm.report.page.claim_report import Court, absent, court_of, intervals, top
from modernllm.report.page.comparison import compare
from modernllm.report.page.formats import FORMATS
from modernllm.report.page.gallery import courts_in, gallery
from modernllm.report.page.page import Axis, document, page


def report(words: Sequence[str], *, by: Sequence[str], x: Axis, format: str, root: Path) -> str:
    """FileNotFoundError names a word that leads nowhere, ValueError a key of `by` that no run has."""
    paths = [next((path for path in (Path(word).expanduser(), root / word) if path.exists()), None) for word in words]
    alone = paths[0] if len(paths) == 1 else None
    if alone and format == "html" and (courts := courts_in(alone)):
        return document(f"verdicts in {courts[0].folder.parent.parent.name}", "", gallery(courts))
    court = court_of(alone) if alone else None
    if court is None:
        comparison = compare(words, by, root)
        return page(comparison, x) if format == "html" else FORMATS[format](comparison)
    return _of_claim(court, by, x, format)


def _of_claim(court: Court, by: Sequence[str], x: Axis, format: str) -> str:
    if not court.studied.is_dir():  # nothing was trained
        if format != "html":
            raise ValueError(f"{court.folder}: this claim has no runs to tabulate; its numbers are in verdict.json")
        return document(court.name, "no training", list(top(court)))
    found = compare([str(court.studied)], by, Path())
    found = replace(found, absent=tuple(absent(court, found.records)))
    if format != "html":
        return FORMATS[format](found)
    return page(found, x, top=list(top(court)), pairs=intervals(court.verdict))
