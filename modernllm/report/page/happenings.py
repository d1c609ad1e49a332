"""What happened in the runs, by step and in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from modernllm.report.page.arms import Arm
from modernllm.report.page.figures import Figure, axis, label
from modernllm.report.page.markup import Html, table, tag
from modernllm.report.page.reading import Record

SYMBOLS = {"nonfinite": "x", "skipped": "triangle-up", "warning": "diamond", "resume": "line-ns-open"}
KINDS = {"nonfinite": "#9c2f7f", "skipped": "#e0762f", "warning": "#b58a24"}


def timeline(arms: Sequence[Arm]) -> Figure | None:
    """Events of all runs by step."""
    told = [(arm, record, event) for arm in arms for record in arm.records for event in record.events]
    if not told:
        return None
    kinds = Counter(event["kind"] for _, _, event in told)
    data = [
        {
            "name": label(kind),
            "showlegend": True,
            "mode": "markers",
            "x": [event["step"] for _, _, event in told if event["kind"] == kind],
            "y": [label(arm.label) for arm, _, event in told if event["kind"] == kind],
            "text": [
                label(f"lr {record.lr:g}, seed {record.seed}: {str(event['message'])[:160]}")
                for _, record, event in told
                if event["kind"] == kind
            ],
            "marker": {
                "size": 10,
                "opacity": 0.7,
                "symbol": SYMBOLS.get(kind, "circle"),
                "color": KINDS.get(kind, "#8a94a6"),
            },
            "hovertemplate": "step %{x}<br>%{text}<extra>%{fullData.name}</extra>",
        }
        for kind in kinds
    ]
    order = list(dict.fromkeys(label(arm.label) for arm, _, _ in told))[::-1]
    lanes = {"type": "category", "automargin": True, "categoryorder": "array", "categoryarray": order}
    layout = {"xaxis": axis("step") | {"rangemode": "tozero"}, "yaxis": lanes, "height": 150 + 40 * len(order)}
    return Figure("events", "What happened when", "Every event of every run.", data, layout, wide=True)


def in_words(arms: Sequence[Arm]) -> Html | None:
    """Events of one kind in one arm are a row: in how many runs, when first and last, and what the first one said."""
    told: dict[tuple[str, str], list[tuple[Record, Mapping[str, Any]]]] = {}
    for arm in arms:
        for record in arm.records:
            for event in record.events:
                told.setdefault((arm.label, _kind(event)), []).append((record, event))
    rows = [_row(arm, kind, events) for (arm, kind), events in told.items()]
    return table("happenings", ("arm", "what", "runs", "steps", "for example"), rows) if rows else None


def _kind(event: Mapping[str, Any]) -> str:
    return str(event.get("about") or event["kind"]).replace("_", " ")


def _row(arm: str, kind: str, events: Sequence[tuple[Record, Mapping[str, Any]]]) -> Html:
    steps = sorted(event["step"] for _, event in events)
    when = f"{steps[0]}" if steps[0] == steps[-1] else f"{steps[0]} to {steps[-1]}"
    record, first = min(events, key=lambda each: each[1]["step"])
    example = f"{first['message']} (step {first['step']}, learning rate {record.lr:g}, seed {record.seed})"
    runs = len({id(record) for record, _ in events})
    cells = [tag("td", {}, arm), tag("td", {}, kind), tag("td", {"class": "n"}, runs)]
    return tag("tr", {}, *cells, tag("td", {"class": "n"}, when), tag("td", {}, example))
