"""A sweep beside the same runs one after another, start-up included, and the memory of its workers."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from modernllm.runs.directory import RunDirectory
from modernllm.runs.record import load_run

WORDS = ("size=nano", "data=synthetic", "logger=local")
HALVES = 2
"""Rounds, in turns, so that a machine that slows down slows down both."""
TRIAL = 200
"""Steps of the run that says how many take as long as is wanted."""


@dataclass
class Used:
    """Seconds of the clock, of processors, of them those of each worker; and MB of each worker at most: shared pages in
    parts, and its own ones.
    """

    wall: float = 0.0
    processor: float = 0.0
    workers: dict[int, float] = field(default_factory=dict)
    shared: dict[int, float] = field(default_factory=dict)
    private: dict[int, float] = field(default_factory=dict)


def compare_sweeps(train: Sequence[str], runs: int, seconds: float) -> dict[str, Any]:
    """`train` is the command line of one run; so many runs of about so many seconds each by itself. `ratio` is the
    wall time of the sweep over that of the runs one after another.
    """
    apart, together = Used(), Used()
    with tempfile.TemporaryDirectory() as folder:
        steps = _steps(train, Path(folder) / "trial", seconds)
        for half in range(HALVES):
            seeds = range(half * runs // HALVES, (half + 1) * runs // HALVES)
            words = [*WORDS, f"trainer.steps={steps}"]
            for seed in seeds:
                _measure([*train, *words, f"seed={seed}", f"out={folder}/apart"], None, apart)
            listed = ",".join(map(str, seeds))
            out = Path(folder) / "together"
            _measure([*train, "-m", *words, f"seed={listed}", f"out={out}"], out / "default", together)
    return {
        "runs": runs,
        "steps": steps,
        "apart": apart.wall,
        "together": together.wall,
        "ratio": together.wall / apart.wall,
        "processor_apart": apart.processor,
        "processor_together": together.processor + sum(together.workers.values()),
        "worker_mb": max(together.shared.values(), default=0.0),
        "worker_private_mb": max(together.private.values(), default=0.0),
        "cores": os.cpu_count(),
    }


def _steps(train: Sequence[str], out: Path, seconds: float) -> int:
    """That take so long with their start, from a first run that also prepares the text."""
    used = Used()
    _measure([*train, *WORDS, f"trainer.steps={TRIAL}", f"out={out}"], None, used)
    (path,) = (out / "default").iterdir()
    trained = load_run(path).status["seconds"]
    start = used.wall - trained
    return max(TRIAL, round(TRIAL * (seconds - start) / trained))


def _measure(command: Sequence[str], study: Path | None, used: Used) -> None:
    """Adds to `used`; with a study also the memory of what is at work in it. CalledProcessError if it fails."""
    theirs = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    before, started = os.times(), time.perf_counter()
    process = subprocess.Popen(command, env=theirs, stdout=subprocess.DEVNULL)
    while process.poll() is None:
        for pid, seconds, shared, private in _at_work(study) if study else ():
            used.workers[pid] = seconds
            used.shared[pid] = max(shared, used.shared.get(pid, 0.0))
            used.private[pid] = max(private, used.private.get(pid, 0.0))
        time.sleep(0.05)
    used.wall += time.perf_counter() - started
    after = os.times()
    used.processor += sum(after[2:4]) - sum(before[2:4])
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)


def _at_work(study: Path) -> Iterator[tuple[int, float, float, float]]:
    """Process, its seconds of processor time, proportional set size and private dirty memory in MB of each run at work.
    Linux only, elsewhere nothing.
    """
    for path in study.glob("*/status.json"):
        status = RunDirectory(path.parent).status()
        if status.get("status") != "running":
            continue
        process = Path("/proc") / str(status["pid"])
        try:
            text, fields = (process / "smaps_rollup").read_text(), (process / "stat").read_text().split()
        except OSError:  # it has just ended
            continue
        sizes = {line.split(":")[0]: line.split()[1] for line in text.splitlines()[1:]}
        seconds = (int(fields[13]) + int(fields[14])) / os.sysconf("SC_CLK_TCK")
        yield status["pid"], seconds, int(sizes["Pss"]) / 1e3, int(sizes["Private_Dirty"]) / 1e3
