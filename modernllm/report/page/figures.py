"""Figures as plain values of plotly: traces and a layout. Colours of text and ground are the page's."""

from __future__ import annotations

import html
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import numpy as np

from modernllm.report.page.arms import Arm
from modernllm.report.page.curve import short
from modernllm.report.page.depth import Rows, heat, last
from modernllm.report.page.ranking import MARGIN, Pair, Ranking, Standing
from modernllm.report.page.reading import Record

PALETTE = (
    "#3b82d6", "#e0762f", "#2f9e77", "#c2519f", "#8a6fd6", "#b58a24", "#4aa3ad", "#d1495b",
    "#7ba7e0", "#f0a878", "#7cc4a6", "#e095c6", "#b3a2ec", "#8d6e1f", "#2f7f88", "#9b3342",
)  # fmt: skip
"""Readable on light and on dark ground, and by most who see fewer colours."""
OUTCOMES = {
    "ok": "#2f9e77",
    "undecided": "#8a94a6",
    "degraded": "#b58a24",
    "stalled": "#e0762f",
    "diverged": "#d1495b",
    "nonfinite": "#9c2f7f",
    "failed": "#6b7280",
}
"""From good to bad."""
MAPS, GRIDS = 6, 8
"""Arms with a heat map of their own, and rankings with a figure of their learning rates."""
NO_RESULT = "#a3acba"

Trace = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """`note` says how to read it; `wide` figures have a row to themselves."""

    id: str
    title: str
    note: str
    data: list[Trace]
    layout: Mapping[str, Any] = field(default_factory=dict)
    wide: bool = False


def label(text: str) -> str:
    """Plotly reads some HTML in names: text has to stay text."""
    return html.escape(text, quote=False)


def axis(title: str, log: bool = False) -> dict[str, Any]:
    return {"title": {"text": title}, "type": "log", "dtick": "D2"} if log else {"title": {"text": title}}


def colours(arms: Sequence[Arm]) -> dict[str, str]:
    return {arm.label: PALETTE[number % len(PALETTE)] for number, arm in enumerate(arms)}


def rate_figures(groups: Sequence[tuple[str, Ranking]], colour: Mapping[str, str]) -> list[Figure]:
    """One for each ranking in which more than one rate was tried."""
    found = [(name, ranking.standings) for name, ranking in groups if ranking.standings]
    tried = [(name, each) for name, each in found if len({record.lr for s in each for record in s.arm.usable}) > 1]
    return [learning_rates(each, colour, name, number) for number, (name, each) in enumerate(tried[:GRIDS])]


def learning_rates(standings: Sequence[Standing], colour: Mapping[str, str], name: str = "", number: int = 0) -> Figure:
    """Final loss by learning rate: the mean of each rate, and every seed as a dot."""
    top = _ceiling([record for each in standings for record in each.arm.usable])
    data = [trace for each in standings for trace in _rate_traces(each.arm, colour[each.arm.label], top)]
    note = "Lower is better. Dots are seeds, × runs that did not learn."
    note += " What lies far above the unigram floor stands at the top edge." if math.isfinite(top) else ""
    rates = sorted({record.lr for each in standings for record in each.arm.usable})
    ticks = {"tickvals": rates, "ticktext": [f"{lr:g}" for lr in rates]} if len(rates) <= 8 else {}
    layout = {"xaxis": axis("learning rate", log=True) | ticks, "yaxis": axis("validation loss at the end")}
    layout |= {"height": with_legend(340, len(standings))}
    title = f"Loss by learning rate: {name}" if name else "Loss by learning rate"
    return Figure(f"lr-{number}" if number else "lr", title, note, data, layout)


def _ceiling(records: Sequence[Record]) -> float:
    """Just above the unigram floor, where runs that know nothing of context stand; infinite if none is far above."""
    top = 1.05 * max((record.identity["floors"]["unigram"] for record in records), default=math.inf)
    return top if any(record.counted > top for record in records if record.starts) else math.inf


def _rate_traces(arm: Arm, colour: str, top: float) -> list[Trace]:
    """A line through the means, and the dots."""
    points = [record for record in arm.usable if record.starts]
    rates = sorted({record.lr for record in points})
    means = [fmean(record.counted for record in points if record.lr == lr) for lr in rates]
    group = {"name": label(arm.label), "legendgroup": arm.label, "x": rates}
    symbols = ["x" if record.failed else "circle" for record in points]
    return [
        {
            **group,
            "y": _rounded([min(mean, top) for mean in means]),
            "mode": "lines",
            "line": {"color": colour, "width": 2},
        },
        {
            **group,
            "x": [record.lr for record in points],
            "y": _rounded([min(record.counted, top) for record in points]),
            "mode": "markers",
            "showlegend": False,
            "marker": {"color": colour, "size": 8, "symbol": symbols},
            "text": [f"seed {record.seed}: {record.word}, counted as {record.counted:.4f}" for record in points],
            "hovertemplate": "lr %{x:g}, %{text}<extra>%{fullData.name}</extra>",
        },
    ]


