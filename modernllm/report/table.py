"""The end of a sweep on the terminal: a row a run, its curve, and what the runs differ in."""

from __future__ import annotations

import math
from collections.abc import Sequence

import rich.console
from rich.table import Table

from modernllm.runs.record import Run

BARS = "▁▂▃▄▅▆▇█"


def sparkline(values: Sequence[float], low: float, high: float, width: int = 24) -> str:
    """Means of `width` equal pieces as bars between `low` and `high`; × where a value is not finite."""
    if not values:
        return ""
    width = min(width, len(values))
    pieces = [values[i * len(values) // width : (i + 1) * len(values) // width] for i in range(width)]
    span = (high - low) or 1.0
    bars = []
    for piece in pieces:
        mean = sum(piece) / len(piece)
        share = (mean - low) / span
        bars.append(BARS[round(min(1, max(0, share)) * 7)] if math.isfinite(mean) else "×")
    return "".join(bars)


def by_depth(run: Run) -> str:
    """Gradient norm of each block over the last telemetry rows, from the first block to the last, on a log scale."""
    rows = [row["grad"] for row in run.metrics if "grad" in row][-5:]
    blocks = [name for name in rows[-1] if name.startswith("block.")] if rows else []
    means = [sum(row[name] for row in rows) / len(rows) for name in blocks]
    logs = [math.log10(mean) if mean > 0 and math.isfinite(mean) else mean for mean in means]
    finite = [value for value in logs if math.isfinite(value)]
    if not finite:
        return "×" * len(means)
    low, high = min(finite), max(finite)
    middle = (low + high) / 2
    half = max((high - low) / 2, 0.5)  # a decade at least, so that noise stays flat
    ends = f"{means[0]:.2g} → {means[-1]:.2g}"
    return f"{sparkline(logs, middle - half, middle + half, len(logs))} {ends}"


def differences(runs: Sequence[Run]) -> list[str]:
    """What each run is called among the others: the choices and values in which they differ."""
    flats = [run.overrides for run in runs]
    keys = [key for key in dict.fromkeys(k for flat in flats for k in flat)]
    differing = [key for key in keys if len({str(flat.get(key)) for flat in flats}) > 1]
    return [" ".join(f"{key}={flat[key]}" for key in differing if key in flat) or run.run_id for run, flat in zip(runs, flats, strict=True)]


def sweep_table(runs: Sequence[Run], console: rich.console.Console) -> None:
    """Print the table, the floors under it and the outcome in words."""
    names = differences(runs)
    finite = [loss for run in runs for loss in run.losses if math.isfinite(loss)]
    # the curves share one scale, from the best loss of any run to a little above the unigram floor
    floors = runs[0].identity["floors"]
    low, high = min(finite, default=0.0), floors["unigram"] * 1.15
    table = Table(title=None, show_edge=False, pad_edge=False)
    for heading, justify in (
        ("run", "left"),
        ("outcome", "left"),
        ("val loss", "right"),
        ("loss by step", "left"),
        ("gradient norm by depth", "left"),
    ):
        table.add_column(heading, justify=justify, no_wrap=heading != "run")  # type: ignore[arg-type]
    for name, run in zip(names, runs, strict=True):
        table.add_row(
            name, run.word, f"{run.val_loss:.2f}", sparkline(run.losses, low, high), by_depth(run)
        )
    console.print(table)
    if len({run.identity["corpus"] for run in runs}) == 1:
        console.print(
            f"floors of this text: unigram {floors['unigram']:.2f}, bigram {floors['bigram']:.2f} nats/token", markup=False
        )
    console.print(
        " | ".join(f"{name} {run.word} {run.val_loss:.2f}" for name, run in zip(names, runs, strict=True)),
        style="bold", markup=False,
    )


def sweep_suggestions(runs: Sequence[Run], words: Sequence[str]) -> list[str]:
    """What shows how far the answer reaches: the other initialisation first, since it can turn an order round."""
    command = "python train.py " + " ".join(words)
    inits = {run.identity["choices"]["init"] for run in runs}
    if inits == {"fanin"}:
        return ["", "does it hold at another scale of the initial weights? now try init=gpt2:", f"  {command} init=gpt2"]
    if not any(word.startswith("seed=") for word in words):
        return ["", "one seed is an anecdote; now try several:", f"  {command} seed=0,1,2"]
    return []
