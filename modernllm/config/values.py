"""Values held against the annotation of their parameter: it says what is allowed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from inspect import Parameter
from math import inf
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import DocInfo, Ge, Gt, Le, Lt, MaxLen, MinLen

from modernllm.config.nearest import nearest

SCALARS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    NoneType: "null",
    None: "null",
    Path: "a path",
}
LISTS, MAPPINGS = (list, tuple, Sequence), (dict, Mapping)


def problem(key: str, value: Any, hint: Any) -> str | None:
    """`trainer.steps=1.5: should be a whole number >= 1`, or None if the value will do."""
    if hint in (Parameter.empty, Any, object) or is_node(value):
        return None
    writable = data_part(hint)
    if writable is None:
        if isinstance(value, list) and (get_origin(hint) in LISTS):
            return None
        return f"{key}={shown(value)}: is made by the program or chosen by a group, it has no value of its own"
    if fits(writable, value):
        return None
    hinted = advice(key, value, writable)
    return f"{key}={shown(value)}: should be {describe(writable)}" + (f"; {hinted}" if hinted else "")


def is_node(value: Any) -> bool:
    """Whether the value is, or holds, something to be made (`_target_`), which is checked by itself."""
    if isinstance(value, dict):
        return "_target_" in value or any(is_node(child) for child in value.values())
    return isinstance(value, list) and any(is_node(child) for child in value)


def data_part(hint: Any) -> Any:
    """What of the hint can be written in YAML: `Callable | None` leaves NoneType, a Tensor nothing (None)."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in SCALARS or hint in (*LISTS, *MAPPINGS, Any, object) or origin is Literal:
        return NoneType if hint is None else hint
    if origin is Annotated:
        return hint if data_part(args[0]) is not None else None
    if origin in (Union, UnionType):
        parts = [part for part in map(data_part, args) if part is not None]
        return Union[tuple(parts)] if parts else None  # noqa: UP007 (built at run time)
    if origin in (*LISTS, *MAPPINGS) and all(arg is ... or data_part(arg) is not None for arg in args):
        return hint
    return None


@cache
def _adapter(hint: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(hint)


def fits(hint: Any, value: Any) -> bool:
    """Strictly: 1.0 is no whole number, 1 is not true; a list may stand for a tuple, as in JSON."""
    from pydantic import ValidationError

    try:
        _adapter(hint).validate_json(json.dumps(value, default=str), strict=True)
    except ValidationError:
        return False
    return True


def describe(hint: Any) -> str:
    """`a whole number >= 1, or null`."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _ranged(args[0], args[1:])
    if origin is Literal:
        return ("one of " if len(args) > 1 else "") + ", ".join(map(shown, args))
    if origin in (Union, UnionType):
        words = [describe(arg) for arg in args if arg is not NoneType]
        return " or ".join(words) + (", or null" if NoneType in args else "")
    if origin is tuple and ... not in args:
        kinds = list(dict.fromkeys(map(describe, args)))
        return f"a list of {len(args)}, {'each ' if len(kinds) == 1 else ''}{', '.join(kinds)}"
    if origin in LISTS:
        return f"a list, each {describe(args[0])}"
    if hint in LISTS:
        return "a list"
    if origin in MAPPINGS or hint in MAPPINGS:
        return "a mapping"
    return SCALARS.get(hint, "something else")


def _ranged(kind: Any, metadata: tuple[Any, ...]) -> str:
    words, bounds = describe(kind), []
    for item in metadata:
        match item:
            case DocInfo():
                return item.documentation
            case Lt(lt) if lt == inf:
                words = words.replace("a ", "a finite ", 1)
            case Ge(bound):
                bounds.append(f">= {bound}")
            case Gt(bound):
                bounds.append(f"> {bound}")
            case Le(bound):
                bounds.append(f"<= {bound}")
            case Lt(bound):
                bounds.append(f"< {bound}")
            case MinLen(1):
                words += ", not empty"
            case MinLen(n):
                words += f", at least {n} long"
            case MaxLen(n):
                words += f", at most {n} long"
    return f"{words} {' and '.join(bounds)}".rstrip()


def advice(key: str, value: Any, hint: Any) -> str | None:
    """The way out where YAML or the command line read something else than was meant."""
    kinds = _kinds(hint)
    if value == "":
        return "nothing stands after ="
    if isinstance(value, list) and not kinds & {*LISTS}:
        return f"several runs are -m {key}={','.join(map(shown, value))}"
    if isinstance(value, str):
        return _advice_on_text(value, hint, kinds)
    if not value and (off := _off(hint)):
        return off
    if isinstance(value, float) and value.is_integer() and int in kinds:
        return f"write {int(value)}"
    if isinstance(value, (int, float)) and str in kinds and not {int, float} & kinds:
        return f"as text: \"{key}='{shown(value)}'\""
    return None


def _advice_on_text(value: str, hint: Any, kinds: set[Any]) -> str | None:
    word = value.strip().lower()
    if bool in kinds and word in ("yes", "y", "on", "no", "n", "off", "true", "false"):
        return f"write {'true' if word in ('yes', 'y', 'on', 'true') else 'false'}"
    if word in ("off", "no", "false", "none", "nil", "null", "~") and (off := _off(hint)):
        return off
    if kinds & {int, float}:
        meant = _number(word, whole=float not in kinds)
        return None if meant is None else f"{value} is text, write {meant}"
    if literals := _literals(hint):
        found = nearest(value, [str(literal) for literal in literals], 1)
        return f"did you mean {found[0]}?" if found else None
    return None


def _off(hint: Any) -> str | None:
    """How none of it is written there, if anything says so."""
    return next((f"write {shown(off)}" for off in (None, 0, inf) if fits(hint, off)), None)


def _number(word: str, whole: bool) -> int | float | None:
    """What 01, 0x10 or "3" was meant to be."""
    for read in (int, lambda text: int(text, 0), float):
        try:
            number = read(word)
        except ValueError:
            continue
        return number if isinstance(number, int) or not whole else None
    return None


def _kinds(hint: Any) -> set[Any]:
    """The types at the top of a hint: int and NoneType in `Count | None`."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _kinds(args[0])
    if origin in (Union, UnionType):
        return set().union(*map(_kinds, args))
    if origin is Literal:
        return {type(arg) for arg in args}
    return {origin or hint}


def _literals(hint: Any) -> list[Any]:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return [literal for arg in args for literal in _literals(arg)]
    return list(args) if origin is Literal else []


def shown(value: Any) -> str:
    """As it is written in YAML."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        return f"[{', '.join(map(shown, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {shown(child)}' for key, child in value.items())}}}"
    return str(value)