def with_legend(height: int, names: int) -> int:
    """Pixels of a figure whose legend has so many names, three a line."""
    return height + 19 * max(0, math.ceil(names / 3) - 1)


def regime_map(rankings: Sequence[Ranking]) -> Figure:
    """The worst outcome of each arm's runs by learning rate; arms that differ in warm-up or depth alone in order."""
    rows = [arm for ranking in rankings for arm in sorted(ranking.arms, key=_by_condition)]
    rates = sorted({record.lr for arm in rows for record in arm.records})
    words = ["", *OUTCOMES]
    z: list[list[int | None]] = []
    text: list[list[str]] = []
    for row in rows:
        cells = [Counter(record.word for record in row.records if record.lr == lr) for lr in rates]
        worst = [max((words.index(word) if word in OUTCOMES else 0 for word in cell), default=None) for cell in cells]
        z.append(worst)
        text.append(["<br>".join(f"{number} {word}" for word, number in cell.most_common()) for cell in cells])
    colours = [NO_RESULT, *OUTCOMES.values()]
    steps = [[(i + share) / len(words), colour] for i, colour in enumerate(colours) for share in (0, 1)]
    trace = {
        "type": "heatmap",
        "x": [f"{lr:g}" for lr in rates],
        "y": [label(row.label) for row in rows],
        "z": z,
        "text": text,
        "texttemplate": "%{text}" if len(rates) <= 8 else "",
        "textfont": {"color": "#fff", "size": 11},
        "colorscale": steps,
        "zmin": -0.5,
        "zmax": len(words) - 0.5,
        "showscale": False,
        "xgap": 3,
        "ygap": 3,
        "hovertemplate": "lr %{x}, %{y}<br>%{text}<extra></extra>",
    }
    layout = {
        "xaxis": {"title": {"text": "learning rate"}, "type": "category"},
        "yaxis": {"type": "category", "automargin": True, "autorange": "reversed"},
        "height": max(260, 90 + (52 if len(rows) <= 8 else 34) * len(rows)),
    }
    note = "Each cell is coloured by its worst run and counts all of them."
    return Figure("regimes", "Where runs break", note, [trace], layout)


def _by_condition(arm: Arm) -> tuple[str, float, float]:
    """What else it is, then warm-up and depth."""
    config = arm.records[0].config
    warmup, depth = config["schedule"].get("warmup") or 0, config["model"].get("n_layers") or 0
    rest = [word for word in arm.label.split(" · ") if not word.startswith(("warmup=", "n_layers="))]
    return " · ".join(rest), float(warmup), float(depth)


def differences(pairs: Sequence[Pair]) -> Figure:
    """Intervals of the loss of one arm less that of another; the margin is shaded. Arms that did not learn at all are
    far from the others, and left out where there are others.
    """
    learned = [pair for pair in pairs if not (pair.better.lost or pair.worse.lost)]
    shown = list(learned or pairs)[::-1]
    left = "; arms that learned nothing are left out" if len(shown) < len(pairs) else ""
    data: list[Trace] = []
    for pair in shown:
        judged, name = pair.judgement, label(f"{pair.better.arm.label} − {pair.worse.arm.label}")
        colour = OUTCOMES["ok"] if pair.told_apart else OUTCOMES["undecided"]
        if judged.interval:
            data.append(bar(judged.interval, name, colour))
        data.append(
            {"x": _rounded(judged.values), "y": [name] * judged.n, "mode": "markers", "hovertemplate": "%{x:+.4f}",
             "marker": {"color": colour, "size": 6, "symbol": "line-ns-open", "line": {"width": 2}}}
        )  # fmt: skip
        data.append(
            {"x": _rounded([judged.mean]), "y": [name], "mode": "markers", "marker": {"color": colour, "size": 11}}
        )
    levels = sorted({pair.judgement.level for pair in shown})
    level = " or ".join(f"{100 * level:.3g} %" for level in levels)
    return Figure(
        "pairs",
        "Pairwise differences",
        f"Loss of the first less the second, paired by seed, each at its best learning rate: {level} intervals, ticks "
        f"are seeds. Left of the line the first is better; the band is {MARGIN:g} nats wide on either side. What is "
        f"compared in one ranking shares an error rate of 5 %{left}.",
        [{**trace, "showlegend": False, "name": ""} for trace in data],
        interval_layout(len(shown), MARGIN, "nats"),
        wide=True,
    )


