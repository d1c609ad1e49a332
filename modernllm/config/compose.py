"""`configs/train.yaml`, its groups and the overrides become one configuration, or one `ConfigError`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.override_parser.types import Override, Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from modernllm.config.errors import ConfigError
from modernllm.config.overrides import is_group, misuse, parse, unknown_keys
from modernllm.config.tree import CONFIG_DIR, PRIMARY, default_choices, read_tree

__all__ = ["CONFIG_DIR", "choices", "compose", "compose_with_choices", "default_choices"]

Folders = Sequence[str | Path]


def compose(overrides: Sequence[str], config_dirs: Folders = ()) -> DictConfig:
    """The configuration of one run, without the `hydra` node. `config_dirs` add choices and groups."""
    return compose_with_choices(overrides, config_dirs)[0]


def choices(overrides: Sequence[str], config_dirs: Folders = ()) -> dict[str, str | None]:
    """Group -> the choice composed, also where another choice picked it (`placement` picks `readout`)."""
    return compose_with_choices(overrides, config_dirs)[1]


def compose_with_choices(
    overrides: Sequence[str], config_dirs: Folders = ()
) -> tuple[DictConfig, dict[str, str | None]]:
    """Both at once, where composing twice would count."""
    cfg = composition(overrides, config_dirs)
    chosen = dict(cfg.hydra.runtime.choices)
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg, {group: name for group, name in chosen.items() if not group.startswith("hydra/")}


def existing(config_dirs: Folders) -> list[Path]:
    """ConfigError names a folder that is not there."""
    for folder in config_dirs:
        if not Path(folder).is_dir():
            raise ConfigError(f"{folder}: no such folder to look for configurations in")
    return [Path(folder).resolve() for folder in config_dirs]


def composition(overrides: Sequence[str], config_dirs: Folders) -> DictConfig:
    """With the `hydra` node. Raises only `ConfigError`."""
    folders = existing(config_dirs)
    parsed = parse(overrides, read_tree([CONFIG_DIR, *folders]))
    search_path = [f"file://{folder}" for folder in folders]
    for override in parsed:
        if override.key_or_group == "hydra.searchpath":
            search_path += _search_path(override)
            folders += existing([e.removeprefix("file://") for e in _search_path(override) if "pkg://" not in e])
    tree = read_tree([CONFIG_DIR, *folders])
    problems = [problem for override in parsed if (problem := misuse(override, tree))]
    sound = [override for override in parsed if not misuse(override, tree)]
    keys = [o for o in sound if not o.is_hydra_override() and not is_group(o, tree)]
    others = [override for override in sound if override not in keys]
    if problems or any(override.is_add() or override.is_force_add() for override in keys):
        problems += unknown_keys(keys, plain(_hydra(others, search_path)), tree)
    if problems:
        raise ConfigError.of(problems)
    try:
        return _hydra(parsed, search_path)
    except ConfigError:
        if keys:  # Hydra stops at the first and knows no near ones; composing again is slow, so only now
            problems += unknown_keys(keys, plain(_hydra(others, search_path)), tree)
        if problems:
            raise ConfigError.of(problems) from None
        raise


def _search_path(override: Override) -> list[str]:
    value: Any = override.value()
    if not isinstance(value, list) or not all(isinstance(entry, str) for entry in value):
        raise ConfigError(f"{override.input_line}: should be a list of folders, as hydra.searchpath=[file://mine]")
    return value


def plain(cfg: DictConfig) -> dict[str, Any]:
    """Without the `hydra` node, interpolations as they stand."""
    found = OmegaConf.to_container(cfg)
    assert isinstance(found, dict)
    return {str(key): value for key, value in found.items() if key != "hydra"}


def _hydra(overrides: Sequence[Override], search_path: list[str]) -> DictConfig:
    texts = [o.input_line or "" for o in overrides if o.key_or_group != "hydra.searchpath"]
    if search_path:
        quoted = ",".join(QuotedString(entry, Quote.single).with_quotes() for entry in search_path)
        texts.append(f"hydra.searchpath=[{quoted}]")
    try:
        with initialize_config_dir(str(CONFIG_DIR), job_name=Path(PRIMARY).stem, version_base="1.3"):
            return hydra_compose(PRIMARY, texts, return_hydra_config=True)
    except (HydraException, OmegaConfBaseException, yaml.YAMLError, ValueError) as error:
        raise ConfigError(_in_words(error)) from None


def _in_words(error: BaseException) -> str:
    """Hydra's own text without its advertisements, with the cause where Hydra wraps one."""
    lines = []
    for text in (str(error), str(error.__cause__ or "")):
        for line in text.splitlines():
            if line.startswith(("Search path", "Config search path", "See http", "Set the environment")):
                break
            if line.strip() not in ("", "full_key:") and "object_type=" not in line:
                lines.append(line.rstrip())
    return "\n".join([line if i == 0 else f"  {line.strip()}" for i, line in enumerate(lines)])
