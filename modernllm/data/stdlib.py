"""The text that every user already has: the sources of the running Python, and its language reference."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
import tokenize
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

from modernllm.data.corpus import Document, hash_documents, normalise
from modernllm.data.synthetic import Synthetic

SKIPPED = {
    *(
        "test",
        "tests",
        "idlelib",
        "lib2to3",
        "turtledemo",
    ),  # there in some builds of Python, absent in others
    *("site-packages", "dist-packages", "__pycache__", "lib-dynload"),
}
SKIPPED_PREFIXES = (
    "_sysconfigdata",
    "config-",
)  # written when Python was built: they hold paths of that machine
ENOUGH = 1_000_000
"""Characters of source below which an installation counts as stripped of its sources."""


class StandardLibrary:
    """Sources of the standard library (about 10 MB) and pydoc topics (0.5 MB), in the order of their paths.

    Nothing is downloaded. The text depends on the Python version: the fingerprint says so, and runs with
    different ones do not compare. Where the sources are stripped or zipped, those of the installed torch.nn
    stand in, else the synthetic corpus; `note` then says which.
    """

    name = "stdlib"

    @property
    def note(self) -> str | None:
        return self._choose()[0]

    def documents(self) -> Iterator[Document]:
        yield from self._choose()[1]

    def fingerprint(self) -> str:
        return hash_documents(self.documents())

    def _choose(self) -> tuple[str | None, Iterator[Document]]:
        missing = "data=stdlib: this Python comes without the sources of its library"
        if has_sources(root := Path(sysconfig.get_path("stdlib"))):
            return None, _in_order(chain(sources(root), topics()))
        torch = importlib.util.find_spec("torch")
        if torch and torch.origin and has_sources(root := Path(torch.origin).parent / "nn"):
            return f"{missing}; those of the installed torch.nn are read instead", _in_order(sources(root))
        return f"{missing}; data=synthetic is read instead", Synthetic().documents()


def _in_order(documents: Iterator[Document]) -> Iterator[Document]:
    return iter(sorted(documents, key=lambda document: document.name))


def paths(root: Path) -> Iterator[Path]:
    """The Python files below `root` that every build of it has."""
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if not _skipped(name)]
        yield from (Path(folder, name) for name in files if name.endswith(".py") and not _skipped(name))


def _skipped(name: str) -> bool:
    return name in SKIPPED or name.startswith(SKIPPED_PREFIXES)


def has_sources(root: Path) -> bool:
    total = 0
    for path in paths(root):
        total += path.stat().st_size
        if total >= ENOUGH:
            return True
    return False


def sources(root: Path) -> Iterator[Document]:
    """Each file is a document; topics.py is not, its form varies by release: see `topics`."""
    for path in paths(root):
        name = path.relative_to(root).as_posix()
        if name != "pydoc_data/topics.py" and (text := normalise(_read(path))):
            yield Document(text, name)


def _read(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except UnicodeDecodeError:
        with tokenize.open(path) as file:
            return file.read()


def topics() -> Iterator[Document]:
    """The language reference as `help("...")` shows it, one document a topic."""
    try:
        from pydoc_data.topics import topics as texts
    except ImportError:
        return
    for topic, text in texts.items():
        yield Document(normalise(text), f"pydoc_data/topics/{topic}")
