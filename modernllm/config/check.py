"""A composed configuration held against the classes that it names: allowed targets, keys, types and ranges.

A constructor's signature is the schema, so there is none to keep in step with it. All problems are found
before the first run starts, and reported together.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from functools import cache
from types import SimpleNamespace
from typing import Any, get_type_hints

from omegaconf import Container, DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from modernllm.config.errors import ConfigError
from modernllm.config.nearest import did_you_mean
from modernllm.config.settings import Settings
from modernllm.config.targets import TargetError, resolve_target
from modernllm.config.tree import CONFIG_DIR, default_choices, read_tree, sections
from modernllm.config.values import problem, shown

UNREADABLE = object()
"""Stands for a value that is named as a problem already."""
COMMAND = ("plan", "retry", "sweep", "executor")
"""What a command does with its runs: no part of any of them, so a saved configuration has none of it."""
SUPPLIED = ("model.vocab_size",)
"""May be null although the class needs a value: the program knows it only when it runs."""


def check(cfg: DictConfig | Mapping[str, Any]) -> None:
    """Raise one `ConfigError`, a line for every problem. Imports the classes (and torch), makes nothing."""
    problems: list[str] = []
    container = cfg if isinstance(cfg, DictConfig) else OmegaConf.create(dict(cfg))
    plain = _plain(container, "", problems)
    allowed = plain.get("allow_targets")
    allowed = [name for name in allowed if isinstance(name, str)] if isinstance(allowed, list) else []
    problems += _root(plain)
    problems += _nodes(plain, "", allowed)
    if problems:
        raise ConfigError.of(list(dict.fromkeys(problems)))


def check_nodes(sections: Mapping[str, Any]) -> None:
    """`check` of these plain sections alone; only classes of modernllm and torch may be named."""
    problems: list[str] = []
    problems += _nodes(_plain(OmegaConf.create(dict(sections)), "", problems), "", [])
    if problems:
        raise ConfigError.of(problems)


def check_settings(values: Mapping[str, Any]) -> None:
    """`check` of those of these values that belong to no group."""
    hints = get_type_hints(Settings, include_extras=True)
    found = [problem(key, value, hints[key]) for key, value in values.items() if key in hints]
    if problems := [each for each in found if each]:
        raise ConfigError.of(problems)


def _plain(node: Container, prefix: str, problems: list[str]) -> Any:
    """Plain dicts and lists; what is missing or refers to nothing becomes a problem."""
    keys = range(len(node)) if isinstance(node, ListConfig) else list(node)
    found = {}
    for key in keys:
        path = f"{prefix}{key}"
        if path == "hydra":
            continue
        if OmegaConf.is_missing(node, key):
            problems.append(f"{path}: is not set; {path}=... sets it")
            found[key] = UNREADABLE
            continue
        try:
            value = node[key]
        except OmegaConfBaseException as error:
            raw = OmegaConf.to_container(node)[key]  # type: ignore[index,call-overload]
            problems.append(f"{path}={raw}: {str(error).splitlines()[0]}")
            found[key] = UNREADABLE
            continue
        found[key] = _plain(value, f"{path}.", problems) if isinstance(value, Container) else value
    return list(found.values()) if isinstance(node, ListConfig) else found


def _root(plain: dict[str, Any]) -> Iterator[str]:
    hints = get_type_hints(Settings, include_extras=True)
    names = [*hints, *sections()]
    for key, value in plain.items():
        if key in hints:
            if value is not UNREADABLE and (found := problem(key, value, hints[key])):
                yield found
        elif key not in names:
            yield f"{key}: nothing reads this key{did_you_mean(key, [*names, *default_choices()])}"
        elif not isinstance(value, dict) or "_target_" not in value:
            yield f"{key}={shown(value)}: should be chosen by a group, {key} has no _target_"
    for key in names:
        if key not in plain and key not in COMMAND:
            yield f"{key}: is missing"


def _nodes(value: Any, path: str, allowed: list[str]) -> Iterator[str]:
    """The problems of every node at or below `path`."""
    if isinstance(value, dict):
        for key in value:
            if isinstance(key, str) and key.startswith("_") and (key, "_target_" in value) not in _MARKS:
                yield f"{_join(path, key)}: is not allowed; only _target_, and _partial_ beside it"
        if "_target_" in value:
            yield from _node(value, path, allowed)
        for key, child in value.items():
            yield from _nodes(child, _join(path, key), allowed)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _nodes(child, _join(path, index), allowed)


_MARKS = {("_target_", True), ("_partial_", True)}


def _join(path: str, key: Any) -> str:
    return f"{path}.{key}" if path else str(key)


def _node(node: dict[str, Any], path: str, allowed: list[str]) -> Iterator[str]:
    target, partial = node["_target_"], node.get("_partial_", False)
    if not isinstance(partial, bool):
        yield f"{_join(path, '_partial_')}={shown(partial)}: should be true or false"
    if target is UNREADABLE:
        return
    try:
        found = resolve_target(target, allowed, _known_targets())
    except TargetError as error:
        yield f"{_join(path, '_target_')}={shown(target)}: {error}"
        return
    parameters, open_ended = _parameters(found)
    given = {key: value for key, value in node.items() if not str(key).startswith("_")}
    for key, value in given.items():
        if key in parameters:
            hint = parameters[key][0]
            late = value is None and _join(path, key) in SUPPLIED
            if value is not UNREADABLE and not late and (wrong := problem(_join(path, key), value, hint)):
                yield wrong
        elif not (open_ended and target in allowed):
            yield _unknown_key(path, key, value, found, list(parameters))
    for key, (_, required) in parameters.items():
        if required and key not in given and partial is False:
            yield f"{_join(path, key)}: is missing, {found.__name__} needs it"


def _unknown_key(path: str, key: Any, value: Any, found: Any, names: list[str]) -> str:
    hint = did_you_mean(_join(path, key), [_join(path, name) for name in names])
    if not hint:
        group = path.rpartition(".")[2]
        hint = f"; it takes {', '.join(names) or 'nothing'}"
        if group in default_choices():
            hint += f". Is it of another {group}=...? (a choice is switched by its group, not by _target_)"
    return f"{_join(path, key)}={shown(value)}: {found.__name__} has no {key}{hint}"


def _parameters(found: Any) -> tuple[dict[str, tuple[Any, bool]], bool]:
    """Name -> (annotation, required), and whether it takes any further keyword."""
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return {}, True
    function = found.__init__ if isinstance(found, type) else found
    if function is object.__init__:  # a class that makes something of another class
        function = found.__new__
    space = getattr(inspect.unwrap(function), "__globals__", {})
    parameters, open_ended = {}, False
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_KEYWORD:
            open_ended = True
        elif parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            required = parameter.default is parameter.empty
            parameters[name] = (_hint(parameter.annotation, space), required)
    return parameters, open_ended


def _hint(annotation: Any, space: dict[str, Any]) -> Any:
    """The annotation as an object; one that names what only a type checker imports says nothing here."""
    if annotation is inspect.Parameter.empty:
        return annotation
    try:
        holder: Any = SimpleNamespace(__annotations__={"it": annotation})
        return get_type_hints(holder, globalns=space, include_extras=True)["it"]
    except (NameError, TypeError, AttributeError, SyntaxError):
        return inspect.Parameter.empty


@cache
def _known_targets() -> tuple[str, ...]:
    tree = read_tree([CONFIG_DIR])
    return tuple(choice.target for choices in tree.values() for choice in choices.values() if choice.target)
