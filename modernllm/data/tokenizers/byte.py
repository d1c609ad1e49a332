"""One id per byte of UTF-8."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np


class ByteTokenizer:
    """id = byte; 256 ends a document, 257 pads, 258 masks. Nothing is learned and nothing is unknown."""

    name = "byte"
    vocab_size = 259
    eot: int = 256
    pad: int | None = 257
    mask: int | None = 258

    def __init__(self) -> None:
        self.token_bytes = np.array([1] * 256 + [0] * 3)
        self.hash = hashlib.sha256(b"byte: 256 values, eot, pad, mask").hexdigest()

    def fit(self, train_texts: Iterable[str], cache: Path, corpus_key: str) -> ByteTokenizer:
        """Ready as it is."""
        return self

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        return [np.frombuffer(text.encode(), np.uint8).astype(np.uint16) for text in texts]

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        return bytes(int(i) for i in ids if i < 256).decode(errors="replace")
