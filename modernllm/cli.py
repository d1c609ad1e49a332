"""The command line: every job is checked before the first one starts, then Hydra hands each to `experiment.run`."""

from __future__ import annotations

import os
import sys
import traceback
from typing import TYPE_CHECKING

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from modernllm.config.compose import CONFIG_DIR, compose, default_choices, expand
from modernllm.config.errors import ConfigError

if TYPE_CHECKING:
    from modernllm.experiment import Asked
    from modernllm.runs.record import Run

FAILED, MISUSED = 1, 2


def main() -> int:
    """Read sys.argv; the exit code."""
    words = get_args_parser().parse_args()
    directories = [words.config_dir] if words.config_dir else []
    if words.help:
        from modernllm.config.help import help_text

        print(help_text(directories))
        return 0
    try:
        jobs = expand(words.overrides) if words.multirun else [words.overrides]
        configs = [compose(job, directories) for job in jobs]
        if not (words.cfg or words.info or words.hydra_help or words.shell_completion):
            from modernllm.config.check import check

            for cfg in configs:
                check(cfg)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return MISUSED
    jobs_done: list[tuple[int, Run | None]] = []
    hydra.main(version_base="1.3", config_path=str(CONFIG_DIR), config_name="train")(
        lambda cfg: jobs_done.append(job(cfg, directories))
    )()
    if words.multirun and jobs_done:
        return end_of_sweep(jobs_done)
    return jobs_done[0][0] if jobs_done else 0


def job(cfg: DictConfig, directories: list[str]) -> tuple[int, Run | None]:
    """One run. An error is told and counted, and never keeps the other jobs of a sweep from running."""
    from modernllm import experiment
    from modernllm.runs.directory import RunningElsewhere

    os.chdir(HydraConfig.get().runtime.cwd)  # paths are relative to where the command was given
    try:
        code, run = experiment.run(cfg, asked(directories))
    except KeyboardInterrupt:
        raise SystemExit(experiment.INTERRUPTED) from None
    except (ValueError, OSError, RunningElsewhere) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED, None
    except Exception:
        traceback.print_exc()
        return FAILED, None
    if code == experiment.INTERRUPTED:
        raise SystemExit(code)  # a sweep stops here too
    return code, run


def asked(directories: list[str]) -> Asked:
    from modernllm.experiment import Asked

    hydra_config = HydraConfig.get()
    choices = {group: choice for group, choice in hydra_config.runtime.choices.items() if "/" not in group}
    pairs = (override.lstrip("+").partition("=") for override in hydra_config.overrides.task)
    return Asked(choices, default_choices(), {key: value for key, _, value in pairs})


def end_of_sweep(jobs: list[tuple[int, Run | None]]) -> int:
    """Print the table of the runs; non-zero if any failed. A run that diverged is a result."""
    import rich.console

    from modernllm.report.table import sweep_suggestions, sweep_table

    console = rich.console.Console(highlight=False)
    runs = [run for _, run in jobs if run is not None]
    if runs:
        console.rule("the sweep")
        sweep_table(runs, console)
    failed = len(jobs) - len(runs)
    if failed:
        console.print(f"{failed} of {len(jobs)} jobs failed: their errors are above", style="bold red")
    for line in sweep_suggestions(runs, sys.argv[1:]):
        console.print(line, markup=False)
    return FAILED if failed else 0
