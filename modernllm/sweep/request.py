"""What overrides ask for: the configuration of one run, and the words that it was asked for in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from modernllm.config.command import Composer
from modernllm.config.compose import choices, default_choices

if TYPE_CHECKING:
    from modernllm.preparation import Asked

LEADING = ("family", "arch", "size", "placement")


class Requests:
    """`(overrides, telling) -> (configuration, Asked)` of one run. `telling` are the overrides that name it among its
    siblings, all of them unless given. ConfigError where there is no such run.
    """

    def __init__(self, config_dirs: tuple[str, ...] = ()):
        self._composer, self._dirs = Composer(config_dirs), config_dirs

    def __call__(self, overrides: Sequence[str], telling: Sequence[str] | None = None) -> tuple[dict[str, Any], Asked]:
        from modernllm.config.check import check

        cfg, chosen = self._composer(overrides)
        check(cfg)
        return without_settings(cfg), asked(chosen, overrides if telling is None else telling, self._dirs)


def asked(chosen: Mapping[str, str | None], overrides: Sequence[str], directories: tuple[str, ...] = ()) -> Asked:
    """What a command line says of one run, and what would be expected there without its words."""
    from modernllm.preparation import Asked

    named = {group: choice for group, choice in chosen.items() if choice and "/" not in group}
    leading = tuple(f"{group}={chosen[group]}" for group in LEADING if chosen.get(group))
    implied = dict(_expected(leading, directories)) | {group: default_choices()[group] for group in LEADING}
    pairs = (word.lstrip("+").partition("=") for word in overrides if not word.lstrip("+~").startswith("hydra"))
    return Asked(named, implied, {key: value for key, _, value in pairs})


@cache
def _expected(leading: tuple[str, ...], directories: tuple[str, ...]) -> dict[str, str | None]:
    """The choice in every group that follows from the leading ones: a readout that belongs to its placement."""
    return choices(leading, directories)


def without_settings(cfg: DictConfig) -> dict[str, Any]:
    """What a command does with its runs is no part of any of them."""
    from modernllm.config.build import resolve
    from modernllm.config.check import COMMAND

    return {key: value for key, value in resolve(cfg).items() if key not in COMMAND}


def one_checkpoint(config: dict[str, Any], words: Asked) -> dict[str, Any]:
    """The runs of a sweep keep one checkpoint each, unless the command line says how many."""
    if "trainer.keep" not in words.overrides:
        config["trainer"]["keep"] = 1
    return config
