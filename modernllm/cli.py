"""The command line: every job is checked before the first one starts, then Hydra hands each to `experiment.run`."""

from __future__ import annotations

import io
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from modernllm.config.compose import CONFIG_DIR, choices, compose_with_choices, default_choices, expand
from modernllm.config.errors import ConfigError

if TYPE_CHECKING:
    from modernllm.experiment import Asked
    from modernllm.runs.record import Run

FAILED, MISUSED = 1, 2
LEADING = ("family", "arch", "size", "placement")
LOG_WIDTH = 160
"""Columns of a table that is no terminal's: the 80 that are assumed there cut names short."""
Expected = Mapping[tuple[str, ...], Mapping[str, str | None]]
"""The choice in every group that follows from the leading ones."""


def main() -> int:
    """Read sys.argv; the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ▁ or é is no reason to lose a run
    words = get_args_parser().parse_args()
    directories = [words.config_dir] if words.config_dir else []
    if words.help:
        from modernllm.config.help import help_text

        print(help_text(directories))
        return 0
    many = words.multirun or "hydra.mode=MULTIRUN" in words.overrides
    try:
        jobs = expand(words.overrides, directories) if many else [words.overrides]
        plans = [compose_with_choices(job, directories) for job in jobs]
        if words.cfg or words.info or words.hydra_help or words.shell_completion:
            run_hydra(lambda cfg: None)
            return 0
        from modernllm.config.check import check

        for cfg, _ in plans:
            check(cfg)
        expected = {leading(chosen): choices(leading(chosen), directories) for _, chosen in plans}
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return MISUSED
    done: list[Done] = []
    run_hydra(lambda cfg: done.append(job(cfg, expected)))
    return end_of_sweep(done) if many else end_of_run(done[0])


def run_hydra(task: Callable[[DictConfig], None]) -> None:
    """Let Hydra read the command line again, and do `task` for every job that it finds there."""
    hydra.main(version_base="1.3", config_path=str(CONFIG_DIR), config_name="train")(task)()


def leading(chosen: Mapping[str, str | None]) -> tuple[str, ...]:
    """The overrides that pick other choices: a readout that belongs to its placement is nothing to name."""
    return tuple(f"{group}={chosen[group]}" for group in LEADING if chosen.get(group))


@dataclass(frozen=True)
class Done:
    """One job of the command line: what was asked, and its run, or why there is none."""

    overrides: Mapping[str, str]
    code: int
    run: Run | None = None
    reason: str = ""


def job(cfg: DictConfig, expected: Expected) -> Done:
    """One run. An error is told and counted, and never keeps the other jobs of a sweep from running."""
    from modernllm import experiment
    from modernllm.report.summary import result
    from modernllm.runs.directory import RunningElsewhere

    os.chdir(HydraConfig.get().runtime.cwd)  # paths are relative to where the command was given
    words = asked(expected)
    try:
        code, run = experiment.run(cfg, words)
    except KeyboardInterrupt:
        raise SystemExit(experiment.SIGNALLED + signal.SIGINT) from None
    except (ValueError, OSError, RunningElsewhere) as error:
        print(f"error: {error}", file=sys.stderr)
        return Done(words.overrides, FAILED, reason=str(error))
    except (Exception, SystemExit) as error:  # whoever leaves the program from inside a run has not finished it
        traceback.print_exc()
        return Done(words.overrides, FAILED, reason=f"{type(error).__name__}: {error}")
    print(*result(run), sep="\n")
    if code > experiment.SIGNALLED:
        raise SystemExit(code)  # a sweep stops here too
    return Done(words.overrides, code, run)


def asked(expected: Expected) -> Asked:
    """What the command line says of the job that Hydra is about to run."""
    from modernllm.experiment import Asked

    hydra_config = HydraConfig.get()
    chosen = {group: choice for group, choice in hydra_config.runtime.choices.items() if choice and "/" not in group}
    pairs = (override.lstrip("+").partition("=") for override in hydra_config.overrides.task)
    implied = dict(expected[leading(chosen)]) | {group: default_choices()[group] for group in LEADING}
    return Asked(chosen, implied, {key: value for key, _, value in pairs})


def end_of_run(done: Done) -> int:
    if done.run is not None:
        from modernllm.report.summary import epilogue

        print(*epilogue(done.run), sep="\n")
    return done.code


def end_of_sweep(jobs: list[Done]) -> int:
    """Print the table of the runs, and what failed and why; non-zero if any did. A run that diverged is a result."""
    import rich.console

    from modernllm.report.table import sweep_suggestions, sweep_table

    width = None if sys.stdout.isatty() else LOG_WIDTH
    console = rich.console.Console(highlight=False, width=width)
    runs = [job.run for job in jobs if job.run is not None]
    failed = [job for job in jobs if job.run is None]
    if runs:
        console.print()
        sweep_table(runs, console)
    for job in failed:
        words = " ".join(f"{key}={value}" for key, value in job.overrides.items())
        console.print(f"failed: {words}: {job.reason}", style="bold red", markup=False, emoji=False, soft_wrap=True)
    print(*sweep_suggestions(runs, sys.argv[1:]), sep="\n")
    return FAILED if failed else 0
