"""The tables of the page: arms, what differs, confounders, runs, and what could not be used."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from modernllm.report.page.arms import Arm, differing
from modernllm.report.page.confounders import Confounder, speed
from modernllm.report.page.figures import OUTCOMES
from modernllm.report.page.markup import Html, grouped_table, joined, table, tag
from modernllm.report.page.ranking import Standing
from modernllm.report.page.reading import Record, Unreadable

STRIP = 110
"""Pixels that the dots of an arm's seeds are spread over."""


@dataclass(frozen=True)
class Cell:
    """What stands there, and by what it is sorted."""

    shown: object
    order: float | int | str


def arm_cells(arm: Arm, standing: Standing | None, bits: bool) -> dict[str, Cell]:
    """A row of the table of arms by its headings. Costs are of the first run; shares are means over runs."""
    record = arm.records[0]
    losses = _losses(standing, bits)
    cost, flops = record.identity.get("parameters") or {}, record.identity.get("flops_per_token") or {}
    training = flops.get("training")
    return {
        "arm": Cell(arm.label, arm.label),
        "bits/byte" if bits else "loss": _number(fmean(losses) if losses else math.nan, "{:.4f}"),
        "spread": _number((standing.spread or math.nan) if standing and not bits else math.nan, "±{:.4f}"),
        "runs": Cell(f"{len(arm.usable)}/{arm.planned}", len(arm.usable)),
        "lr": _number(standing.choice.lr if standing else math.nan, "{:g}"),
        "parameters": _number(cost.get("total"), "{:,.0f}"),
        "FLOPs": _number(training and training * record.planned_tokens, "{:.2e}"),
        "KV B/token": _number(record.identity.get("cache_bytes_per_token"), "{:,.0f}"),
        "tokens/s": _number(_median([speed(record) for record in arm.usable]), "{:,.0f}"),
        "clipped": _number(_mean([record.clipped for record in arm.usable]), "{:.0%}"),
        "skipped": _number(_mean([record.skipped for record in arm.usable]), "{:.1f}"),
    }


def _losses(standing: Standing | None, bits: bool) -> list[float]:
    if standing is None:
        return []
    return [r.bits for r in standing.best if math.isfinite(r.bits)] if bits else list(standing.losses.values())


def _number(value: float | int | None, form: str) -> Cell:
    known = value is not None and math.isfinite(value)
    return Cell(form.format(value), value) if known and value is not None else Cell("–", math.inf)


