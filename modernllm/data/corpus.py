"""A corpus is a repeatable stream of documents with an identity."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

Side = Literal["train", "validation"]


@dataclass(frozen=True)
class Document:
    """One text. `split` is set where the source itself says on which side it belongs."""

    text: str
    name: str
    split: Side | None = None


@runtime_checkable
class Corpus(Protocol):
    """`documents()` gives the same documents in the same order each time it is called.

    `fingerprint()` identifies the content, wherever it is stored: runs with different ones do not compare.
    `note` is one line for the user where something other than the expected text is read, else None.
    """

    @property
    def name(self) -> str: ...

    @property
    def note(self) -> str | None: ...

    def documents(self) -> Iterator[Document]: ...

    def fingerprint(self) -> str: ...


def normalise(text: str) -> str:
    """Without byte order mark, and with LF for CRLF and CR: one text has one form on every system."""
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def hash_documents(documents: Iterable[Document]) -> str:
    """SHA-256 over texts and given splits, in order; not names, since renaming a folder changes no data."""
    digest = hashlib.sha256()
    for document in documents:
        data = document.text.encode("utf-8", "surrogatepass")
        digest.update(f"{document.split or ''}:{len(data)}:".encode())
        digest.update(data)
    return digest.hexdigest()
