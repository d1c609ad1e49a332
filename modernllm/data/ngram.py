"""What a model must beat: the loss of unigram and bigram models fitted on the training tokens."""

from __future__ import annotations

import hashlib
import json
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from modernllm.data.cache import write_whole

MOST_PAIRS = 1 << 25
"""Training pairs that are counted at most, in blocks spread evenly over the file."""
BLOCK = 1 << 21
FALLBACK = 0.5


@dataclass(frozen=True)
class Floors:
    """Cross-entropy in nats per token on the validation pairs."""

    unigram: float
    bigram: float


def discount(counts: np.ndarray) -> float:
    """D = n1 / (n1 + 2 n2), n_r the number of events seen r times; 1/2 where one of them never occurs."""
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    return once / (once + 2 * twice) if once and twice else FALLBACK


class AbsoluteDiscounting:
    """Interpolated absolute discounting (Ney, Essen & Kneser, 1994); n counts, k counts distinct followers:

    p(w)   = (max(n(w) - D1, 0) + D1 k / V) / n            k distinct tokens among n, V ids
    p(w|u) = (max(n(u w) - D2, 0) + D2 k(u) p(w)) / n(u)   p(w) where u was never followed by anything
    """

    def __init__(self, train: np.ndarray, vocab_size: int):
        self.vocab_size = vocab_size
        self.pairs, self.n_pairs = count_pairs(train, vocab_size)
        first, second = self.pairs // vocab_size, self.pairs % vocab_size
        words = np.bincount(second, self.n_pairs, vocab_size)
        d = discount(words)
        self.unigram = (np.maximum(words - d, 0) + d * (words > 0).sum() / vocab_size) / words.sum()
        self.discount = discount(self.n_pairs)
        self.context = np.bincount(first, self.n_pairs, vocab_size)
        self.followers = np.bincount(first, minlength=vocab_size)

    def bigram(self, inputs: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """p(target | input), elementwise."""
        wanted = inputs.astype(np.int64) * self.vocab_size + targets
        at = np.minimum(np.searchsorted(self.pairs, wanted), len(self.pairs) - 1)
        seen = np.where(self.pairs[at] == wanted, self.n_pairs[at] - self.discount, 0)
        n = self.context[inputs]
        lower = self.unigram[targets]
        smoothed = (seen + self.discount * self.followers[inputs] * lower) / np.maximum(n, 1)
        return np.where(n > 0, smoothed, lower)


def count_pairs(train: np.ndarray, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Sorted distinct pairs, as first * vocab_size + second, and how often each occurs."""
    total = len(train) - 1
    n_blocks = -(-total // BLOCK)
    kept = min(n_blocks, MOST_PAIRS // BLOCK)
    keys, counts = np.empty(0, np.int64), np.empty(0, np.int64)
    for block in range(kept):
        start = (block * n_blocks // kept) * BLOCK
        ids = train[start : start + BLOCK + 1].astype(np.int64)
        new, n = _count(ids[:-1] * vocab_size + ids[1:], vocab_size**2)
        keys, where = np.unique(np.concatenate([keys, new]), return_inverse=True)
        counts = np.bincount(where, np.concatenate([counts, n])).astype(np.int64)
    return keys, counts


def _count(pairs: np.ndarray, n_possible: int) -> tuple[np.ndarray, np.ndarray]:
    if n_possible > BLOCK:
        return np.unique(pairs, return_counts=True)
    table = np.bincount(pairs, minlength=n_possible)
    keys = np.flatnonzero(table)
    return keys, table[keys]


def ngram_floors(train: np.ndarray, inputs: ArrayLike, targets: ArrayLike, vocab_size: int) -> Floors:
    """Fit on `train`, measure on the pairs (input, target); targets below zero are no part of the loss."""
    flat_inputs, flat_targets = np.asarray(inputs).ravel(), np.asarray(targets).ravel()
    counted = flat_targets >= 0
    flat_inputs, flat_targets = flat_inputs[counted], flat_targets[counted]
    model = AbsoluteDiscounting(train, vocab_size)
    return Floors(
        unigram=float(-np.log(model.unigram[flat_targets]).mean()),
        bigram=float(-np.log(model.bigram(flat_inputs, flat_targets)).mean()),
    )


def cached_floors(folder: Path, train: np.ndarray, inputs: ArrayLike, targets: ArrayLike, vocab_size: int) -> Floors:
    """The floors, kept beside the token files in `folder` that they belong to."""
    digest = hashlib.sha256(f"v1 {vocab_size} {len(train)} {MOST_PAIRS}".encode())
    for part in (inputs, targets):
        digest.update(np.ascontiguousarray(part, dtype="<i8").tobytes())
    path = folder / f"floors-{digest.hexdigest()[:16]}.json"
    try:
        return Floors(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        floors = ngram_floors(train, inputs, targets, vocab_size)
    with suppress(OSError):  # a cache shared for reading only still serves: counting again takes a second
        write_whole(path, json.dumps(asdict(floors)).encode())
    return floors
