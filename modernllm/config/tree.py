"""The configuration folders read as files: which groups there are, their choices, and a line about each."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from omegaconf import OmegaConf

from modernllm.config.errors import ConfigError

PRIMARY = "train.yaml"
APART = ("hydra", "claim", "suite")
"""Folders that are no groups of a run's configuration."""


def _config_dir() -> Path:
    """In the package (wheel) or beside it (clone); `pkg://` finds the stale copy of an editable install."""
    here = Path(__file__).resolve()
    for folder in (here.parents[1] / "configs", here.parents[2] / "configs"):
        if (folder / PRIMARY).is_file():
            return folder
    raise ConfigError(f"no configs/{PRIMARY} beside {here.parents[1]}: the installation is incomplete")


CONFIG_DIR = _config_dir()


@dataclass(frozen=True)
class Choice:
    """One YAML file of a group. `place` is where its `_target_` stands: one that sets more than itself has the package
    `_global_`.
    """

    name: str
    package: str
    place: str
    summary: str
    target: str | None


Tree = dict[str, dict[str, Choice]]


def read_choice(path: Path, group: str) -> Choice:
    """The header `# @package model.norm`, the first other comment, and the first `_target_`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    comments = [line.removeprefix("#").strip() for line in lines if line.startswith("#")]
    package = next((c.removeprefix("@package").strip() for c in comments if c.startswith("@package")), group)
    summary = next((c for c in comments if c and not c.startswith("@package")), "")
    text = "\n".join(lines)
    target = re.search(r"^\s*_target_:\s*([\w.]+)", text, re.MULTILINE)
    in_the_model = re.search(rf"^model:\n(?:  .*\n)*?  {re.escape(group)}:\n    _target_:", text, re.MULTILINE)
    package = package.replace("/", ".")
    place = f"model.{group}" if in_the_model else package
    return Choice(path.stem, package, place, summary, target[1] if target else None)


def read_tree(folders: Sequence[Path]) -> Tree:
    """Group -> choice, in the order of `train.yaml` and then of the alphabet; the first folder wins."""
    found: Tree = {group: {} for group in default_choices()}
    for folder in folders:
        for path in sorted(folder.rglob("*.yaml")):
            group = path.parent.relative_to(folder).as_posix()
            if group != "." and group.partition("/")[0] not in APART:
                found.setdefault(group, {}).setdefault(path.stem, read_choice(path, group))
    return {group: dict(sorted(choices.items())) for group, choices in found.items()}


@cache
def _defaults() -> dict[str, str | None]:
    found = {}
    for entry in OmegaConf.load(CONFIG_DIR / PRIMARY).defaults:
        if not isinstance(entry, str):
            for key, choice in entry.items():
                group = str(key).split()[-1].lstrip("/")
                if group.partition("/")[0] not in APART:
                    found[group] = choice
    return found


def default_choices() -> dict[str, str | None]:
    """The choice of every group in `train.yaml`, in its order."""
    return dict(_defaults())


@cache
def sections() -> tuple[str, ...]:
    """The keys of the root that hold a group's choice: model, init, trainer, ..."""
    tree = read_tree([CONFIG_DIR])
    packages = [choice.package for group in default_choices() for choice in tree[group].values()]
    return tuple(dict.fromkeys(p.partition(".")[0] for p in packages if p != "_global_"))
