"""A suite on one page: a card for every claim that was heard, with its word, scope and numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from modernllm.report.page.claim_report import Court, court_of, is_court, scope_of
from modernllm.report.page.markup import Html, joined, tag


def courts_in(folder: Path) -> list[Court]:
    """Of the claims in a folder of verdicts, or of the one beside the studies."""
    for place in (folder, folder / "verdicts"):
        if place.name == "verdicts" and place.is_dir():
            return [court for path in sorted(place.iterdir()) if is_court(path) and (court := court_of(path))]
    return []


def gallery(courts: Sequence[Court]) -> list[Html]:
    counts = Counter(court.verdict.get("verdict", "no verdict yet") for court in courts)
    told = ", ".join(f"{number} {word}" for word, number in counts.most_common())
    head = tag("section", {"class": "card answer none"}, tag("h2", {}, f"{len(courts)} claims: {told}"))
    return [head, tag("div", {"class": "gallery"}, joined(map(_card, courts)))]


def _card(court: Court) -> Html:
    verdict = court.verdict
    word = verdict.get("verdict", "no verdict yet")
    statement = verdict.get("statement") or (court.claim.claim if court.claim else court.name)
    lines = [tag("p", {"class": f"verdict {word}"}, word), tag("h2", {}, statement)]
    for cell in verdict.get("cells", []):
        told = "; ".join(f"{each['contrast']}: {each['judgement']['sentence']}" for each in cell["findings"])
        lines.append(tag("p", {}, tag("b", {}, f"{cell['name']}: {cell['verdict']}. "), told))
    if verdict:
        lines.append(tag("p", {"class": "note"}, scope_of(verdict)))
    lines.append(tag("p", {"class": "note"}, f"python scripts/compare.py {court.folder}"))
    return tag("section", {"class": "card"}, joined(lines))
