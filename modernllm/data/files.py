"""The user's own text: a file, a folder or a pattern."""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from modernllm.data.corpus import Document, hash_documents, normalise
from modernllm.data.rows import column

TABLES = {".jsonl": "json", ".ndjson": "json", ".json": "json", ".parquet": "parquet"}


class TextFiles:
    """`path` names a file, a folder (all that is not hidden in it, in the order of paths) or a glob pattern.

    Each row of `.jsonl`, `.json` and `.parquet` is a document, its text in `field`. Every other file is one
    document, read in `encoding`: its byte order mark is dropped, CRLF and CR become LF.
    """

    note = None

    def __init__(self, path: str, encoding: str = "utf-8", field: str = "text"):
        self.path = path
        self.encoding = encoding
        self.field = field
        if not path:
            raise ValueError("data.path is empty: name a file, a folder or a pattern")
        try:
            b"a".decode(encoding, "replace")
        except LookupError as error:
            raise ValueError(f"data.encoding={encoding}: {error}; such as utf-8, cp1252 or gb18030") from None

    @property
    def name(self) -> str:
        stem = "".join(c if c.isalnum() or c in "-_." else "_" for c in Path(self.path).expanduser().stem)
        return stem.strip("_.")[:40] or "files"

    def files(self) -> list[Path]:
        """The files that `path` names, never none."""
        path = Path(self.path).expanduser()
        if path.is_dir():
            found = sorted(_visible(path), key=lambda file: file.relative_to(path).as_posix())
        elif path.exists():
            found = [path]
        else:
            found = sorted(file for match in glob.glob(str(path), recursive=True) if (file := Path(match)).is_file())
        if found:
            return found
        if glob.has_magic(self.path):
            raise FileNotFoundError(f"data.path={self.path}: no file matches this pattern (from {Path.cwd()})")
        if path.is_dir():
            raise FileNotFoundError(f"data.path={self.path}: the folder holds no file that is not hidden")
        raise FileNotFoundError(
            f"data.path={self.path}: no such file or folder (from {Path.cwd()}); "
            f"without text of your own use data=stdlib"
        )

    def documents(self) -> Iterator[Document]:
        empty = True
        for path in self.files():
            for document in self._read(path):
                empty = False
                yield document
        if empty:
            raise ValueError(f"data.path={self.path}: there is no text in it")

    def fingerprint(self) -> str:
        return hash_documents(self.documents())

    def _read(self, path: Path) -> Iterator[Document]:
        if kind := TABLES.get(path.suffix.lower()):
            for number, text in enumerate(self._rows(path, kind)):
                yield Document(text, f"{path}:{number}")
        elif text := normalise(self._decode(path)):
            yield Document(text, str(path))

    def _decode(self, path: Path) -> str:
        data = path.read_bytes()
        try:
            return data.decode(self.encoding)
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{path}: byte {data[error.start]:#04x} at offset {error.start} is no {self.encoding} "
                f"({error.reason}); name another encoding, e.g. data.encoding=gb18030 or cp1252, "
                f"or leave the file out with a pattern, such as data.path='folder/**/*.txt'"
            ) from None

    def _rows(self, path: Path, kind: str) -> Iterator[str]:
        """Streamed from the file: the cache of `datasets` goes by name, size and time and may be stale."""
        if path.stat().st_size == 0:
            return
        import datasets

        options: dict[str, Any] = {"encoding": self.encoding} if kind == "json" else {}
        pattern = glob.escape(str(path.resolve()))
        with tempfile.TemporaryDirectory() as folder:
            try:
                rows = datasets.load_dataset(
                    kind, data_files=[pattern], split="train", streaming=True, cache_dir=folder, **options
                )
                yield from column(rows, self.field, str(path))
            except UnicodeDecodeError:
                self._decode(path)
                raise
            except _table_errors() as error:
                raise ValueError(f"{path}: not readable as {kind}: {error}") from None


def _table_errors() -> tuple[type[Exception], ...]:
    """What the readers of `datasets` raise for a broken file."""
    import pyarrow
    from datasets.exceptions import DatasetsError

    return pyarrow.ArrowException, DatasetsError, OSError, StopIteration


def _visible(folder: Path) -> Iterator[Path]:
    for root, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(root, name) for name in names if not name.startswith("."))
