"""From words of a command line to a report: a comparison, a claim's report, or a gallery with a page a claim."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from modernllm.claims.claim import shipped
from modernllm.report.page.arms import arms
from modernllm.report.page.claim_report import Court, absent, court_of, intervals, top
from modernllm.report.page.comparison import Comparison, compare, comparison
from modernllm.report.page.formats import FORMATS
from modernllm.report.page.gallery import courts_in, gallery
from modernllm.report.page.page import Axis, document, page
from modernllm.report.page.reading import found_at, read


@dataclass(frozen=True)
class Report:
    """`beside` are further pages by the names of their files, which `text` links to."""

    text: str
    beside: Mapping[str, str] = field(default_factory=dict)


def report(
    words: Sequence[str], *, by: Sequence[str], x: Axis, format: str, root: Path, name: str = "report"
) -> Report:
    """`name` is what the pages of a gallery's claims begin with. FileNotFoundError names a word that leads nowhere,
    ValueError a key of `by` that no run has.
    """
    paths = [next((path for path in (Path(word).expanduser(), root / word) if path.exists()), None) for word in words]
    there = [path for path in paths if path]
    courts = courts_at(there) if len(there) == len(words) else []
    if format == "html" and courts:
        return _gallery(courts, by, x, name)
    court = court_of(there[0]) if len(there) == len(words) == 1 else None
    if court:
        return Report(_of_claim(court, by, x, format))
    found = compare(words, by, root)
    return Report(page(found, x) if format == "html" else FORMATS[format](found))


def courts_at(paths: Sequence[Path]) -> list[Court]:
    """Of a suite's folder, or of several claims; none where anything else is among them."""
    if len(paths) == 1:
        return courts_in(paths[0])
    found = [court_of(path) for path in paths]
    return [court for court in found if court] if all(found) else []


def _gallery(courts: Sequence[Court], by: Sequence[str], x: Axis, name: str) -> Report:
    pages = {court.folder.name: f"{name}-{court.folder.name}.html" for court in courts}
    beside = {pages[court.folder.name]: _of_claim(court, by, x, "html", f"{name}.html") for court in courts}
    title = f"verdicts in {courts[0].folder.parent.parent.name}"
    return Report(document(title, "", gallery(courts, pages)), beside)


def _of_claim(court: Court, by: Sequence[str], x: Axis, format: str, gallery: str = "") -> str:
    """`gallery` is the file that leads here, if one does."""
    if not court.studied.is_dir():  # nothing was trained
        if format != "html":
            raise ValueError(f"{court.folder}: this claim has no runs to tabulate; its numbers are in verdict.json")
        return document(court.name, "no training", list(top(court)), up=gallery)
    found = of_court(court, by)
    if format != "html":
        return FORMATS[format](found, court)
    return page(found, x, top=list(top(court)), pairs=intervals(court), up=gallery)


def of_court(court: Court, by: Sequence[str]) -> Comparison:
    """The runs of a claim, those that are missing among them, cell by cell in the order in which the claim has them."""
    records, unreadable = read(found_at([str(court.studied)], Path()))
    made = arms([*records, *absent(court, records)], by, planned=True)
    order = {cell: place for place, cell in enumerate(court.cells)}
    made.sort(key=lambda arm: order.get((arm.records[0].identity.get("origin") or {}).get("cell", ""), len(order)))
    undone = any(not record.usable for arm in made for record in arm.records)
    return comparison(court.studied.name, made, unreadable, [_again(court)] if undone else [])


def _again(court: Court) -> str:
    """What makes the runs of a claim that have no result."""
    if court.name not in shipped():
        return "The same check_claim.py makes those that have no result, or goes on with them."
    words = [f"claim={court.name}", *["suite=toy"] * court.toy, f"out={court.studied.parent}"]
    return f"{shlex.join(['python', 'scripts/check_claim.py', *words])} makes those that have no result."
