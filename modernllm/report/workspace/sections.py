"""The sections of a workspace, as panels of wandb-workspaces; a panel of something that no run logs is left out."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import wandb_workspaces.reports.v2 as wr
import wandb_workspaces.workspaces as ws

from modernllm.report.workspace.subject import RATE, Subject

LOSSES = {"val_loss": "validation loss", "loss": "training loss", "val_bits_per_byte": "validation, bits per byte"}
STABLE = {
    "grad_norm": "gradient norm", "clipped": "share of clipped steps", "lr": "learning rate",
    "growth/gradient": "slope of log gradient over depth", "growth/activation": "slope of log stream over depth",
    "logits/log_z": "log Z of the output", "sharpness/hessian": "sharpness", "noise/signal": "gradient signal",
    "noise/variance": "gradient noise",
}  # fmt: skip
LOGARITHMIC = ("grad_norm",)
"""What is never below zero; the unbiased estimates of noise may be."""
COSTS = {"tokens_per_s": "tokens/s", "memory/peak_mb": "peak memory, MB"}
ENDINGS = {
    "first_nonfinite_step": "first step that was not finite", "skipped_steps": "skipped steps",
    "clipped_share": "share of clipped steps",
}  # fmt: skip
WORDY = ("Verdict", "Events")
LAYER = re.compile(r"(?P<series>\w+)/layer\.(?P<layer>\d+)(?P<part>\..+)?")
DEPTH = {
    "grad_norm": "gradient norm", "stream_rms": "RMS of the stream", "branch_ratio": "branch over stream",
    "update_ratio": "update over weight", "weight_norm": "weight norm", "near_eps": "share near Adam's epsilon",
    "effective_rank": "effective rank", "token_cosine": "cosine between tokens",
    "stream_massive": "massive activations", "attention_entropy": "attention entropy",
    "attention_max_logit": "largest attention logit", "attention_sinks": "share of heads that are sinks",
    "activation_max": "largest activation", "activation_kurtosis": "kurtosis of activations",
    "units_dead": "dead units", "gate_closed": "closed gates", "router_max_load": "largest load of an expert",
    "router_load_entropy": "entropy of expert load",
}  # fmt: skip
PER_PANEL = 24
"""Series that a panel holds: of more, those of the first, the middle and the last layer are shown."""


def sections(about: Subject) -> list[ws.Section]:
    return [
        _section("Verdict", _verdict(about)),
        _section("Loss", _curves(about, LOSSES)),
        _section("Stability", _curves(about, STABLE)),
        _section("Depth profiles", _depth(about)),
        _section("Events", [wr.MarkdownPanel(markdown=about.events), *_bars(about, ENDINGS)]),
        _section("Cost", [*_curves(about, COSTS), *_bars(about, {"seconds": "seconds"}), *_scatters(about)]),
    ]


def _section(name: str, panels: Any) -> ws.Section:
    return ws.Section(
        name=name,
        panels=list(panels),
        is_open=True,
        layout_settings=ws.SectionLayoutSettings(columns=2 if name in WORDY else 3),
        # its default, steps, would stand above the workspace's
        panel_settings=ws.SectionPanelSettings(x_axis="tokens"),
    )


def _verdict(about: Subject) -> Iterator[Any]:
    yield wr.MarkdownPanel(markdown=about.verdict)
    yield from _bars(about, {"val_loss": "validation loss at the end"})
    if len(about.differing) > 1 and "val_loss" in about.summary:  # a grid
        columns = [_column(path) for path in about.differing]
        loss = wr.ParallelCoordinatesPlotColumn(metric=wr.SummaryMetric("val_loss"), inverted=True)
        yield wr.ParallelCoordinatesPlot(title="grid", columns=[*columns, loss])
    yield wr.RunComparer(diff_only="split")


def _column(path: str) -> wr.ParallelCoordinatesPlotColumn:
    return wr.ParallelCoordinatesPlotColumn(metric=wr.Config(path), display_name=short(path), log=path == RATE or None)


def short(path: str) -> str:
    """As it is asked for on the command line."""
    return path.removeprefix("choices.").removeprefix("origin.")


def _line(title: str, names: Sequence[str], logarithmic: bool = False) -> wr.LinePlot:
    """Over tokens; runs of a group are a mean in the band of their range."""
    return wr.LinePlot(
        title=title,
        x="tokens",
        y=list(names),
        log_y=logarithmic or None,
        groupby_aggfunc="mean",
        groupby_rangefunc="minmax",
        max_runs_to_show=100,
    )


def _curves(about: Subject, titles: dict[str, str]) -> Iterator[wr.LinePlot]:
    for name, title in titles.items():
        if name in about.history:
            yield _line(title, [name], name in LOGARITHMIC)


def _bars(about: Subject, titles: dict[str, str]) -> Iterator[wr.BarPlot]:
    """Of a run's own final values."""
    for name, title in titles.items():
        if name in about.summary:
            yield wr.BarPlot(title=title, metrics=[name], groupby_aggfunc="mean", groupby_rangefunc="minmax")


def _scatters(about: Subject) -> Iterator[wr.ScatterPlot]:
    for path in about.costs if "val_loss" in about.summary else ():
        loss, cost = wr.SummaryMetric("val_loss"), wr.Config(path)
        yield wr.ScatterPlot(title=f"validation loss against {path}", x=cost, y=loss)


def _depth(about: Subject) -> Iterator[Any]:
    """Series that have one number a layer as a profile at the end, and every series by layer over training."""
    found = list(filter(None, map(LAYER.fullmatch, about.history)))
    for series, title in DEPTH.items():
        layers = [each for each in found if each["series"] == series]
        if len(layers) > 1 and not any(each["part"] for each in layers):
            yield wr.BarPlot(
                title=f"{title} by depth, at the end",
                metrics=[each[0] for each in layers],
                orientation="v",
                groupby_aggfunc="mean",
                groupby_rangefunc="minmax",
            )
        if layers:
            yield _line(title, _some(layers), series in LOGARITHMIC)


def _some(found: Sequence[re.Match[str]]) -> list[str]:
    if len(found) <= PER_PANEL:
        return [each[0] for each in found]
    layers = sorted({each["layer"] for each in found})
    kept = {layers[0], layers[len(layers) // 2], layers[-1]}
    return [each[0] for each in found if each["layer"] in kept]
