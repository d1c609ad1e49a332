"""The text of `python train.py --help`: every group with its choices, every key with its value."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from modernllm.config.compose import compose_with_choices
from modernllm.config.settings import Settings
from modernllm.config.tree import CONFIG_DIR, PRIMARY, Tree, default_choices, read_tree, sections
from modernllm.config.values import shown

WIDTH = 100
USAGE = """\
python train.py [group=choice ...] [key=value ...]      train one model
python train.py -m [group=a,b ...] [key=1,2 ...]        train every combination

Examples
  python train.py size=nano norm=layernorm
  python train.py -m placement=pre,post optimizer.lr=1e-3,3e-3 seed=0,1,2
  python train.py -m 'norm=glob(*)' size=nano            every choice of a group
  python train.py norm=layernorm --cfg job               show the configuration, run nothing

Options
  -m, --multirun     run every combination of the comma-separated values
  --cfg job          print the composed configuration (--resolve: without references)
  --config-dir DIR   further choices of your own: DIR/norm/mine.yaml is norm=mine
  --hydra-help       what Hydra itself can do
  --help             this text
"""


def help_text(config_dirs: Sequence[str | Path] = ()) -> str:
    """At most 100 columns wide. Needs no torch."""
    tree = read_tree([CONFIG_DIR, *map(Path, config_dirs)])
    cfg, chosen = compose_with_choices([], config_dirs)
    plain: Any = OmegaConf.to_container(cfg)
    parts = [
        USAGE,
        "Groups (* is chosen unless you choose)",
        *_groups(tree, chosen),
        "\nRun",
        *_settings(plain),
        "\nKeys, as section.key=value",
        *(line for section in sections() for line in _section(section, plain[section])),
    ]
    return "\n".join(parts)


def _groups(tree: Tree, chosen: dict[str, str | None]) -> Iterator[str]:
    left = max(map(len, tree))
    middle = max(len(name) for choices in tree.values() for name in choices)
    for group, choices in tree.items():
        for i, (name, choice) in enumerate(choices.items()):
            label = (group if group in default_choices() else f"+{group}") if i == 0 else ""
            mark = "*" if chosen.get(group) == name else " "
            start = f"  {label:<{left}}  {mark} {name:<{middle}}  "
            yield from _wrapped(start, re.sub(r" \(default\)|; default(?=\))|(?<=\()default; ", "", choice.summary))


def _settings(plain: dict[str, Any]) -> Iterator[str]:
    comments = dict(re.findall(r"^(\w+):[^#\n]*# *(.*)$", (CONFIG_DIR / PRIMARY).read_text("utf-8"), re.MULTILINE))
    texts = {key: f"{key}={shown(plain[key])}" for key in Settings.__dataclass_fields__}
    left = max(map(len, texts.values()))
    for key, text in texts.items():
        yield from _wrapped(f"  {text:<{left}}  ", comments.get(key, ""))


def _section(section: str, node: dict[str, Any]) -> Iterator[str]:
    values = [f"{key}={shown(value)}" for key, value in _leaves(node) if value is not None]
    unset = [key for key, value in _leaves(node) if value is None]
    if unset:
        values.append(f"({', '.join(unset)}: not set)")
    if values:
        yield from _wrapped(f"  {section:<{max(map(len, sections()))}}  ", " ".join(values))


def _leaves(node: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        elif not key.startswith("_"):
            yield f"{prefix}{key}", value


def _wrapped(start: str, text: str) -> list[str]:
    lines = textwrap.wrap(text, WIDTH - len(start), break_long_words=False, break_on_hyphens=False) or [""]
    return [((start if i == 0 else " " * len(start)) + line).rstrip() for i, line in enumerate(lines)]
