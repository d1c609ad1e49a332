"""Where the time of a step goes, by operation: `trainer.profile=true`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import profile, schedule

WARM, STEPS, HOTTEST = 5, 5, 10


@contextmanager
def profiling(on: bool, folder: Path) -> Iterator[Callable[[], None]]:
    """What is to be called after each step. Steps 6 to 10 of this process go into `profile.json.gz`, a trace for
    chrome://tracing or Perfetto, and its ten hottest operations into `profile.txt`.
    """
    if not on:
        yield lambda: None
        return

    def write(done: profile) -> None:
        done.export_chrome_trace(str(folder / "profile.json.gz"))
        averages = done.key_averages()
        on_device = any(average.self_device_time_total for average in averages)
        key = "self_device_time_total" if on_device else "self_cpu_time_total"
        table = averages.table(sort_by=key, row_limit=HOTTEST, max_name_column_width=40)
        (folder / "profile.txt").write_text(table, encoding="utf-8")

    timing = schedule(wait=WARM - 1, warmup=1, active=STEPS, repeat=1)
    with profile(schedule=timing, on_trace_ready=write, acc_events=True) as profiler:
        yield profiler.step
