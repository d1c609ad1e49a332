"""Positions and masks against loops over every query and key (F-05, F-57)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from modernllm.batch import IGNORED, Batch
from modernllm.context import Context

TOKENS = torch.zeros(3, 5, dtype=torch.int64)


def test_plain_text_needs_no_mask() -> None:
    context = Context.of(Batch(TOKENS))
    assert context.positions.tolist() == [[0, 1, 2, 3, 4]]
    assert context.mask is None


def test_one_more_token_needs_no_mask_and_several_do() -> None:
    """After 4 tokens: one sees all 5 keys; of three, the first sees 5, the last 7."""
    one = Context.of(Batch(TOKENS[:, :1]), [], past=4)
    assert (one.positions.tolist(), one.mask) == ([[4]], None)
    three = Context.of(Batch(TOKENS[:, :3]), [], past=4)
    assert three.positions.tolist() == [[4, 5, 6]]
    assert three.mask is not None
    assert three.mask[0, 0].int().tolist() == [[1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 1, 0], [1] * 7]


def test_keys_and_their_distances() -> None:
    """Positions of what is kept come before the new ones, and a query sees what does not lie ahead."""
    for n_tokens, past in ((5, 0), (1, 4), (3, 4)):
        context = Context.of(Batch(TOKENS[:, :n_tokens]), [], past)
        assert context.key_positions.tolist() == [list(range(past + n_tokens))]
        expected = [[t - s for s in range(past + n_tokens)] for t in range(past, past + n_tokens)]
        assert context.distances()[0].tolist() == expected
        assert context.seen()[0, 0].tolist() == [[distance >= 0 for distance in row] for row in expected]
    padded = Context.of(Batch(TOKENS, mask=torch.tensor([[False, True, True, False, True]] * 3)))
    assert padded.key_positions[0].tolist() == padded.positions[0].tolist() == [0, 0, 1, 2, 2]
    assert padded.seen() is padded.mask


@given(
    rows=st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=9, max_size=9), min_size=1, max_size=3
    ),
    use=st.sampled_from(["segments", "mask", "both"]),
)
def test_a_position_sees_the_real_tokens_before_it_in_its_document(
    rows: list[list[tuple[int, bool]]], use: str
) -> None:
    """And its number counts the real tokens of its document before it, wherever the padding is."""
    segments = [[number if use != "mask" else 0 for number, _ in row] for row in rows]
    mask = [[real if use != "segments" else True for _, real in row] for row in rows]
    batch = Batch(
        torch.zeros(len(rows), 9, dtype=torch.int64),
        segments=torch.tensor(segments) if use != "mask" else None,
        mask=torch.tensor(mask) if use != "segments" else None,
    )
    context = Context.of(batch)
    assert context.mask is not None
    for b, (numbers, real) in enumerate(zip(segments, mask, strict=True)):
        for t in range(9):
            seen = [s <= t and numbers[s] == numbers[t] and real[s] for s in range(9)]
            assert context.mask[b, 0, t].tolist() == seen
            start = t
            while start > 0 and numbers[start - 1] == numbers[t]:
                start -= 1
            assert int(context.positions[b, t]) == sum(real[start:t])


def test_padding_and_segments_are_not_decoded() -> None:
    for batch in (Batch(TOKENS, segments=TOKENS), Batch(TOKENS, mask=TOKENS == 0)):
        with pytest.raises(ValueError, match="padding and segments are not kept"):
            Context.of(batch, [], past=2)


def test_a_batch_is_cut_into_rows_in_order() -> None:
    windows = torch.arange(5 * 4).view(5, 4)
    batch = Batch.from_windows(windows)
    assert batch.targets is not None
    assert torch.equal(batch.tokens, windows[:, :3])
    assert torch.equal(batch.targets, windows[:, 1:])
    parts = list(batch.split(2))
    assert [len(part.tokens) for part in parts] == [2, 2, 1]
    assert [part.mask for part in parts] == [None] * 3
    assert torch.equal(torch.cat([part.tokens for part in parts]), batch.tokens)
    assert torch.equal(torch.cat([part.targets for part in parts if part.targets is not None]), batch.targets)


def test_targets_that_count() -> None:
    targets = torch.tensor([[1, IGNORED, 2], [IGNORED, IGNORED, 0]])
    assert Batch(targets.clamp(min=0), targets).n_targets == 3
    assert Batch(targets.clamp(min=0)).n_targets == 0
