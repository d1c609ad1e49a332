"""The words of one command as its runs: what each is asked for, and what is done with them together."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from hydra.core.override_parser.types import Override
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from modernllm.config.build import build
from modernllm.config.check import COMMAND, check_nodes, check_settings
from modernllm.config.compose import Folders, compose_with_choices, composition, existing, plain
from modernllm.config.errors import ConfigError
from modernllm.config.overrides import is_group, misuse, parse
from modernllm.config.tree import CONFIG_DIR, Tree, read_tree
from modernllm.sweep.axes import Axis, read_axis


@dataclass(frozen=True)
class Command:
    """`jobs` are the overrides of each run, `settings` what the command does with them (COMMAND), `many` whether it is
    a sweep, if only of one run.
    """

    jobs: list[list[str]]
    many: bool
    settings: dict[str, Any]


def read_command(overrides: Sequence[str], many: bool, config_dirs: Folders = ()) -> Command:
    """A single run's words are one job as they stand, with -m they are axes. No job has the command's own words."""
    tree = read_tree([CONFIG_DIR, *existing(config_dirs)])
    parsed = parse(overrides, tree)
    own = [override for override in parsed if is_own(override)]
    if swept := [override.input_line for override in own if override.is_sweep_override()]:
        raise ConfigError(f"{swept[0]}: says what is done with all runs together, so it has one value")
    if many or _many_in_a_file(parsed, tree, config_dirs):
        many, (jobs, cfg) = True, _jobs(parsed, tree, config_dirs)
    else:
        jobs = [[override.input_line or "" for override in parsed if override not in own]]
        cfg = composition([override.input_line or "" for override in own], config_dirs)
    settings = {key: value for key, value in plain(cfg).items() if key in COMMAND}
    check_nodes({"executor": settings["executor"]})
    check_settings(settings)
    return Command(jobs, many, settings)


def is_own(override: Override) -> bool:
    """Whether it speaks of the command and not of a run."""
    return override.key_or_group.partition(".")[0] in COMMAND


def _many_in_a_file(parsed: Sequence[Override], tree: Tree, config_dirs: Folders) -> bool:
    """Whether a configuration of the user's own, added as `+group=choice`, is a sweep by itself."""
    added = [override.input_line or "" for override in parsed if override.is_add() and is_group(override, tree)]
    return bool(added) and composition(added, config_dirs).hydra.mode == RunMode.MULTIRUN


def expand(overrides: Sequence[str], config_dirs: Folders = ()) -> list[list[str]]:
    """The jobs of `-m`, as overrides for `compose`: all can be checked before one starts.

    `sweep=` says how the axes make jobs; those of `hydra.sweeper.params` come before those of the command line. As with
    Hydra's basic sweeper, equal jobs are not merged.
    """
    tree = read_tree([CONFIG_DIR, *existing(config_dirs)])
    return _jobs(parse(overrides, tree), tree, config_dirs)[0]


def _jobs(parsed: Sequence[Override], tree: Tree, config_dirs: Folders) -> tuple[list[list[str]], DictConfig]:
    """The jobs, and the configuration that the words which are the same for all of them make."""
    if theirs := [o.input_line for o in parsed if o.key_or_group in ("hydra/launcher", "hydra/sweeper")]:
        raise ConfigError(
            f"{theirs[0]}: sweeps are planned here: sweep=... says which runs, executor=... who runs them"
        )
    fixed = [override.input_line or "" for override in parsed if not override.is_sweep_override()]
    cfg = composition(fixed, config_dirs)
    params = cfg.hydra.sweeper.get("params") or {}
    axes: dict[str, Axis] = {}
    for override in [*parse([f"{key}={value}" for key, value in params.items()], tree), *parsed]:
        if not is_own(override) and (override.is_sweep_override() or not override.is_hydra_override()):
            axis = read_axis(override, tree)
            axes[axis.key] = axis
    hydras = [text for text in fixed if text.lstrip("+~").startswith(("hydra.", "hydra/"))]
    sweep = plain(cfg)["sweep"]
    check_nodes({"sweep": sweep})
    return [[*hydras, *job] for job in build(sweep, "sweep")(list(axes.values()))], cfg


class Composer:
    """`compose_with_choices` for the many jobs of one command.

    Hydra takes a tenth of a second each, nearly all of it for the groups. Jobs that choose the same ones share that:
    what only sets keys is laid over a copy, as Hydra itself does it at the end.
    """

    def __init__(self, config_dirs: Folders = ()):
        self._dirs = config_dirs
        self._tree = read_tree([CONFIG_DIR, *existing(config_dirs)])
        self._composed: dict[tuple[str, ...], tuple[DictConfig, dict[str, str | None]]] = {}

    def __call__(self, overrides: Sequence[str]) -> tuple[DictConfig, dict[str, str | None]]:
        parsed = parse(overrides, self._tree)
        keys = [override for override in parsed if self._sets_a_key(override)]
        others = [override for override in parsed if override not in keys]
        words = tuple(override.input_line or "" for override in others)
        if any(misuse(override, self._tree) for override in parsed) or _meet(keys, others):
            return compose_with_choices(overrides, self._dirs)  # which says what is wrong
        if words not in self._composed:
            self._composed[words] = compose_with_choices(words, self._dirs)
        cfg, chosen = self._composed[words]
        cfg = deepcopy(cfg)
        try:
            for override in keys:
                OmegaConf.update(cfg, override.key_or_group, override.value(), merge=True)
        except OmegaConfBaseException:
            return compose_with_choices(overrides, self._dirs)
        return cfg, dict(chosen)

    def _sets_a_key(self, override: Override) -> bool:
        changes = not (override.is_add() or override.is_force_add() or override.is_delete())
        return changes and not override.is_hydra_override() and not is_group(override, self._tree)


def _meet(keys: Sequence[Override], others: Sequence[Override]) -> bool:
    """Whether `+key=...` writes where another override writes: their order counts."""
    added = [other.key_or_group for other in others if other.is_add() or other.is_force_add()]
    return any(_is_within(key.key_or_group, other) for key in keys for other in added)


def _is_within(one: str, other: str) -> bool:
    return f"{one}.".startswith(f"{other}.") or f"{other}.".startswith(f"{one}.")
