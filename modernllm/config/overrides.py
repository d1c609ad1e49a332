"""Overrides of the command line, read by Hydra's grammar and held against what exists, before Hydra composes.

Hydra alone would say "Key 'lrr' is not in struct", accept `+typo=1`, and stop at the first problem.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException

from modernllm.config.errors import ConfigError
from modernllm.config.nearest import did_you_mean, nearest
from modernllm.config.tree import Tree, default_choices


def with_full_key(text: str, tree: Tree) -> str:
    """An override whose key begins with a group of the model, as attention.softcap=30, with the key of its place:
    model.attention.softcap=30. Any other as it stands.
    """
    short = re.match(r"([~+]*)(\w+)\.", text)
    if short and any(choice.place == f"model.{short[2]}" for choice in tree.get(short[2], {}).values()):
        return f"{short[1]}model.{text.removeprefix(short[1])}"
    return text


def parse(texts: Sequence[str], tree: Tree) -> list[Override]:
    """One `Override` a text, with its full key; all that cannot be read are named together."""
    parser, parsed, problems = OverridesParser.create(), [], []
    for text in (with_full_key(text, tree) for text in texts):
        try:
            parsed += parser.parse_overrides([text])
        except HydraException as error:
            problems.append(_unreadable(text, str(error), tree))
    if problems:
        raise ConfigError.of(problems)
    return parsed


def _unreadable(text: str, error: str, tree: Tree) -> str:
    if text.startswith("-"):
        return f"{text}: options stand before the overrides; python train.py --help lists them"
    if "=" not in text:
        chosen = [f"{group}={text}" for group in tree if text in tree[group] and text not in tree]
        return f"{text}: an override is key=value, as {' or '.join(chosen[:3]) or f'{text}=...'}"
    key, _, value = text.partition("=")
    if not re.fullmatch(r"[~+]*[\w$-]+([./@:][\w$-]+)*", key):
        return f"{text}: a key is names joined by dots, as optimizer.lr or optimizer.betas.0"
    quoted = "'" + value.strip("'\"").replace("'", "\\'") + "'"
    found = re.search(r"Unknown function '\w+'|while evaluating '.*?': (.*)", error)
    reason = (found[1] or found[0]) if found else "the value cannot be read"
    return f'{text}: {reason}; text with one of ( ) [ ] {{ }} , # or a quote in it is quoted twice: "{key}={quoted}"'


def is_group(override: Override, tree: Tree) -> bool:
    """As Hydra decides it: a mapping goes to the key even where a group has that name."""
    return override.key_or_group in tree and not isinstance(override.value(), dict)


def misuse(override: Override, tree: Tree) -> str | None:
    """What is wrong with an override by itself, whatever else is composed."""
    if override.is_hydra_override():
        return None
    if not override.key_or_group:
        return f"{override.input_line}: no key stands before ="
    if override.is_sweep_override():
        return _unmarked_sweep(override)
    if override.is_delete():
        return _deletion(override, tree)
    if is_group(override, tree):
        return _bad_choice(override, tree)
    if group := _written_to_its_place(override, tree):
        choice = nearest(override.get_value_element_as_str(), tree[group], 1)
        written = choice[0] if choice else f"... ({', '.join(tree[group])})"
        return f"{override.input_line}: a component is chosen by its group; write {group}={written}"
    return None


def _unmarked_sweep(override: Override) -> str:
    text = override.input_line or ""
    key, _, value = text.partition("=")
    return f"{text}: several values for {key} are several runs: put -m in front of the overrides" + (
        f"; one list is {key}=[{value}], one text \"{key}='{value}'\"" if "(" not in value else ""
    )


def _deletion(override: Override, tree: Tree) -> str:
    name = override.key_or_group
    if name in tree:
        return f"{override.input_line}: a group always has a choice; {_absence(name, tree)}"
    return f"{override.input_line}: a key is not removed but set: {name}=..."


def _absence(group: str, tree: Tree) -> str:
    if "none" in tree[group]:
        return f"{group}=none is its absence"
    return f"choose one of {', '.join(tree[group])}"


def _bad_choice(override: Override, tree: Tree) -> str | None:
    group, text, value = override.key_or_group, override.input_line, override.value()
    chosen, listed = override.get_value_element_as_str(), group in default_choices()
    if isinstance(value, list):
        return f"{text}: {group} takes one choice; -m {group}={','.join(map(str, value))} runs each"
    if value is None and default_choices().get(group, group) is not None:
        return f"{text}: a group always has a choice; {_absence(group, tree)}"
    if value is not None and chosen not in [*tree[group], *_nested(group, tree)]:
        place = f"<folder>/{group}/{chosen}.yaml"
        own = f"; of your own, in {place}? --config-dir <folder>, or config_dir=<folder> of a script"
        hint = did_you_mean(chosen, tree[group], 1) or (own if chosen else "")
        return f"{text}: {group} has no choice {chosen or '(nothing)'}{hint}\n{choice_table(group, tree)}"
    if override.package is not None and not _is_place(override.package, tree):
        return f"{text}: {group} cannot be placed at {override.package}; write {group}={chosen}"
    if listed and (override.is_add() or override.is_force_add()):
        return f"{text}: {group} has a choice already; write {group}={chosen}"
    if not listed and not override.is_add():
        return f"{text}: {group} is no part of train.yaml; write +{group}={chosen} to add it"
    return None


def _is_place(package: str, tree: Tree) -> bool:
    """Inside another component, as `attention@model.layers.other`; whether it has such a place Hydra says."""
    return any(package.startswith(f"{c.package}.") for choices in tree.values() for c in choices.values())


def _nested(group: str, tree: Tree) -> list[str]:
    """`group=folder/choice` reaches a group below."""
    return [f"{sub[len(group) + 1 :]}/{c}" for sub in tree if sub.startswith(f"{group}/") for c in tree[sub]]


def choice_table(group: str, tree: Tree) -> str:
    """Every choice of a group with its line, indented."""
    width = max((len(name) for name in tree[group]), default=0)
    return "\n".join(f"  {name:<{width}}  {choice.summary}".rstrip() for name, choice in tree[group].items())


def dotted(value: Any, prefix: str = "") -> Iterator[str]:
    """Every key of a nested container: `model`, `model.norm`, `model.norm.eps`, ..."""
    items: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(value, Mapping):
        items = iter(value.items())
    elif isinstance(value, list):
        items = iter(enumerate(value))
    for key, child in items:
        yield f"{prefix}{key}"
        yield from dotted(child, f"{prefix}{key}.")


def _written_to_its_place(override: Override, tree: Tree) -> str | None:
    """The group that was meant by `model.norm=layernorm` or `model/norm=layernorm`."""
    key, value = override.key_or_group.replace("/", "."), override.value()
    if isinstance(value, (dict, list)):
        return None
    for group, choices in tree.items():
        if key == group:
            return None
        if any(choice.package == key for choice in choices.values()):
            return group
        if key.rpartition(".")[2] == group and value in choices:
            return group
    return None


def unknown_keys(overrides: Sequence[Override], base: Mapping[str, Any], tree: Tree) -> Iterator[str]:
    """Overrides of keys that `base`, the composed groups, does not have.

    `+` may add what a class takes and its file leaves out; that is for `check`, which knows the class.
    """
    keys = set(dotted(base))
    parents = {key.rpartition(".")[0] for key in keys}
    for override in overrides:
        adds = override.is_add() or override.is_force_add()
        for key in _leaves(override):
            if key in keys or (adds and key.rpartition(".")[0] in parents - {""}):
                continue
            yield f"{override.input_line}: {_unknown(key, keys, tree)}"


def _leaves(override: Override) -> list[str]:
    """`optimizer={lr: 1}` is the key optimizer.lr."""
    value: Any = override.value()
    below = list(dotted(value, f"{override.key_or_group}.")) if isinstance(value, dict) else []
    return below or [override.key_or_group]


def _unknown(key: str, keys: set[str], tree: Tree) -> str:
    names = sorted(n for n in keys if not n.rpartition(".")[2].startswith("_") and not key.startswith(f"{n}."))
    section = key.rpartition(".")[0]
    problem = f"no key {key}" if not section or section in keys else f"no key {section}"
    if section in keys:  # what stands there, or the same name elsewhere
        tail = key.removeprefix(section)
        near = did_you_mean(key, [n for n in names if n.rpartition(".")[0] == section or n.endswith(tail)])
    else:
        near = did_you_mean(key, names if section else [*names, *tree]) or did_you_mean(section, names)
    if not near and section in keys:
        siblings = [name.removeprefix(f"{section}.") for name in names if name.rpartition(".")[0] == section]
        near = f"; {section} has {', '.join(siblings) or 'no keys'}"
    return problem + (near or "; python train.py --cfg job shows every key")
