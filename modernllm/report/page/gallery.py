"""A suite on one page: a card for every claim that was heard, with its word, scope and numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from modernllm.report.page.claim_report import Court, court_of, is_court, scope_of
from modernllm.report.page.markup import Html, joined, tag


def courts_in(folder: Path) -> list[Court]:
    """Of the claims in a folder of verdicts, or of the one beside the studies."""
    for place in (folder, folder / "verdicts"):
        if place.name == "verdicts" and place.is_dir():
            return [court for path in sorted(place.iterdir()) if is_court(path) and (court := court_of(path))]
    return []


def gallery(courts: Sequence[Court], pages: Mapping[str, str]) -> list[Html]:
    """`pages` are the files that cards lead to, by the name of a claim's folder."""
    counts = Counter(court.word for court in courts)
    told = ", ".join(f"{number} {word}" for word, number in counts.most_common())
    title = f"{len(courts)} claim{'s' * (len(courts) != 1)}: {told}"
    head = tag("section", {"class": "card answer none"}, tag("h2", {}, title))
    cards = joined(_card(court, pages[court.folder.name]) for court in courts)
    return [head, tag("div", {"class": "gallery"}, cards)]


def _card(court: Court, page: str) -> Html:
    statement = tag("h2", {}, tag("a", {"href": page}, court.statement))
    lines = [tag("p", {"class": f"verdict {court.word}"}, court.word), statement]
    for cell in court.findings:
        told = "; ".join(f"{each['contrast']}: {each['judgement']['sentence']}" for each in cell["findings"])
        lines.append(tag("p", {}, tag("b", {}, f"{cell['name']}: {cell['verdict']}. "), told))
    if court.verdict:
        lines.append(tag("p", {"class": "note"}, scope_of(court.verdict)))
    lines.append(tag("p", {}, tag("a", {"href": page}, "verdict, rule, certificate and runs")))
    return tag("section", {"class": "card"}, joined(lines))
