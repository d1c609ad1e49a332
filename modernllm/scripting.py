"""The command line of every script: a function's signature is what may be given, positionals and `key=value` words."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import yaml

from modernllm.config.nearest import did_you_mean
from modernllm.config.values import describe, problem

MISUSED = 2


class Misuse(ValueError):
    """A command line that makes no sense."""


def main(
    function: Callable[..., int | None],
    words: Sequence[str] | None = None,
    *,
    failed: int = 1,
    misused: int = MISUSED,
) -> int:
    """Call `function` with what the command line says; the exit code: its own, `failed` after an error or `misused`.
    ValueErrors and OSErrors become one line.
    """
    words = sys.argv[1:] if words is None else words
    if {"-h", "--help"} & set(words):
        print(usage(function))
        return 0
    try:
        positionals, named = parse(function, words)
        code = function(*positionals, **named) or 0
        sys.stdout.flush()
        return code
    except Misuse as error:
        print(f"error: {error}", file=sys.stderr)
        return misused
    except BrokenPipeError:
        stop_writing()
        return failed
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return failed
    except (Exception, SystemExit):  # a fault of ours, or of a model of other hands, which may not choose the code
        traceback.print_exc()
        return failed


def stop_writing() -> None:
    """`| head` has seen enough: what is still buffered would raise once more at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def parse(function: Callable[..., Any], words: Sequence[str]) -> tuple[list[Any], dict[str, Any]]:
    """Values are read as YAML, lists as `a,b`, and held against the annotations. Misuse says what is wrong."""
    parameters = inspect.signature(function).parameters
    hints = get_type_hints(function, include_extras=True)
    spread = next((p for p in parameters.values() if p.kind is p.VAR_POSITIONAL), None)
    places = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_ONLY]
    options = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY]
    positionals, named = [], {}
    for word in words:
        key, equals, text = word.partition("=")
        if equals and key in options:
            named[key] = _value(key, text, hints.get(key))
        elif spread:
            positionals.append(word)
        elif equals or len(positionals) == len(places):
            raise Misuse(f"{word}: no such key{did_you_mean(key, options)}; there are {', '.join(options) or 'none'}")
        else:
            name = places[len(positionals)]
            positionals.append(_value(name, word, hints.get(name)))
    missing = [p.name for p in parameters.values() if p.default is p.empty and p.name in places[len(positionals) :]]
    missing += [name for name in options if parameters[name].default is inspect.Parameter.empty and name not in named]
    if missing:
        raise Misuse(f"{missing[0]} is missing; --help says what it is")
    return positionals, named


def _value(key: str, text: str, hint: Any) -> Any:
    if hint is str:  # a folder may be called anything
        return text
    try:
        value = yaml.safe_load(text) if text else ""
        forms = get_args(hint) if isinstance(hint, UnionType) else (hint,)  # list[int] | None takes a list too
        if any(get_origin(form) is list for form in forms) and not isinstance(value, list):
            value = [yaml.safe_load(part) for part in text.split(",")]
    except yaml.YAMLError:
        raise Misuse(f"{key}={text}: no value can be read there; it takes {describe(hint)}") from None
    if isinstance(value, dict):
        value = text
    if wrong := problem(key, value, hint):
        raise Misuse(wrong)
    return value


def usage(function: Callable[..., Any]) -> str:
    """The function's own words, and its parameters with what they take and what they are unless given."""
    hints = get_type_hints(function, include_extras=True)
    lines = [inspect.getdoc(function) or "", ""]
    for p in inspect.signature(function).parameters.values():
        unless = "" if p.default in (p.empty, "", None) else f"  [{_shown(p.default)}]"
        name = f"{p.name}=" if p.kind is p.KEYWORD_ONLY else f"<{p.name}>"
        lines.append(f"  {name:<14} {describe(hints[p.name]) if p.name in hints else 'words'}{unless}")
    return "\n".join(lines)


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)