def _mean(values: Sequence[float | int]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return fmean(known) if known else math.nan


def _median(values: Sequence[float | int]) -> float:
    known = [value for value in values if math.isfinite(value)]
    return median(known) if known else math.nan


Row = tuple[Arm, Standing | None]


def arms_table(groups: Sequence[tuple[str, Sequence[Row]]], colour: Mapping[str, str], bits: bool) -> Html:
    """A group has arms that are ranked against each other: the best first, every seed as a dot on one scale."""
    first = next((arm_cells(arm, standing, bits) for _, rows in groups for arm, standing in rows), {})
    names = [*list(first)[:3], "seeds", "outcomes", *list(first)[3:]]
    bodies = [(name, _arm_rows(rows, names, colour, bits)) for name, rows in groups]
    return grouped_table("arms", [_th(name) for name in names], bodies)


def _arm_rows(rows: Sequence[Row], names: Sequence[str], colour: Mapping[str, str], bits: bool) -> list[Html]:
    scale = _scale([standing for _, standing in rows if standing], bits)
    ranked = sum(standing is not None for _, standing in rows) > 1
    found = []
    for place, (arm, standing) in enumerate(rows):
        cells = arm_cells(arm, standing, bits)
        swatch = tag("i", {"class": "swatch", "style": f"background:{colour[arm.label]}"})
        shown = {
            **cells,
            "arm": Cell(tag("span", {"class": "named"}, swatch, tag("span", {}, arm.label)), arm.label),
            "seeds": Cell(_dots(_losses(standing, bits), scale, colour[arm.label]), cells[names[1]].order),
            "outcomes": Cell(outcome_bar(arm), -arm.outcomes["ok"]),
        }
        best = {"class": "best"} if ranked and place == 0 else {}
        found.append(tag("tr", best, joined(_td(name, shown[name]) for name in names)))
    return found


def _scale(standings: Sequence[Standing], bits: bool) -> tuple[float, float]:
    """Of the arms that learned anything, if there are any: what is counted as its start would flatten the others."""
    learned = [each for each in standings if not each.lost]
    every = [loss for each in learned or standings for loss in _losses(each, bits)]
    return min(every, default=0.0), max(every, default=1.0)


TEXTS = ("arm", "seeds", "outcomes", "run", "outcome", "why")
"""Columns that are no numbers."""


def _td(name: str, cell: Cell) -> Html:
    order = f"{cell.order:.10g}" if isinstance(cell.order, int | float) else cell.order
    return tag("td", {"class": "" if name in TEXTS else "n", "data-order": order}, cell.shown)


def _th(name: str) -> Html:
    button = tag("button", {"type": "button"}, name)
    return tag("th", {"class": "" if name in TEXTS else "n", "aria-sort": "none"}, button)


def _dots(values: Sequence[float], ends: tuple[float, float], colour: str) -> Html:
    """A strip with a dot for each value and a bar at their mean; what lies beyond the scale stands at its end."""
    if not values:
        return Html("–")
    span = (ends[1] - ends[0]) or 1.0
    at = [6 + (STRIP - 12) * min(1.0, (value - ends[0]) / span) for value in values]
    title = tag("title", {}, " ".join(f"{value:.4f}" for value in values))
    mean = f'<rect x="{fmean(at) - 1:.1f}" y="2" width="2" height="14" fill="{colour}"/>'
    dots = "".join(f'<circle cx="{x:.1f}" cy="9" r="4" fill="{colour}" fill-opacity=".6"/>' for x in at)
    line = f'<line x1="0" x2="{STRIP}" y1="9" y2="9" class="rail"/>'
    attributes = {"class": "strip", "width": STRIP, "height": 18, "role": "img"}
    return tag("svg", attributes, title, Html(line + mean + dots))


def outcome_bar(arm: Arm) -> Html:
    """How many runs ended how, good ones first."""
    order = [*OUTCOMES, *sorted(set(arm.outcomes) - set(OUTCOMES))]
    counts = [(word, arm.outcomes[word]) for word in order if arm.outcomes[word]]
    return joined(pill(word, f"{number} {word}") for word, number in counts)


def pill(word: str, shown: str) -> Html:
    return tag("span", {"class": "pill", "style": f"--c:{OUTCOMES.get(word, '#8a94a6')}"}, shown)


def differing_table(arms: Sequence[Arm]) -> Html:
    """Only keys in which arms differ; across whichever are fewer, arms or keys."""
    found = differing(arms)
    labels = [arm.label for arm in arms]
    cells = {key: [_cut(", ".join(values)) for values in column] for key, column in found.items()}
    if len(found) < len(arms):
        rows = [_row(name, of_arm) for name, of_arm in zip(labels, zip(*cells.values(), strict=True), strict=True)]
        return table("differing", ["", *cells], rows)
    return table("differing", ["", *labels], [_row(key, column) for key, column in cells.items()])


def _row(name: str, values: Sequence[str]) -> Html:
    return tag("tr", {}, tag("th", {"scope": "row"}, name), joined(tag("td", {}, value) for value in values))


def confounders_table(arms: Sequence[Arm], found: Sequence[Confounder]) -> Html:
    rows = []
    for each in sorted(found, key=lambda each: not each.suspect):
        mark = tag("span", {"class": "mark"}, "differs") if each.suspect else ""
        values = joined(tag("td", {}, value) for value in each.values)
        kind = {"class": "suspect"} if each.suspect else {}
        rows.append(tag("tr", kind, tag("th", {"scope": "row"}, each.name, " ", mark), values))
    return table("confounders", ["", *(arm.label for arm in arms)], rows)


def _cut(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}…"


def runs_table(arms: Sequence[Arm]) -> Html:
    """Every run, with how it ended and why."""
    rows = []
    for arm in arms:
        for record in in_order(arm):
            why = record.problem or str(record.status.get("reason") or "")
            cells = {
                "run": Cell(record.path.name or "–", record.path.name),
                "arm": Cell(arm.label, arm.label),
                "lr": _number(record.lr, "{:g}"),
                "seed": Cell(record.seed, record.seed),
                "outcome": Cell(pill(record.word, record.word), record.word),
                "loss": _number(record.loss, "{:.4f}"),
                "bits/byte": _number(record.bits, "{:.4f}"),
                "why": Cell(_cut(why), why),
            }
            rows.append(tag("tr", {}, joined(_td(name, cell) for name, cell in cells.items())))
    names = ("run", "arm", "lr", "seed", "outcome", "loss", "bits/byte", "why")
    return table("runs", [_th(name) for name in names], rows)


def in_order(arm: Arm) -> list[Record]:
    """Its runs by learning rate and seed."""
    return sorted(arm.records, key=lambda record: (record.lr, record.seed))


@dataclass(frozen=True)
class Count:
    """planned = present + missing; present = usable + unusable + unreadable."""

    planned: int
    missing: int
    usable: int
    unusable: int
    unreadable: int

    @classmethod
    def of(cls, arms: Sequence[Arm], unreadable: Sequence[Unreadable]) -> Count:
        """`unreadable` are those that could not be placed in an arm."""
        records = [record for arm in arms for record in arm.records if not record.lent]
        usable = sum(record.usable for record in records)
        missing = sum(record.missing for record in records)
        damaged = sum(record.unreadable for record in records)
        unusable = len(records) - usable - missing - damaged
        return cls(len(records) + len(unreadable), missing, usable, unusable, damaged + len(unreadable))

    @property
    def line(self) -> str:
        return (
            f"{self.planned} planned = {self.planned - self.missing} present + {self.missing} missing; "
            f"{self.planned - self.missing} present = {self.usable} usable + {self.unusable} without a result + "
            f"{self.unreadable} unreadable"
        )


def problems(arms: Sequence[Arm], unreadable: Sequence[Unreadable]) -> list[str]:
    """Each run that does not count, named, with the reason."""
    records = [(arm, record) for arm in arms for record in in_order(arm) if not record.lent]
    there = [f"{record.path.name}: {record.problem}" for _, record in records if record.problem and not record.missing]
    missing = [
        f"{arm.label}, learning rate {record.lr:g}, seed {record.seed}: {record.problem}"
        for arm, record in records
        if record.missing
    ]
    return [*(f"{each.path.name}: {each.reason}" for each in unreadable), *there, *missing]


def stories(records: Sequence[Record]) -> list[str]:
    """What was not finite, in words, with where it began."""
    return [
        f"{record.path.name}: {event['message']}"
        for record in records
        for event in record.events
        if event["kind"] == "nonfinite" or (event["kind"] == "skipped" and "where" in event)
    ]
