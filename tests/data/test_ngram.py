"""Floors: probabilities that sum to one, the formula written out, and the default text."""

from __future__ import annotations

import time
from collections import Counter
from math import log
from pathlib import Path

import numpy as np
import pytest
from cpu_time import cpu_seconds

from modernllm.data import ngram
from modernllm.data.ngram import AbsoluteDiscounting, Floors, cached_floors, discount, ngram_floors
from modernllm.data.prepare import prepare
from modernllm.data.stdlib import StandardLibrary
from modernllm.data.synthetic import Synthetic
from modernllm.data.tokenizers.byte import ByteTokenizer


def zipf(n: int, vocab_size: int, seed: int = 0) -> np.ndarray:
    return np.minimum(np.random.default_rng(seed).zipf(1.4, n) - 1, vocab_size - 1).astype(np.uint16)


@pytest.mark.parametrize(("n", "vocab_size"), [(3000, 40), (50, 40), (2, 5), (3000, 2000)])
def test_probabilities_sum_to_one(n: int, vocab_size: int) -> None:
    model = AbsoluteDiscounting(zipf(n, vocab_size - 1), vocab_size)
    assert model.unigram.sum() == pytest.approx(1, abs=1e-12)
    assert model.unigram.min() > 0
    targets = np.arange(vocab_size)
    for context in (0, 1, vocab_size - 1):
        p = model.bigram(np.full(vocab_size, context), targets)
        assert p.sum() == pytest.approx(1, abs=1e-9)
        assert p.min() > 0


def test_the_formula_written_out() -> None:
    train, vocab_size = zipf(400, 30), 32
    pairs = Counter(zip(train[:-1].tolist(), train[1:].tolist(), strict=True))
    words = Counter(train[1:].tolist())
    d1, d2 = (discount(np.array(list(counts.values()))) for counts in (words, pairs))

    def unigram(w: int) -> float:
        n = sum(words.values())
        return (max(words[w] - d1, 0) + d1 * len(words) / vocab_size) / n

    def bigram(u: int, w: int) -> float:
        n = sum(count for (a, _), count in pairs.items() if a == u)
        kinds = sum(a == u for a, _ in pairs)
        return (max(pairs[u, w] - d2, 0) + d2 * kinds * unigram(w)) / n if n else unigram(w)

    inputs, targets = np.array([0, 0, 1, 31, 5, 2]), np.array([0, 1, 31, 3, 30, 2])
    floors = ngram_floors(train, inputs, targets, vocab_size)
    assert floors.unigram == pytest.approx(-np.mean([log(unigram(int(w))) for w in targets]))
    wanted = -np.mean([log(bigram(int(u), int(w))) for u, w in zip(inputs, targets, strict=True)])
    assert floors.bigram == pytest.approx(wanted)


def test_discount() -> None:
    assert discount(np.array([1, 1, 1, 2, 5])) == 3 / 5
    assert discount(np.array([2, 3])) == 0.5
    assert discount(np.array([1, 3])) == 0.5


def test_a_chain_that_is_certain() -> None:
    """0 1 2 3 0 1 2 3 ...: nothing to learn from frequencies, everything from the token before."""
    train = np.tile(np.arange(4), 5000)
    floors = ngram_floors(train, train[:-1], train[1:], 4)
    assert floors.unigram == pytest.approx(log(4), abs=1e-3)
    assert 0 < floors.bigram < 1e-3


def test_sparse_blocks_and_dense_counts_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    train = zipf(20_000, 300)
    dense = ngram.count_pairs(train, 300)
    monkeypatch.setattr(ngram, "BLOCK", 1000)
    monkeypatch.setattr(ngram, "MOST_PAIRS", 1_000_000)
    sparse = ngram.count_pairs(train, 300)
    assert np.array_equal(dense[0], sparse[0])
    assert np.array_equal(dense[1], sparse[1])
    monkeypatch.setattr(ngram, "MOST_PAIRS", 5000)
    assert ngram.count_pairs(train, 300)[1].sum() == 5000


def test_large_vocabulary_and_ignored_targets() -> None:
    train = zipf(200_000, 50_000)
    inputs, targets = train[:1000].astype(np.int64), train[1:1001].astype(np.int64)
    floors = ngram_floors(train, inputs, targets, 50_257)
    assert cpu_seconds(lambda: ngram_floors(train, inputs, targets, 50_257)) < 2
    more = ngram_floors(train, np.append(inputs, 3), np.append(targets, -100), 50_257)
    assert more == floors


def test_default_text(tmp_path: Path) -> None:
    """Counting all pairs of 10 MB takes a fraction of a second; a second time it is read."""
    data = prepare(StandardLibrary(), ByteTokenizer(), tmp_path)
    pairs = data.validation[:-1], data.validation[1:]
    start = time.process_time()
    floors = cached_floors(data.folder, data.train, *pairs, vocab_size=259)
    assert time.process_time() - start < 1
    assert 3.2 < floors.unigram < 3.4
    assert 2.3 < floors.bigram < 2.5
    (file,) = data.folder.glob("floors-*.json")
    file.write_text('{"unigram": 2.0, "bigram": 1.0}', encoding="utf-8")
    assert cached_floors(data.folder, data.train, *pairs, vocab_size=259) == Floors(2.0, 1.0)
    assert cpu_seconds(lambda: prepare(StandardLibrary(), ByteTokenizer(), tmp_path)) < 0.7


def test_synthetic_text_has_something_to_learn(tmp_path: Path) -> None:
    data = prepare(Synthetic(), ByteTokenizer(), tmp_path)
    floors = ngram_floors(data.train, data.validation[:-1], data.validation[1:], 259)
    assert floors.unigram - floors.bigram > 0.3
    assert floors.unigram == pytest.approx(3.095, abs=0.01)
