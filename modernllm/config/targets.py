"""What a `_target_` may name: a class of modernllm, torch.nn or torch.optim, or what `allow_targets` lists.

The object itself is looked at, not the beginning of its name: `torch.optim.optimizer.torch.load` begins well
and is a function that runs code from a file. What is outside is not imported, and nothing is called.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from modernllm.config.nearest import did_you_mean

PACKAGES = ("modernllm", "torch.nn", "torch.optim")


class TargetError(Exception):
    """Why a target is refused, in words that follow its name."""


def resolve_target(target: Any, allowed: Sequence[str], known: Sequence[str] = ()) -> Any:
    """The class, or the listed class or function. `known` are names for did-you-mean."""
    if not isinstance(target, str) or not all(part.isidentifier() for part in target.split(".")):
        raise TargetError(f"should be the dotted name of a class{did_you_mean(str(target), known, 1)}")
    if target in allowed:
        found = _walk(target, packages=None)
        if not callable(found):
            raise TargetError("is neither a class nor a function")
        return found
    if not _inside(target):
        raise TargetError(f"{_FOREIGN}{did_you_mean(target, known, 1)}")
    found = _walk(target, PACKAGES)
    if not isinstance(found, type) or not _inside(f"{found.__module__}.{found.__qualname__}"):
        raise TargetError(_FOREIGN)
    return found


_FOREIGN = f"is no class of {', '.join(PACKAGES[:-1])} or {PACKAGES[-1]}; allow_targets=[...] lists further ones"


def _inside(name: str) -> bool:
    return any(name.startswith(f"{package}.") for package in PACKAGES)


def _walk(target: str, packages: Sequence[str] | None) -> Any:
    """Attribute by attribute, as Hydra finds it, but a module only under its own name and never through
    `__getattr__`; within `packages` also nothing below a class.
    """
    first, *rest = target.split(".")
    found: Any = _imported(first)
    path = first
    for part in rest:
        if not isinstance(found, ModuleType) and packages is not None:
            raise TargetError(_FOREIGN)
        path = f"{path}.{part}"
        if part in vars(found):
            found = vars(found)[part]
        elif isinstance(found, ModuleType):
            found = _submodule(path, found)
        else:
            raise TargetError(f"does not exist: {found.__name__} has no {part}")
        if isinstance(found, ModuleType) and packages is not None and found.__name__ != path:
            raise TargetError(_FOREIGN)
    return found


def _submodule(path: str, parent: ModuleType) -> ModuleType:
    """Looked up first, so that one that is missing differs from one that fails when it is imported."""
    last = path.rpartition(".")[2]
    modules = [info.name for info in iter_modules(getattr(parent, "__path__", ()))]
    if last not in modules and path not in sys.modules:
        classes = [name for name, value in vars(parent).items() if isinstance(value, type) and name[0] != "_"]
        raise TargetError(f"does not exist: {parent.__name__} has no {last}{did_you_mean(last, classes + modules, 1)}")
    return _imported(path)


def _imported(path: str) -> ModuleType:
    try:
        return import_module(path)
    except Exception as error:  # whatever a module does when it is imported
        lost = isinstance(error, ModuleNotFoundError) and error.name == path
        hint = "; is its folder on PYTHONPATH?" if lost else ""
        raise TargetError(f"cannot be imported: {type(error).__name__}: {error}{hint}") from None
