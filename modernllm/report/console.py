"""Progress of one run on a terminal, as plain lines where the output is a file."""

from __future__ import annotations

import time
from contextlib import suppress
from typing import Any

import rich.console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn


class Screen(rich.console.Console):
    """A terminal that may go away, as `| head` does: the run goes on without it."""

    def on_broken_pipe(self) -> None:
        with suppress(SystemExit):  # Rich, having turned what is still written to nowhere, ends the program
            super().on_broken_pipe()


class Console:
    """One line that moves on a terminal; in a log a line at the first step, then every few seconds at most."""

    LOG_SECONDS = 10.0

    def __init__(self, steps: int, console: rich.console.Console | None = None):
        self.console = console or Screen(highlight=False, soft_wrap=True)
        self.steps = steps
        self.smooth: float | None = None
        self.logged = -self.LOG_SECONDS
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TaskProgressColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
            transient=True,
        )
        self.bar = self.progress.add_task("step 0", total=steps)

    def __enter__(self) -> Console:
        self.progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.progress.stop()

    def step(self, row: dict[str, Any]) -> None:
        speed = row["tokens_per_s"]
        self.smooth = speed if self.smooth is None else 0.9 * self.smooth + 0.1 * speed
        step = row["step"]
        line = (
            f"step {step}/{self.steps}  loss {row['loss']:.3f}  grad norm {row['grad_norm']:.2f}"
            f"  {self.smooth:,.0f} tokens/s"
        )
        self.progress.update(self.bar, completed=step, description=line)
        if self.progress.disable and (time.monotonic() - self.logged > self.LOG_SECONDS or step == self.steps):
            tokens_per_step = row["tokens"] / step
            left = (self.steps - step) * tokens_per_step / self.smooth
            self.print(f"{line}  {left:.0f} s left")
            self.logged = time.monotonic()

    def evaluation(self, row: dict[str, Any]) -> None:
        self.print(
            f"step {row['step']:>5}  val loss {row['val_loss']:.3f} nats/token, "
            f"{row['val_bits_per_byte']:.3f} bits/byte"
        )

    def note(self, message: str) -> None:
        self.print(f"! {message}")

    def print(self, text: str = "") -> None:
        """Above the bar. Text is text: brackets in it are no markup and colons no emoji."""
        self.console.print(text, markup=False, emoji=False)
