"""The command line: all runs are planned before the first one starts; one runs here, a sweep's each in a process."""

from __future__ import annotations

import io
import signal
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import hydra
from hydra._internal.utils import get_args_parser
from omegaconf import DictConfig

from modernllm.config.command import Command, Composer, read_command
from modernllm.config.compose import CONFIG_DIR, existing
from modernllm.config.errors import ConfigError
from modernllm.config.overrides import with_full_key
from modernllm.config.tree import read_tree
from modernllm.scripting import stop_writing
from modernllm.sweep.request import asked, one_checkpoint, without_settings

if TYPE_CHECKING:
    from modernllm.preparation import Asked
    from modernllm.sweep.plan import Plan

FAILED, MISUSED = 1, 2
LOG_WIDTH = 160
"""Columns of a table that is no terminal's: the 80 that are assumed there cut names short."""


def main() -> int:
    """Read sys.argv; the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ▁ or é is no reason to lose a run
    words, unknown = get_args_parser().parse_known_args()
    if unknown:
        told = "no such option; an override has no dashes, as size=nano; --help has the options"
        print(f"error: {unknown[0]}: {told}", file=sys.stderr)
        return MISUSED
    directories = (words.config_dir,) if words.config_dir else ()
    if words.help:
        from modernllm.config.help import help_text

        try:
            print(help_text(directories), flush=True)
        except BrokenPipeError:
            stop_writing()
        return 0
    many = words.multirun or "hydra.mode=MULTIRUN" in words.overrides
    try:
        command = read_command(words.overrides, many, directories)
        composer = Composer(directories)
        composed = [composer(job) for job in command.jobs]
        if words.cfg or words.info or words.hydra_help or words.shell_completion:
            tree = read_tree([CONFIG_DIR, *existing(directories)])
            sys.argv[1:] = [with_full_key(word, tree) for word in sys.argv[1:]]  # Hydra reads them again
            hydra.main(version_base="1.3", config_path=str(CONFIG_DIR), config_name="train")(lambda cfg: None)()
            return 0
        check_all([cfg for cfg, _ in composed])
        jobs = [
            (cfg, asked(chosen, job, directories)) for (cfg, chosen), job in zip(composed, command.jobs, strict=True)
        ]
        if command.many or command.settings["plan"]:
            return sweep(jobs, command, words.overrides)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return MISUSED
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    return one_run(*jobs[0])


def check_all(configs: Sequence[DictConfig]) -> None:
    """ConfigError has the problems of all of them, each once."""
    from modernllm.config.check import check

    problems: list[str] = []
    for cfg in configs:
        try:
            check(cfg)
        except ConfigError as error:
            problems += str(error).splitlines()
    if problems:
        raise ConfigError.of(list(dict.fromkeys(problems)))


def one_run(cfg: DictConfig, words: Asked) -> int:
    """A run in this process: its output is on the screen, and it can be debugged."""
    from modernllm import experiment
    from modernllm.preparation import settle
    from modernllm.report.summary import epilogue, result
    from modernllm.runs.directory import RunningElsewhere
    from modernllm.sweep.plan import Planner

    composed = without_settings(cfg)
    try:
        config, _, _ = experiment.intend(composed, words)
        settle(config)
        Planner().build(config)  # what cannot be built is told before a text is read
        code, run = experiment.run(composed, words)
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return MISUSED
    except KeyboardInterrupt:
        return experiment.SIGNALLED + signal.SIGINT
    except (ValueError, OSError, RunningElsewhere) as error:
        print(f"error: {error}", file=sys.stderr)
        return FAILED
    except (Exception, SystemExit):  # whoever leaves the program from inside a run has not finished it
        traceback.print_exc()
        return FAILED
    try:
        print(*result(run), *([] if code > experiment.SIGNALLED else epilogue(run)), sep="\n", flush=True)
    except BrokenPipeError:
        stop_writing()
    return code


def sweep(jobs: list[tuple[DictConfig, Asked]], command: Command, words: Sequence[str]) -> int:
    """Plan, run what is to be run, print the table; non-zero if a run failed. A run that diverged is a result."""
    import rich.console

    from modernllm.config.build import build
    from modernllm.experiment import SIGNALLED
    from modernllm.report.live import LiveTable
    from modernllm.sweep.notes import notes, summary
    from modernllm.sweep.plan import make_plan

    console = rich.console.Console(highlight=False, soft_wrap=True)
    plan = make_plan(
        [(one_checkpoint(without_settings(cfg), words), words) for cfg, words in jobs],
        retry=command.settings["retry"],
        overwrite=any(cfg.overwrite for cfg, _ in jobs),
    )
    for line in (summary(plan), *(f"! {note}" for note in notes(plan))):
        console.print(line, markup=False, emoji=False)
    executor = build(command.settings["executor"], "executor")
    if command.settings["plan"]:
        from modernllm.sweep.estimate import estimate

        print(*estimate(plan, executor.places(plan.todo)), sep="\n")
        return 0
    plan.keep(words)
    stopped = None
    with LiveTable(plan.todo, len(plan.done), console) as live:
        try:
            stopped = executor(plan.todo, live) if plan.todo else None
        except KeyboardInterrupt:
            stopped = signal.SIGINT
    code = end_of_sweep(plan, live.reasons, words)
    if stopped:
        print(f"stopped; the same command{' without overwrite=true' * plan.overwrite} goes on from here")
    return SIGNALLED + stopped if stopped else code


def end_of_sweep(plan: Plan, reasons: Mapping[Path, tuple[str, str]], words: Sequence[str]) -> int:
    """The table of every run that was asked for, and what failed and why."""
    import rich.console

    from modernllm.report.table import Row, sweep_suggestions, sweep_table

    rows = [Row.read(run.path, run.asked.overrides, *reasons.get(run.path, ("", ""))) for run in plan.runs]
    print()
    sweep_table(rows, rich.console.Console(highlight=False, width=None if sys.stdout.isatty() else LOG_WIDTH))
    print(*sweep_suggestions([row.run for row in rows if row.run], ["-m", *words]), sep="\n")
    return 0 if all(row.run and row.run.status["status"] == "finished" for row in rows) else FAILED
