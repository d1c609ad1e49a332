"""Text to token files, once: flat arrays on disk that every run, arm and seed reads.

A folder of the cache holds `train.bin`, `validation.bin` and `meta.json`, which has their hashes. Its name is the
hash of everything that shaped it: content of the corpus, split rule and share, the tokenizer's mapping, this format.
The sources are read and hashed at every call, so a changed byte is a new folder and nothing stale is ever served.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from modernllm.data.cache import default_cache, key_of, locked, write_whole, writing
from modernllm.data.corpus import Corpus, Document, Side
from modernllm.data.split import RULE, RULE_CUT, RULE_GIVEN, Split, split_documents
from modernllm.data.tokenizers import Tokenizer, TokenizerRecipe

__all__ = ["TokenizedCorpus", "check_ids", "default_cache", "prepare"]

FORMAT = 1
SIDES: tuple[Side, Side] = ("train", "validation")
BATCH_CHARACTERS = 4_000_000


@dataclass(frozen=True)
class TokenizedCorpus:
    """Both token files, mapped into memory: each document's ids followed by the end-of-text id.

    `meta` is the sidecar: dtype, split rule, and of each side the documents, tokens, bytes of text, SHA-256.
    `note` is the line that the corpus has for the user.
    """

    train: np.ndarray
    validation: np.ndarray
    tokenizer: Tokenizer
    corpus_hash: str
    tokenizer_hash: str
    meta: dict[str, Any]
    folder: Path
    note: str | None = None


def prepare(corpus: Corpus, tokenizer: TokenizerRecipe, cache: Path, validation_share: float = 0.05) -> TokenizedCorpus:
    """Tokenise `corpus`, or open what was tokenised before from the very same text with the same settings."""
    fingerprint = corpus.fingerprint()
    split = LazySplit(corpus, validation_share)
    split_key = key_of(corpus=fingerprint, rules=[RULE, RULE_GIVEN, RULE_CUT], share=validation_share)
    ready = tokenizer.fit(split.texts("train"), cache, split_key)
    key = key_of(split=split_key, tokenizer=ready.hash, format=FORMAT)
    folder = cache / "tokens" / f"{corpus.name}-{ready.name}-{key[:16]}"
    meta = _read_meta(folder)
    if meta is None:
        with locked(folder):
            if _read_meta(folder) is None:
                identity = {"name": corpus.name, "hash": fingerprint, "key": key}
                _build(corpus, identity, split, ready, folder)
        meta = _read_meta(folder)
        assert meta is not None
    train, validation = (_open(folder, side, meta, ready) for side in SIDES)
    return TokenizedCorpus(train, validation, ready, fingerprint, ready.hash, meta, folder, corpus.note)


class LazySplit:
    """The split of a corpus, decided when the first text is asked for: a prepared corpus never needs it."""

    def __init__(self, corpus: Corpus, share: float):
        self.corpus = corpus
        self.share = share
        self._split: Split | None = None

    @property
    def decided(self) -> Split:
        if self._split is None:
            self._split = split_documents(self.corpus, self.share)
        return self._split

    def texts(self, side: Side) -> Iterator[str]:
        for document in self.decided.documents(side):
            yield document.text


def token_dtype(vocab_size: int) -> np.dtype:
    """The smaller type that holds every id: 65 536 ids fit into two bytes, one more does not."""
    return np.dtype(np.uint16) if vocab_size <= 1 << 16 else np.dtype(np.uint32)


def check_ids(tokens: np.ndarray, vocab_size: int, path: Path) -> None:
    """Refuse a file with an id outside the vocabulary, before an embedding is indexed with it."""
    for start in range(0, len(tokens), 1 << 24):
        chunk = tokens[start : start + (1 << 24)]
        if chunk.max() >= vocab_size:
            at = start + int(np.argmax(chunk >= vocab_size))
            raise ValueError(
                f"{path}: token {at} is {int(tokens[at])}, but the vocabulary has {vocab_size} ids "
                f"(model.vocab_size, tokenizer); if the file is damaged, delete its folder"
            )


def _open(folder: Path, side: Side, meta: dict[str, Any], tokenizer: Tokenizer) -> np.ndarray:
    path = folder / f"{side}.bin"
    tokens = np.memmap(path, np.dtype(meta["dtype"]), mode="r")
    check_ids(tokens, tokenizer.vocab_size, path)
    return tokens


def _read_meta(folder: Path) -> dict[str, Any] | None:
    """The sidecar, if both files are what it says; None if the folder must be built (again)."""
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        width = np.dtype(meta["dtype"]).itemsize
        sizes = {side: (folder / f"{side}.bin").stat().st_size for side in SIDES}
        whole = all(sizes[side] == meta[side]["tokens"] * width for side in SIDES) and _as_written(folder, meta)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return meta if whole else None


def _as_written(folder: Path, meta: dict[str, Any]) -> bool:
    """Whether both files have their hashes: looked at once for every time that they were modified."""
    files = {side: folder / f"{side}.bin" for side in SIDES}
    seen, modified = folder / "verified.json", json.dumps({side: files[side].stat().st_mtime_ns for side in SIDES})
    if seen.exists() and seen.read_text(encoding="utf-8") == modified:
        return True
    for side in SIDES:
        with files[side].open("rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != meta[side]["sha256"]:
                return False
    with suppress(OSError):  # a cache that is only read is hashed every time
        write_whole(seen, modified.encode())
    return True


def _build(corpus: Corpus, identity: dict[str, str], split: LazySplit, tokenizer: Tokenizer, folder: Path) -> None:
    """Write beside the final folder, then rename: a killed process leaves nothing that looks finished."""
    for left in folder.parent.glob(f".{folder.name}-*"):
        shutil.rmtree(left, ignore_errors=True)
    with writing(folder.parent):
        working = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        dtype = token_dtype(tokenizer.vocab_size)
        sides = {
            side: _write(split.decided.documents(side), tokenizer, dtype, working / f"{side}.bin") for side in SIDES
        }
        if corpus.fingerprint() != identity["hash"]:
            raise ValueError(f"data: {corpus.name} changed while it was read; start again")
        meta = {
            "format": FORMAT,
            "key": identity["key"],
            "dtype": dtype.name,
            "corpus": {"name": identity["name"], "hash": identity["hash"]},
            "tokenizer": {"name": tokenizer.name, "hash": tokenizer.hash, "vocab_size": tokenizer.vocab_size},
            "split": {
                "rule": split.decided.rule,
                "share": split.share,
                "repeated_documents": split.decided.repeated,
                "left_out_documents": split.decided.left_out,
            },
            **sides,
        }
        with writing(folder):
            (working / "meta.json").write_text(json.dumps(meta, indent=2) + "\n", encoding="utf-8")
            if folder.exists():
                shutil.rmtree(folder)
            os.replace(working, folder)
    except BaseException:
        shutil.rmtree(working, ignore_errors=True)
        raise


def _write(documents: Iterator[Document], tokenizer: Tokenizer, dtype: np.dtype, path: Path) -> dict[str, Any]:
    counts = {"documents": 0, "tokens": 0, "bytes": 0}
    digest = hashlib.sha256()
    end = np.array([tokenizer.eot])
    with writing(path):
        file = path.open("wb")
    with file:
        for texts in _batches(documents):
            parts = [part for ids in tokenizer.encode_batch(texts) for part in (ids, end)]
            ids = np.concatenate(parts)
            check_ids(ids, tokenizer.vocab_size, path)
            data = ids.astype(dtype).tobytes()
            digest.update(data)
            counts["documents"] += len(texts)
            counts["tokens"] += len(ids)
            counts["bytes"] += sum(len(text.encode()) for text in texts)
            with writing(path):
                file.write(data)
                file.flush()
    return {**counts, "sha256": digest.hexdigest()}


def _batches(documents: Iterator[Document]) -> Iterator[list[str]]:
    texts: list[str] = []
    held = 0
    for document in documents:
        texts.append(document.text)
        held += len(document.text)
        if held >= BATCH_CHARACTERS:
            yield texts
            texts, held = [], 0
    if texts:
        yield texts
