"""How fast we are, against others in turn: `python scripts/benchmark.py step`, `telemetry` or `sweep`."""

import modernllm.startup  # noqa: F401 (before all others)

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from modernllm.benchmark.step import compare_steps
from modernllm.benchmark.sweep import compare_sweeps
from modernllm.benchmark.telemetry import telemetry_cost
from modernllm.precision import Precision
from modernllm.quantities import Count, Positive
from modernllm.scripting import main

TRAIN = Path(__file__).resolve().parents[1] / "train.py"


def steps(sizes: Sequence[str], precisions: Sequence[Precision], rounds: int, seconds: float, format: str) -> None:
    rows = []
    for size in sizes:
        for precision in precisions:
            for row in compare_steps(size, precision, rounds, seconds):
                rows.append(row)
                if format == "text":
                    print(
                        f"{row['size']:<6} {row['precision']}  {row['name']:<24} ours {row['ours']:>7,.0f}  theirs "
                        f"{row['theirs']:>7,.0f} tokens/s  ratio {row['ratio']:.3f}  "
                        f"({row['lowest']:.3f} to {row['highest']:.3f})"
                    )
    if format == "json":
        print(json.dumps({"rows": rows}, indent=2))


def costs(sizes: Sequence[str], rounds: int, format: str) -> None:
    rows = [telemetry_cost(size, "default", rounds) for size in sizes]
    for row in rows if format == "text" else []:
        print(
            f"{row['size']:<6} telemetry={row['telemetry']} adds {row['cost']:.1%} to a step of "
            f"{row['step_seconds']:.4f} s ({row['lowest']:.1%} to {row['highest']:.1%} over {rounds} rounds)"
        )
    if format == "json":
        print(json.dumps({"rows": rows}, indent=2))


def sweeps(runs: int, seconds: float, format: str) -> None:
    row = compare_sweeps([sys.executable, str(TRAIN)], runs, seconds)
    print(json.dumps({"rows": [row]}, indent=2) if format == "json" else in_words(row))


def in_words(row: dict[str, Any]) -> str:
    return (
        f"{row['runs']} runs of {row['steps']} steps on {row['cores']} cores: {row['together']:.1f} s as a sweep, "
        f"{row['apart']:.1f} s one after another  ratio {row['ratio']:.3f}\n"
        f"processor time: {row['processor_together']:.1f} s and {row['processor_apart']:.1f} s\n"
        f"memory of a worker: {row['worker_mb']:.0f} MB with its part of what is shared, "
        f"{row['worker_private_mb']:.0f} MB of its own"
    )


def benchmark(
    what: Literal["step", "telemetry", "sweep"],
    /,
    *,
    sizes: list[Literal["nano", "micro", "mini"]] = ["nano", "micro"],  # noqa: B006 (shown, never changed)
    precisions: list[Literal["fp32", "bf16"]] = ["fp32"],  # noqa: B006
    rounds: Count = 7,
    runs: Count = 16,
    seconds: Positive | None = None,
    format: Literal["text", "json"] = "text",
) -> None:
    """`step`: tokens/s of one training step on one CPU thread, our trainer over a plain loop of the same model, a
    hand-written GPT-2, Hugging Face's GPT-2 and LLaMA, and an x-transformers decoder, each beside ours of the same
    design, taking turns in one process, `seconds` (1) each in every round. A ratio above 1 says that ours is faster;
    `lowest` and `highest` are over the rounds.

    `telemetry`: what telemetry=default adds to a step, as a share, measured against telemetry=none in turns.

    `sweep`: so many nano runs of about `seconds` (5) each, with -m and as `python train.py` one after another, start-up
    included. A ratio below 1 says that the sweep is faster.
    """
    if what == "step":
        steps(sizes, precisions, rounds, seconds or 1.0, format)
    elif what == "telemetry":
        costs(sizes, rounds, format)
    else:
        sweeps(runs, seconds or 5.0, format)


if __name__ == "__main__":
    raise SystemExit(main(benchmark))
