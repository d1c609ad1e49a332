"""Code of other hands: the files that a class outside this package is written in."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sysconfig
from collections.abc import Iterator
from pathlib import Path


def sources(target: str) -> dict[str, str]:
    """SHA-256 by path below where it is imported from: of the file of the innermost module in a dotted name, and of the
    files beside it that this imports, and so on; of what is installed, that file alone. {} of what has no file.
    """
    module, path = _module(target)
    if path is None:
        return {}
    root = path.parents[module.count(".") + (path.name == "__init__.py")]
    found = {path}
    if not _installed(path):
        found |= set(_files(root, module))
        waiting = list(found)
        while waiting:
            more = set(_imports(waiting.pop(), root)) - found
            found |= more
            waiting += more
    return {str(each.relative_to(root)): hashlib.sha256(each.read_bytes()).hexdigest() for each in sorted(found)}


def _installed(path: Path) -> bool:
    """Whether it is no code of a person who works on it: of a package, of Python itself, or no Python."""
    of_python = path.is_relative_to(sysconfig.get_path("stdlib"))
    return of_python or bool({"site-packages", "dist-packages"} & set(path.parts)) or path.suffix != ".py"


def _module(target: str) -> tuple[str, Path | None]:
    """The innermost module of a dotted name, and its file."""
    parts = target.split(".")
    for end in range(len(parts), 0, -1):
        name = ".".join(parts[:end])
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            continue
        if spec and spec.origin and Path(spec.origin).is_file():
            return name, Path(spec.origin).resolve()
    return target, None


def _imports(path: Path, root: Path) -> Iterator[Path]:
    """The files below `root` that a file names in its import statements, wherever they stand in it."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(root, alias.name)
        elif isinstance(node, ast.ImportFrom):
            base = path.parents[node.level - 1] if node.level else root
            module = node.module or ""
            for name in (module, *(f"{module}.{alias.name}" for alias in node.names)):
                yield from _files(base, name)


def _files(base: Path, name: str) -> Iterator[Path]:
    """Of a module and of the packages around it, those that are there."""
    place = base
    for part in filter(None, name.split(".")):
        place = place / part
        for file in (place.with_suffix(".py"), place / "__init__.py"):
            if file.is_file():
                yield file
