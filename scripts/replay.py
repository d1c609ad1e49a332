"""Do the step again at which a run stopped being finite: `python scripts/replay.py <run>`."""

import modernllm.startup  # noqa: F401 (before all others)

from pathlib import Path
from typing import Literal

from modernllm.scripting import main

REPRODUCED, ELSEWHERE = 0, 3
"""Exit codes: the recorded place was found again, or it was not."""


def replay(run: str, /, *, device: Literal["cpu", "cuda", "mps"] = "cpu", allow_targets: list[str] = []) -> int:  # noqa: B006
    """Build the model of a run's folder (or of one nonfinite/step-*.pt out of it), load what it had when a step was not
    finite, do that step again operator by operator, and print the way from the first bad operation to the loss. It says
    so if the step is finite on this machine, and exits with 3 where it does not find the recorded place. Classes
    outside modernllm and torch that the configuration names are named in allow_targets.
    """
    from modernllm.nonfinite.replay import lines
    from modernllm.nonfinite.replay import replay as done_again
    from modernllm.precision import pick_device

    done = done_again(Path(run).expanduser(), pick_device(device), allow_targets)
    print(*lines(done), sep="\n")
    return REPRODUCED if done.reproduced else ELSEWHERE


if __name__ == "__main__":
    raise SystemExit(main(replay))
