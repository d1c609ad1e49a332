"""The end of a sweep on the terminal: a row a run, its curve, and what the runs differ in."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence

import rich.console
from rich.table import Table
from rich.text import Text

from modernllm.runs.record import Run

BARS = "▁▂▃▄▅▆▇█"
IN_WORDS = 8
"""Runs that a sentence can hold."""


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


def differences(runs: Sequence[Run]) -> dict[str, list[str]]:
    """The keys in which what was asked for differs, each with its value in every run."""
    asked = [run.identity["overrides"] for run in runs]
    keys = dict.fromkeys(key for overrides in asked for key in overrides)
    values = {key: [overrides.get(key, "") for overrides in asked] for key in keys}
    return {key: column for key, column in values.items() if len(set(column)) > 1} or {"run": [r.run_id for r in runs]}


def sweep_table(runs: Sequence[Run], console: rich.console.Console) -> None:
    """Print a row a run, the floors of the text, and the outcome in words."""
    differing = differences(runs)
    finite = [loss for run in runs for loss in run.losses if math.isfinite(loss)]
    floors = runs[0].identity["floors"]
    # one scale for all curves: first steps, and runs that blow up, lie far above the floor and would flatten the rest
    low = min(finite, default=0.0)
    high = 1.15 * max(floors["unigram"], low)
    table = Table(show_edge=False, pad_edge=False)
    for key in differing:
        table.add_column(key.rpartition(".")[2])
    for heading in ("outcome", "val loss", "loss by step", "gradient norm by depth"):
        table.add_column(heading, justify="right" if heading == "val loss" else "left", no_wrap=True)
    for row, run in enumerate(runs):
        curve = sparkline(run.losses, low, high, 16)
        loss = f"{run.val_loss:.2f}" if math.isfinite(run.val_loss) else "-"
        values = (Text(column[row]) for column in differing.values())  # a string would be read as markup
        table.add_row(*values, run.word, loss, curve, by_depth(run))
    console.print(table)
    if len({run.identity["corpus"] + run.identity["tokenizer"] for run in runs}) == 1:
        console.print(f"unigram floor {floors['unigram']:.2f}, bigram floor {floors['bigram']:.2f} nats/token")
    names = [" ".join(column[row] for column in differing.values()) for row in range(len(runs))]
    words = (f"{name} {run.word} {run.val_loss:.2f}" for name, run in zip(names, runs, strict=True))
    if len(runs) <= IN_WORDS:
        console.print(" | ".join(words), style="bold", markup=False, emoji=False, soft_wrap=True)


def sweep_suggestions(runs: Sequence[Run], words: Sequence[str]) -> list[str]:
    """What shows how far the answer reaches: the other initialisation first, since it can turn an order round."""
    if all(run.outcome is None for run in runs):  # too short to tell anything, with more seeds as with one
        return []
    command = f"python train.py {shlex.join(words)}"
    inits = {run.identity["choices"]["init"] for run in runs}
    if inits == {"fanin"}:
        question = "does it hold at another scale of the initial weights? now try init=gpt2:"
        return ["", question, f"  {command} init=gpt2"]
    if not any(word.startswith("seed=") for word in words):
        return ["", "one seed is an anecdote; now try several:", f"  {command} seed=0,1,2"]
    return []
