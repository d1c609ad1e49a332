"""How much seeds alone move the loss here: `python scripts/noise_floor.py size=nano`, or claim=rmsnorm."""

from __future__ import annotations

import modernllm.startup  # noqa: F401 (before all others)

import sys
from pathlib import Path
from typing import Annotated, Literal

from annotated_types import Ge

from modernllm.claims.flow import Incomplete
from modernllm.claims.noise import measure, of_claim, of_overrides
from modernllm.executor.local import LocalExecutor
from modernllm.quantities import Count
from modernllm.scripting import main


def noise_floor(
    *overrides: str,
    claim: str = "",
    seeds: Annotated[int, Ge(3)] = 8,
    out: str = "runs",
    workers: Count | Literal["auto"] = "auto",
) -> int:
    """Train one baseline at so many seeds, print the spread of its loss and keep it in out=..., where plans find it.

    The baseline is what the overrides name, or the reference of a claim.
    """
    if claim and overrides:
        raise ValueError(f"claim={claim} says what is run; leave out {' '.join(overrides)}")
    folder = Path(out).expanduser()
    plan = of_claim(claim, seeds, folder) if claim else of_overrides(overrides, seeds, folder)
    try:
        floor = measure(plan, LocalExecutor(workers=workers, per_gpu=1), folder)
    except Incomplete as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 130
    print(*floor.lines, sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(noise_floor))
