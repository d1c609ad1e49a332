"""A byte-level BPE vocabulary in use: tokens by rank, encoded by tiktoken."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import tiktoken


class RankTokenizer:
    """`encoding` merges bytes in the order of ranks; `pieces[i]` are the bytes of id i, none if special."""

    def __init__(self, encoding: tiktoken.Encoding, eot: int, pad: int | None, mask: int | None):
        self.encoding = encoding
        self.name = encoding.name
        self.vocab_size: int = encoding.n_vocab
        self.eot = eot
        self.pad = pad
        self.mask = mask
        self.pieces = [b""] * self.vocab_size
        for piece, rank in encoding._mergeable_ranks.items():
            self.pieces[rank] = piece
        self.token_bytes = np.array([len(piece) for piece in self.pieces])
        self.hash = self._hash()

    def _hash(self) -> str:
        digest = hashlib.sha256(
            f"{self.encoding._pat_str} {self.vocab_size} {self.eot} {self.pad} {self.mask}".encode()
        )
        for piece in self.pieces:
            digest.update(len(piece).to_bytes(4, "little") + piece)
        return digest.hexdigest()

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        with ThreadPoolExecutor(_threads()) as pool:
            return list(pool.map(self._encode, texts))

    def _encode(self, text: str) -> np.ndarray:
        try:
            return self.encoding.encode_to_numpy(text, disallowed_special=())
        except ValueError:
            # tiktoken's pattern gives up on very long runs of white space; halves encode to the same text
            if len(text) < 2:
                raise
            middle = len(text) // 2
            return np.concatenate([self._encode(text[:middle]), self._encode(text[middle:])])

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        return b"".join(self.pieces[i] for i in ids).decode(errors="replace")


def _threads() -> int:
    """tiktoken releases the interpreter lock while it encodes."""
    return min(8, os.cpu_count() or 1)
