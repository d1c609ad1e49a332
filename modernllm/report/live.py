"""A sweep while it runs: a table that changes on a terminal, a line at a time in a log."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import rich.console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from modernllm.executor import Ended
from modernllm.experiment import FINISHED, NONFINITE
from modernllm.report.varying import varying
from modernllm.runs.directory import RunDirectory
from modernllm.runs.progress import progress
from modernllm.sweep.estimate import in_words
from modernllm.sweep.plan import Planned

LOG_SECONDS = 30.0
RECENT = 8
"""Runs that ended, of which a terminal shows the last ones."""
STATE_WIDTH = 42
"""Columns for what is said of a run beside its name."""
WORTH_SAYING = 10.0
"""Seconds that are left, from where on it is said."""
STYLES = {"ok": "green", "degraded": "yellow", "stalled": "yellow", "interrupted": "yellow"}
STYLES |= dict.fromkeys(("diverged", "nonfinite", "failed"), "red")
STOPPED = {code for number in (signal.SIGINT, signal.SIGTERM) for code in (-number, 128 + number)}


class LiveTable:
    """Told by an executor what happens; every run is named by what it does not share with the others."""

    def __init__(self, runs: Sequence[Planned], skipped: int, console: rich.console.Console):
        self.console = console
        columns = varying([run.asked.overrides for run in runs])
        # the same run may be asked for twice in other words: it has the name of the last
        self.names = {
            run.path: " ".join(
                f"{key.rpartition('.')[2]}={column[row]}" for key, column in columns.items() if column[row]
            )
            or run.run_id
            for row, run in enumerate(runs)
        }
        self.wanted, self.skipped = len(runs), skipped
        self.tokens = sum(run.tokens for run in runs)
        self.running: dict[Path, Planned] = {}
        self.finished: list[tuple[Planned, str, str]] = []
        self.reasons: dict[Path, tuple[str, str]] = {}
        self.begun = self.logged = time.monotonic()
        self.live = Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None

    def __enter__(self) -> LiveTable:
        if self.live:
            self.live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self.live:
            self.live.stop()

    def waiting(self, run: Planned, reason: str) -> None:
        self.running.pop(run.path, None)
        self._say(f"{self.names[run.path]}: waits, {reason}")

    def started(self, run: Planned) -> None:
        self.running[run.path] = run
        if not self.live:
            self._say(f"start  {self.names[run.path]}")

    def ended(self, run: Planned, how: Ended) -> None:
        self.running.pop(run.path, None)
        status = RunDirectory(run.path).status()
        word = how_it_ended(status, how)
        loss = status.get("val_loss")
        note = (
            how.reason.partition("\n")[0]
            if word == "failed"
            else f"val loss {loss:.3f}"
            if isinstance(loss, float)
            else ""
        )
        self.finished.append((run, word, note))
        self.reasons[run.path] = (word, how.reason if word == "failed" else "")
        if not self.live:
            told = "  ".join(filter(None, [word, note, f"({self._counts()})"]))
            self._say(f"end    {self.names[run.path]}: {told}")

    def tick(self) -> None:
        if self.live:
            self.live.update(self._table(), refresh=True)
        elif time.monotonic() - self.logged > LOG_SECONDS:
            for run in self.running.values():
                self._say("       " + "  ".join(filter(None, [self.names[run.path], *self._state(run)])))
            self.logged = time.monotonic()

    def _say(self, text: str) -> None:
        self.console.print(text, markup=False, emoji=False, soft_wrap=True)

    def _counts(self) -> str:
        words = Counter(word for _, word, _ in self.finished)
        told = [f"{number} {word}" for word, number in words.items()]
        to_go = self.wanted - len(self.running) - len(self.finished)
        done_before = [f"{self.skipped} done before"] if self.skipped else []
        return ", ".join([*told, f"{len(self.running)} running", f"{to_go} to go", *self._left(), *done_before])

    def _left(self) -> list[str]:
        """The time that the rest takes at the pace so far, by tokens; nothing before the first run ended."""
        done = sum(run.tokens for run, _, _ in self.finished)
        rest = self.tokens - done
        for run in self.running.values():
            if found := progress(run.path):
                part = run.tokens * found.step / run.config["trainer"]["steps"]
                done, rest = done + part, rest - part
        if not self.finished or not done:
            return []
        seconds = (time.monotonic() - self.begun) * rest / done
        return [f"about {in_words(seconds)} left"] if seconds > WORTH_SAYING else []

    def _state(self, run: Planned) -> tuple[str, str, str]:
        """Step, loss and time left of a run at work."""
        found = progress(run.path)
        if found is None:
            return "starting", "", ""
        steps = run.config["trainer"]["steps"]
        left = (steps - found.step) * run.tokens / steps / max(found.tokens_per_s, 1e-9)
        return f"step {found.step}/{steps}", f"loss {found.loss:.3f}", f"{left:.0f} s left"

    def _table(self) -> Table:
        table = Table(show_header=False, box=None, pad_edge=False, caption=self._counts(), caption_justify="left")
        table.add_column(no_wrap=True, overflow="ellipsis", max_width=max(10, self.console.width - STATE_WIDTH))
        for _ in range(3):
            table.add_column(no_wrap=True, overflow="ellipsis")
        for run, word, note in self.finished[-RECENT:]:
            table.add_row(Text(self.names[run.path]), Text(word, STYLES.get(word, "")), Text(note), "", style="dim")
        for run in self.running.values():
            table.add_row(Text(self.names[run.path]), *map(Text, self._state(run)))
        return table


def how_it_ended(status: Mapping[str, object], how: Ended) -> str:
    """The outcome of a run that came to its end; else failed, or interrupted where the same command goes on."""
    if how.code in STOPPED:
        return "interrupted"
    if status.get("status") == "finished" and how.code in (FINISHED, NONFINITE):
        return str(status.get("outcome") or "undecided")
    return "failed"
