"""The end of a sweep on the terminal: a row a run, its curve, and what the runs differ in."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import rich.console
from rich.table import Table
from rich.text import Text

from modernllm.report.varying import varying
from modernllm.runs.record import Run, load_run

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
    rows = [row["grad_norm"] for row in run.telemetry if "grad_norm" in row][-5:]
    blocks = [name for name in rows[-1] if name.startswith("layer.")] if rows else []
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


@dataclass(frozen=True)
class Row:
    """One run that was asked for: in which words, its record where there is one, how it ended and why."""

    overrides: Mapping[str, str]
    run: Run | None
    word: str
    reason: str = ""

    @classmethod
    def of(cls, run: Run) -> Row:
        return cls(run.identity["overrides"], run, run.word)

    @classmethod
    def read(cls, path: Path, overrides: Mapping[str, str], word: str, reason: str) -> Row:
        """The row of a run from its folder; `word` and `reason` are what the sweep saw of it, if it ran it."""
        try:
            run = load_run(path)
        except FileNotFoundError:
            return cls(overrides, None, word or "not run", reason)
        except (ValueError, OSError) as error:
            return cls(overrides, None, "damaged", str(error))
        if word != "failed" and run.word != "failed":
            return cls(overrides, run, run.word)
        return cls(overrides, run, "failed", reason or str(run.status.get("reason") or ""))

    @property
    def val_loss(self) -> float:
        return self.run.val_loss if self.run else math.nan

    @property
    def loss_in_words(self) -> str:
        return f"{self.val_loss:.2f}" if math.isfinite(self.val_loss) else "-"


def names(rows: Sequence[Row]) -> dict[str, list[str]]:
    """Columns that tell the runs from each other."""
    return varying([row.overrides for row in rows]) or {"run": [row.run.run_id if row.run else "" for row in rows]}


def sweep_table(rows: Sequence[Row], console: rich.console.Console) -> None:
    """Print a row a run, the floors of the text, and the outcome in words."""
    named = names(rows)
    runs = [row.run for row in rows if row.run]
    finite = [loss for run in runs for loss in run.losses if math.isfinite(loss)]
    floors = runs[0].identity["floors"] if runs else {"unigram": 0.0}
    # one scale for all curves: first steps, and runs that blow up, lie far above the floor and would flatten the rest
    low = min(finite, default=0.0)
    high = 1.15 * max(floors["unigram"], low)
    curves = [(sparkline(row.run.losses, low, high, 16), by_depth(row.run)) if row.run else ("", "") for row in rows]
    table = _table(rows, named, curves)
    unbounded = console.options.update(max_width=10_000)
    if console.measure(table, options=unbounded).maximum > console.width:  # what the runs are called matters more
        table = _table(rows, named, [])
    console.print(table)
    if len({run.identity["corpus"] + run.identity["tokenizer"] for run in runs}) == 1:
        console.print(f"unigram floor {floors['unigram']:.2f}, bigram floor {floors['bigram']:.2f} nats/token")
    if len(rows) <= IN_WORDS:
        told = [" ".join(column[number] for column in named.values()) for number in range(len(rows))]
        words = (f"{name} {row.word} {row.loss_in_words}" for name, row in zip(told, rows, strict=True))
        console.print(" | ".join(words), style="bold", markup=False, emoji=False, soft_wrap=True)
    for number, row in enumerate(rows):
        if row.reason:
            asked = " ".join(f"{key}={column[number]}" for key, column in named.items() if column[number])
            line = ": ".join(filter(None, [row.word, asked, row.reason.splitlines()[0]]))
            console.print(line, style="bold red", markup=False, emoji=False, soft_wrap=True)


def _table(rows: Sequence[Row], named: Mapping[str, Sequence[str]], curves: Sequence[tuple[str, str]]) -> Table:
    table = Table(show_edge=False, pad_edge=False)
    for key in named:
        table.add_column(key.rpartition(".")[2], overflow="fold")
    for heading in ("outcome", "val loss", *(("loss by step", "gradient norm by depth") if curves else ())):
        table.add_column(heading, justify="right" if heading == "val loss" else "left", no_wrap=True)
    for number, row in enumerate(rows):
        values = (Text(column[number]) for column in named.values())  # a string would be read as markup
        table.add_row(*values, row.word, row.loss_in_words, *(curves[number] if curves else ()))
    return table


def sweep_suggestions(runs: Sequence[Run], words: Sequence[str]) -> list[str]:
    """What shows how far the answer reaches: the other initialisation first, since it can turn an order round."""
    if all(run.outcome is None for run in runs):  # none, or too short to tell anything, with more seeds as with one
        return []
    command = f"python train.py {shlex.join(words)}"
    inits = {run.identity["choices"]["init"] for run in runs}
    if inits == {"fanin"}:
        question = "does it hold at another scale of the initial weights? now try init=gpt2:"
        return ["", question, f"  {command} init=gpt2"]
    if not any(word.startswith("seed=") for word in words):
        return ["", "one seed is an anecdote; now try several:", f"  {command} seed=0,1,2"]
    return []
