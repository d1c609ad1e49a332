"""Windows: every start, nothing beyond the end, and a function of seed and step alone."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modernllm.data.windows import Windows, gather


def line(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.uint16)


def test_the_shortest_texts() -> None:
    """F-53: N = block is an error, one more token is one start, two more are two."""
    with pytest.raises(ValueError, match=r"train split has 8 tokens and a window needs 9 .*context_length=8.* data"):
        Windows(line(8), 8, 1, 0)
    assert Windows(line(9), 8, 4, 0).n_starts == 1
    assert Windows(line(10), 8, 4, 0).n_starts == 2
    assert {int(s) for step in range(50) for s in Windows(line(10), 8, 4, 0).starts(step)} == {0, 1}


@given(st.integers(1, 20), st.integers(1, 60), st.integers(0, 1 << 40), st.integers(0, 1 << 40))
def test_targets_follow_their_tokens(length: int, extra: int, seed: int, step: int) -> None:
    windows = Windows(line(length + extra), length, 5, seed)
    starts = windows.starts(step)
    batch = windows(step)
    assert starts.min() >= 0
    assert starts.max() <= extra - 1
    assert batch.targets is not None
    assert batch.tokens.shape == batch.targets.shape == (5, length)
    assert batch.tokens.dtype == batch.targets.dtype == torch.int64
    assert torch.equal(batch.targets, batch.tokens + 1)
    assert batch.tokens[:, 0].tolist() == starts.tolist()


def test_every_start_is_drawn_and_evenly() -> None:
    windows = Windows(line(108), 8, 100, seed=3)
    counts = np.bincount(np.concatenate([windows.starts(step) for step in range(1000)]), minlength=100)
    assert len(counts) == 100
    assert counts.min() > 850
    assert counts.max() < 1150
    assert ((counts - 1000) ** 2 / 1000).sum() < 150


def test_no_token_is_left_out() -> None:
    """F-29: each but the first is a target, and those that are not near an end are so equally often."""
    windows = Windows(line(108), 8, 100, seed=3)
    counts = np.zeros(108)
    for step in range(1000):
        targets = windows(step).targets
        assert targets is not None
        counts += np.bincount(targets.flatten().numpy(), minlength=108)
    expected = np.array([0, *(1000 * min(p, 108 - p, 8, 100) for p in range(1, 108))])
    assert counts[0] == 0
    assert np.abs(counts[1:] / expected[1:] - 1).max() < 0.15
    assert counts.sum() == expected.sum() == 1000 * 100 * 8


def test_a_function_of_seed_and_step() -> None:
    """F-89, F-91: seeds and steps differ, the order of calls is nothing, the stream is fixed for good."""
    windows = Windows(line(5000), 16, 8, seed=1)
    later = windows.starts(7)
    assert np.array_equal(later, Windows(line(5000), 16, 8, seed=1).starts(7))
    seen = {Windows(line(5000), 16, 8, seed).starts(step).tobytes() for seed in range(5) for step in range(5)}
    assert len(seen) == 25
    key = int.from_bytes(hashlib.sha256(b"data 1 7").digest()[:16], "little")
    raw = [int(value) for value in np.random.Philox(key=key).random_raw(8)]
    assert later.tolist() == [value % 4984 for value in raw]
    assert later.tolist() == [4714, 3615, 4166, 508, 1714, 1888, 3245, 3320]


def test_large_starts_and_ids_are_exact() -> None:
    tokens = np.array([70_000, 65_536, 3], np.uint32)
    batch = gather(tokens, np.array([0, 1]), 1)
    assert batch.tokens.tolist() == [[70_000], [65_536]]
    assert batch.targets is not None
    assert batch.targets.tolist() == [[65_536], [3]]