def bar(interval: Sequence[float], name: str, colour: str) -> Trace:
    """Its markers leave room at the ends."""
    marker = {"size": 12, "symbol": "line-ns-open", "color": colour, "line": {"width": 2}}
    line = {"color": colour, "width": 5}
    return {"x": list(interval), "y": [name] * 2, "mode": "lines+markers", "line": line, "marker": marker}


def interval_layout(rows: int, margin: float, unit: str) -> dict[str, Any]:
    """A line at zero and a band of the margin."""
    across = {"yref": "paper", "y0": 0, "y1": 1, "layer": "below"}
    shade = {"line": {"width": 0}, "fillcolor": "rgba(138,148,166,.18)"}
    return {
        "xaxis": axis(unit),
        "yaxis": {"type": "category", "automargin": True},
        "height": 130 + 44 * rows,
        "shapes": [
            {**across, "type": "rect", "x0": -margin, "x1": margin, **shade},
            {**across, "type": "line", "x0": 0, "x1": 0, "line": {"color": "#8a94a6", "width": 1.5, "dash": "dot"}},
        ],
    }  # fmt: skip


def gradient_maps(shown: Sequence[tuple[Standing, Record, Rows]]) -> list[Figure]:
    """log10 of each layer's gradient norm by step; one colour scale for all."""
    found = [(each, record, *heat(rows, "grad_norm")) for each, record, rows in shown[:MAPS]]
    found = [entry for entry in found if len(entry[4])]
    if not found:
        return []
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = [np.where(z > 0, np.log10(z), np.nan) for *_, z in found]
    finite = np.concatenate([z[np.isfinite(z)] for z in logs])
    ends = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    figures = []
    for number, ((each, record, steps, layers, _), z) in enumerate(zip(found, logs, strict=True)):
        trace = {
            "type": "heatmap",
            "x": steps,
            "y": [f"layer {name}" for name in layers],
            "z": [short(row) for row in z],
            "zmin": ends[0],
            "zmax": ends[1],
            "colorscale": "Viridis",
            "colorbar": {"title": {"text": "log₁₀"}, "thickness": 10},
            "hovertemplate": "step %{x}, %{y}: 10^%{z:.2f}<extra></extra>",
        }
        title = f"Gradient norm by layer: {each.arm.label}"
        note = f"Run {record.seed} at learning rate {record.lr:g}; the first layer is at the bottom."
        layout = {"xaxis": axis("step"), "yaxis": {"type": "category", "automargin": True}, "height": 320}
        figures.append(Figure(f"heat-{number}", title, note.replace("Run", "Seed"), [trace], layout))
    return figures


BY_DEPTH = {
    "stream_rms": ("Residual stream by depth", "RMS after each layer, at the end of training.", "RMS", True),
    "attention_entropy": ("Attention entropy", "1: all keys alike; 0: one key. Mean over heads.", "entropy", False),
    "attention_max_logit": (
        "Largest attention logit", "Mean over heads of the largest score; above 1000 training suffers.", "logit", True,
    ),
}  # fmt: skip


def by_depth(shown: Mapping[str, Sequence[Rows]], colour: Mapping[str, str], among: Mapping[str, int]) -> list[Figure]:
    """For each series a line an arm: the mean over seeds at the last probe, and their range. `among` is the number of
    the ranking that an arm is in.
    """
    figures = []
    for series, (title, note, unit, log) in BY_DEPTH.items():
        data: list[Trace] = []
        for arm, runs in shown.items():
            seeds = [values for rows in runs if (values := last(rows, series))]
            if seeds:
                data += [trace | {"meta": {"group": among[arm]}} for trace in _depth_traces(arm, seeds, colour[arm])]
        if data:
            layout = {"xaxis": {**axis("layer"), "type": "category"}, "yaxis": axis(unit, log)}
            layout |= {"height": with_legend(320, max(Counter(among[arm] for arm in shown).values()))}
            figures.append(Figure(f"depth-{series}", title, note, data, layout))
    return figures


def _depth_traces(arm: str, seeds: Sequence[Mapping[str, float]], colour: str) -> list[Trace]:
    layers = list(seeds[0])
    columns = [[seed.get(layer, math.nan) for seed in seeds] for layer in layers]
    middle, low, high = ([of(column) for column in columns] for of in (fmean, min, max))
    bars = {"type": "data", "symmetric": False, "thickness": 1}
    bars |= {
        "array": _rounded([b - a for a, b in zip(middle, high, strict=True)]),
        "arrayminus": _rounded([a - b for a, b in zip(middle, low, strict=True)]),
    }
    return [
        {
            "x": layers,
            "y": _rounded(middle),
            "error_y": bars,
            "name": label(arm),
            "mode": "lines+markers",
            "line": {"color": colour},
        }
    ]


def _rounded(values: Sequence[float]) -> list[float | int | None]:
    return short(np.array(values, dtype=np.float64))
