"""The page itself: one file, which opens from a disk without a network."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from importlib.resources import files
from typing import Literal

from modernllm.report.page.answer import Answer
from modernllm.report.page.comparison import Comparison
from modernllm.report.page.curves import curves
from modernllm.report.page.depth import Rows, telemetry
from modernllm.report.page.figures import (
    MAPS,
    Figure,
    by_depth,
    colours,
    differences,
    gradient_maps,
    rate_figures,
    regime_map,
)
from modernllm.report.page.happenings import in_words, timeline
from modernllm.report.page.markup import Html, data, joined, tag
from modernllm.report.page.ranking import Standing
from modernllm.report.page.reading import Record
from modernllm.report.page.tables import arms_table, confounders_table, differing_table, runs_table, stories
from modernllm.runs.identity import installed

Axis = Literal["step", "tokens", "flops", "time"]
TOLD = 40
"""Sentences of a list; the others are counted."""
PROBED = 60
"""Runs whose telemetry is read: it is most of a record."""


def page(
    comparison: Comparison, x: Axis = "step", top: Sequence[Html] = (), pairs: Figure | None = None, up: str = ""
) -> str:
    """The whole file. `top` stands above the answer, as a claim's verdict; `pairs` are its intervals, if it has any;
    `up` is the file that leads here, if one does.
    """
    said = list(answer_part(comparison))
    if top:
        verdict, *rest = top
        said = [verdict, *([_beside(pairs)] if pairs else []), *rest, aside(said)]
    parts = [*said, *problems_part(comparison)]
    if comparison.arms:
        parts += tables_part(comparison)
        parts += figures_part(comparison, figures_of(comparison, pairs), x, pairs)
        parts += end_part(comparison)
    return document(comparison.title, comparison.count.line, parts, up)


def document(title: str, count: str, parts: Sequence[Html], up: str = "") -> str:
    """With everything inline: style, the page's own script, and plotly where there is a figure."""
    body = joined(parts)
    here = files("modernllm.report.page")
    css, js = ((here / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    head = joined(
        [
            Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
            Html('<link rel="icon" href="data:,">'),
            tag("title", {}, title),
            tag("style", {}, Html(css)),
        ]
    )
    button = tag("button", {"class": "theme", "type": "button"}, "light / dark")
    back = [tag("a", {"href": up}, "all claims")] if up else []
    header = tag("header", {}, tag("h1", {}, title), tag("span", {"class": "count"}, count), *back, button)
    footer = tag("footer", {}, f"modernllm {installed('modernllm') or ''}, {time.strftime('%Y-%m-%d %H:%M')}")
    scripts = joined(tag("script", {}, Html(text)) for text in (*_plotly(body), js))
    whole = tag("body", {}, tag("main", {}, header, body, footer), scripts)
    return f'<!doctype html>\n<html lang="en"><head>{head}</head>{whole}</html>\n'


def _plotly(body: Html) -> list[str]:
    """Its 5 MB, where something is drawn."""
    from plotly.offline import get_plotlyjs

    return [get_plotlyjs()] if 'class="plot"' in body else []


def answer_part(comparison: Comparison) -> Iterator[Html]:
    for answer in comparison.answers:
        yield tag("section", {"class": f"card answer {answer.tone}"}, tag("h2", {}, answer.headline), _details(answer))


def _beside(pairs: Figure) -> Html:
    return tag("div", {"class": "figures"}, drawn(pairs))


def aside(said: Sequence[Html]) -> Html:
    """A verdict has spoken: what its runs look like by themselves does not stand beside it."""
    summary = tag("summary", {}, "What the runs look like, condition by condition")
    return tag("details", {"class": "aside"}, summary, joined(said))


def _details(answer: Answer) -> Html:
    names = {"how sure": answer.sure, "why": answer.why, "to mind": answer.mind}
    if not (answer.why or answer.mind):  # of what is not ranked there is only the reason
        return joined(tag("p", {}, sentence) for sentence in answer.sure)
    rows = [
        joined(
            [
                tag("dt", {}, name),
                tag("dd", {"class": "mind" if name == "to mind" else ""}, joined(tag("p", {}, s) for s in sentences)),
            ]
        )
        for name, sentences in names.items()
        if sentences
    ]
    return tag("dl", {}, joined(rows))


def problems_part(comparison: Comparison) -> Iterator[Html]:
    """Open where it is short: what does not count is never out of sight."""
    found = comparison.problems
    if not found:
        return
    count = comparison.count
    words = {"unreadable": count.unreadable, "without a result": count.unusable, "missing": count.missing}
    told = ", ".join(f"{number} {word}" for word, number in words.items() if number)
    listed = tag("ul", {}, joined(tag("li", {}, sentence) for sentence in found))
    opened = {"open": ""} if len(found) <= 8 else {}
    runs = "1 run does" if len(found) == 1 else f"{len(found)} runs do"
    summary = tag("summary", {}, f"{runs} not count: {told}")
    ways = joined(tag("p", {"class": "way"}, sentence) for sentence in comparison.ways_out)
    yield tag("section", {"class": "card problems", "id": "problems"}, tag("details", opened, summary, listed, ways))


def tables_part(comparison: Comparison) -> Iterator[Html]:
    colour = colours(comparison.arms)
    yield heading("Arms", "Each at its best learning rate; every seed a dot on one scale. Click a heading to sort.")
    if len(comparison.arms) > 5:
        yield filter_of("arms")
    groups = [(name, ranking.rows) for name, ranking in comparison.groups]
    yield arms_table(groups, colour, comparison.by_bits)
    if len(comparison.arms) > 1:
        yield heading("What differs", "Everything else in the configurations is the same, or follows from this.")
        yield differing_table(comparison.arms)


def heading(title: str, note: str) -> Html:
    return joined([tag("h2", {}, title), tag("p", {"class": "note"}, note)])


def filter_of(table: str) -> Html:
    label = {
        "class": "filter",
        "type": "search",
        "placeholder": "filter",
        "data-filters": table,
        "aria-label": "filter",
    }
    return tag("input", label)


def figures_of(comparison: Comparison, pairs: Figure | None) -> list[Figure]:
    """All but the learning curves, which the page's own script draws."""
    colour = colours(comparison.arms)
    found = [*rate_figures(comparison.groups, colour), regime_map(comparison.rankings)]
    if pairs:
        found.append(pairs)
    elif comparison.pairs:
        found.append(differences(comparison.pairs))
    shown = probed(comparison.standings)
    found += gradient_maps([(each, *runs[0]) for each, runs in shown if runs][:MAPS])
    found += by_depth({each.arm.label: [rows for _, rows in runs] for each, runs in shown}, colour, among(comparison))
    if events := timeline(comparison.arms):
        found.append(events)
    return found


def among(comparison: Comparison) -> dict[str, int]:
    """The number of the ranking that each arm is in."""
    return {arm.label: number for number, ranking in enumerate(comparison.rankings) for arm in ranking.arms}


def probed(standings: Sequence[Standing]) -> list[tuple[Standing, list[tuple[Record, Rows]]]]:
    """Telemetry of the runs at each arm's best learning rate: all seeds of few arms, one of many."""
    seeds = max(1, PROBED // max(1, len(standings)))
    return [(each, [(record, telemetry(record)) for record in each.best[:seeds]]) for each in standings[:PROBED]]


def figures_part(comparison: Comparison, figures: Sequence[Figure], x: Axis, above: Figure | None) -> Iterator[Html]:
    """All but the one that stands `above`."""
    begin = ("lr", "regimes", "pairs")
    first = [figure for figure in figures if figure.id.partition("-")[0] in begin and figure is not above]
    rest = [figure for figure in figures if figure not in first and figure is not above]
    panels = [
        ("curves", "loss", "Learning curves", "Click a name to hide an arm. × is where a run broke."),
        ("gradients", "grad_norm", "Gradient norm by step", "Before clipping."),
    ]
    yield heading(
        "Learning rates and differences", "Each figure's toolbar saves it as SVG or PNG, and its numbers as CSV."
    )
    yield tag("div", {"class": "figures"}, joined(map(drawn, first)))
    yield heading("Learning", "Thinned so that every spike is kept.")
    yield from chooser([name for name, _ in comparison.groups])
    yield tag("div", {"class": "figures"}, joined(_panel(*panel) for panel in panels))
    if rest:
        yield heading("By depth and in time", "What telemetry saw; an arm without it is absent.")
        yield tag("div", {"class": "figures"}, joined(map(drawn, rest)))
    yield data("figures-data", {figure.id: {"data": figure.data, "layout": dict(figure.layout)} for figure in figures})
    drawn_from = curves(comparison.arms, comparison.standings, colours(comparison.arms), x, among(comparison))
    yield data("curves-data", drawn_from)


def chooser(names: Sequence[str]) -> Iterator[Html]:
    """Which arms the figures below show: those of one ranking, where there are several."""
    if len(names) > 1:
        options = [tag("option", {"value": number}, name) for number, name in enumerate(names)]
        select = tag("select", {"id": "among", "aria-label": "show"}, *options, tag("option", {"value": ""}, "all"))
        yield tag("p", {"class": "controls"}, tag("label", {}, "show", select))


def drawn(figure: Figure) -> Html:
    kind = "card full" if figure.wide else "card"
    title, note = tag("h3", {}, figure.title), tag("p", {"class": "note"}, figure.note)
    return tag("figure", {"class": kind}, title, note, tag("div", {"class": "plot", "id": figure.id}))


def _panel(identity: str, kind: str, title: str, note: str) -> Html:
    plot = tag("div", {"class": "plot", "id": identity, "data-curves": kind})
    return tag("figure", {"class": "card full"}, tag("h3", {}, title), tag("p", {"class": "note"}, note), plot)


def end_part(comparison: Comparison) -> Iterator[Html]:
    """What was not finite, what else differs, and every run."""
    if told := stories(comparison.records):
        yield heading("What was not finite", "The first operation that gave NaN or infinity, and its inputs.")
        more = [tag("li", {}, f"and {len(told) - TOLD} more")] if len(told) > TOLD else []
        items = [*(tag("li", {}, sentence) for sentence in told[:TOLD]), *more]
        yield tag("ul", {"id": "nonfinite"}, joined(items))
    if happened := in_words(comparison.arms):
        yield heading("Events in words", "Of every run, those of one kind in one arm together.")
        yield happened
    yield heading("What else differs", "Whatever differs here could be the reason instead of what is compared.")
    yield confounders_table(comparison.arms, comparison.confounders)
    yield heading("Runs", f"All {len(comparison.records)}, also those that do not count.")
    yield filter_of("runs")
    yield runs_table(comparison.arms)
