"""The story of one run: `python scripts/inspect_run.py runs/default/<run>`."""

import modernllm.startup  # noqa: F401 (before all others)

from modernllm.report.inspection import story
from modernllm.runs.record import load_run
from modernllm.scripting import main


def inspect(run: str, /) -> None:
    """How a run ended, its curve, what it looks like by depth, its events, the symptoms that it shows with what was
    measured, what to try and what does not help.
    """
    for line in story(load_run(run)):
        print(line)


if __name__ == "__main__":
    raise SystemExit(main(inspect))
