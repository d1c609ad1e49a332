"""Free the disk of checkpoints that nobody needs, never of a record: `python scripts/prune.py runs/default`."""

from __future__ import annotations

import modernllm.startup  # noqa: F401 (before all others)

from pathlib import Path

from modernllm.runs.directory import RunningElsewhere
from modernllm.runs.prune import Keep, free, prunable
from modernllm.runs.studies import runs_in
from modernllm.scripting import main


def prune(study: str, /, *, keep: Keep = "weights", really: bool = False) -> int:
    """Say what would be freed in a study's finished runs, and free it with really=true.

    keep=weights keeps the best and the last weights of each run, keep=newest a checkpoint to go on from as well,
    keep=nothing neither. Metrics, events, configuration and status always stay.
    """
    freed = list(prunable(runs_in(Path(study).expanduser()), keep))
    total = number = 0
    for each in freed:
        print(f"{each.bytes / 1e6:9.1f} MB  {each.entry.path.name}: {', '.join(path.name for path in each.files)}")
        size = each.bytes
        try:
            if really:
                free(each)
        except (RunningElsewhere, OSError) as error:
            print(f"! left alone: {error}")
        else:
            total, number = total + size, number + 1
    word = "freed" if really else "to free with really=true"
    print(f"{total / 1e6:9.1f} MB in {number} run{'s' * (number != 1)} {word}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(prune))
