"""A tokenizer turns text into ids and back, and knows how many bytes of text each id stands for.

Every text is encoded as plain text: `<|endoftext|>` in a document becomes the characters it is written with.
The end of a document is an id that no text can produce.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np


@runtime_checkable
class Tokenizer(Protocol):
    """Ready for use. `pad` and `mask` are None where a published vocabulary has no such ids.

    `token_bytes[i]` is the number of bytes of id i, 0 for special ones: summed over the ids of a text it is
    `len(text.encode())`, which makes bits per byte, the one loss that compares across vocabularies.
    `hash` identifies the mapping itself, not how it was obtained.
    """

    name: str
    vocab_size: int
    eot: int
    pad: int | None
    mask: int | None
    token_bytes: np.ndarray
    hash: str

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]: ...

    def decode(self, ids: Sequence[int] | np.ndarray) -> str: ...


@runtime_checkable
class TokenizerRecipe(Protocol):
    """What a configuration builds: `fit` makes it ready, learning from the training texts if it learns."""

    def fit(self, train_texts: Iterable[str], cache: Path, corpus_key: str) -> Tokenizer: ...
