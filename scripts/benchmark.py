"""How fast we are, against others in turn: `python scripts/benchmark.py step`."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OMP_NUM_THREADS", "1")

import json
from typing import Literal

from modernllm.benchmark.step import compare_steps
from modernllm.quantities import Count, Positive
from modernllm.scripting import main


def benchmark(
    what: Literal["step"],
    /,
    *,
    sizes: list[Literal["nano", "micro", "mini"]] = ["nano", "micro"],  # noqa: B006 (shown, never changed)
    precisions: list[Literal["fp32", "bf16"]] = ["fp32"],  # noqa: B006
    rounds: Count = 7,
    seconds: Positive = 1.0,
    format: Literal["text", "json"] = "text",
) -> None:
    """Tokens/s of one training step on one CPU thread: our trainer over a plain loop of the same model, a hand-written
    GPT-2, Hugging Face's GPT-2 and LLaMA, and an x-transformers decoder, taking turns in one process. A ratio above 1
    says that ours is faster; `lowest` and `highest` are over the rounds.
    """
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


if __name__ == "__main__":
    raise SystemExit(main(benchmark))
