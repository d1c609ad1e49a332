"""The lists of windows that judge and that choose: spread over the held-out text, and without a token in common."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from running import run

from modernllm.data.held_out import STARTS, HeldOut, HeldOutWindows, evaluation_starts, tuning_starts, windows_of


def line(n: int) -> np.ndarray:
    return np.arange(n, dtype=np.uint16)


def windows(held_out: HeldOut, tokens: np.ndarray, length: int = 10, n_tokens: int = 200) -> HeldOutWindows:
    trainer: dict[str, Any] = {"held_out": held_out, "validation_tokens": n_tokens}
    return windows_of(tokens, {"trainer": trainer, "model": {"context_length": length}})


@given(st.integers(1, 30), st.integers(1, 500), st.integers(1, 1000))
def test_windows_of_evaluation_do_not_overlap(length: int, extra: int, n_tokens: int) -> None:
    tokens = line(length + extra)
    starts = evaluation_starts(tokens, length, n_tokens)
    assert starts[0] == 0
    assert starts[-1] <= extra - 1
    assert (np.diff(starts) >= length).all()
    assert len(starts) == min(max(1, round(n_tokens / length)), (len(tokens) - 1) // length)
    assert (len(starts) == 1) or starts[-1] == extra - 1
    assert np.array_equal(starts, evaluation_starts(tokens, length, n_tokens))


@given(st.integers(1, 30), st.integers(1, 2000), st.integers(2, 100))
def test_windows_of_tuning_share_no_token_with_those_of_evaluation(length: int, extra: int, count: int) -> None:
    """Neither as input nor as target, wherever the text has three windows or more: two that judge, one between them."""
    tokens = line(3 * (length + 1) + extra)
    n_tokens = min(count, (len(tokens) - length - 1) // (2 * (length + 1)) + 1) * length
    judged, chosen = (windows(name, tokens, length, n_tokens) for name in STARTS)
    assert np.intersect1d(judged.positions, chosen.positions).size == 0
    assert len(chosen.positions) == (length + 1) * len(chosen.starts)  # nor with each other
    assert len(chosen.starts) == len(judged.starts) - 1 == n_tokens // length - 1
    assert judged.hash != chosen.hash
    assert chosen.batch.tokens[:, 0].tolist() == chosen.starts.tolist()


def test_the_most_that_leaves_room_is_told_and_no_more_does() -> None:
    """1,000 tokens, windows of 10: (1000 - 10 - 1) // 22 + 1 = 45 windows of evaluation, one of tuning in each gap."""
    with pytest.raises(ValueError, match=r"held_out=tuning: .* of 1,000 tokens .*validation_tokens=450 leaves it, or"):
        tuning_starts(line(1000), 10, 1000)
    assert len(tuning_starts(line(1000), 10, 450)) == 44
    with pytest.raises(ValueError, match="no room"):
        tuning_starts(line(1000), 10, 460)
    with pytest.raises(ValueError, match=r"of which there is one; trainer\.validation_tokens=20 makes them two"):
        tuning_starts(line(1000), 10, 10)
    with pytest.raises(ValueError, match=r"shorten model\.context_length"):
        tuning_starts(line(30), 10, 100)
    assert tuning_starts(line(33), 10, 20).tolist() == [11]  # 0..10 and 22..32 judge


@pytest.mark.parametrize("held_out", list(STARTS))
def test_a_text_without_a_window_is_an_error(held_out: HeldOut) -> None:
    with pytest.raises(ValueError, match=r"validation split has 8 tokens and a window needs 9"):
        windows(held_out, line(8), 8, 100)


def test_windows_are_known_by_where_they_are_and_what_they_hold() -> None:
    known = windows("evaluation", line(1000)).hash
    assert windows("evaluation", line(1000).astype(np.uint32)).hash == known
    assert windows("evaluation", line(1000), n_tokens=210).hash != known
    assert windows("evaluation", line(1000), length=20).hash != known
    changed = line(1000)
    changed[0] = 5
    assert windows("evaluation", changed).hash != known
    # as runs recorded it before there was a second list
    assert known == "191e9a821747705c9295af4ac84c0f65b6ba5e1f238e876d2ae66214729be331"


def test_what_is_measured_on_changes_nothing_that_is_learned(tmp_path: Path) -> None:
    """Losses and gradients are bitwise the same; the run, told apart by the hash of its windows, is another one."""
    words = ("trainer.steps=4", "trainer.eval_every=2", f"out={tmp_path}")
    (_, judged), (_, chosen) = run(*words), run(*words, "trainer.held_out=tuning")
    trained, measured = (
        [[row[key] for row in each.metrics if key in row] for each in (judged, chosen)] for key in ("loss", "val_loss")
    )
    assert trained[0] == trained[1]
    assert len(trained[0]) == 4
    assert [row.get("grad_norm") for row in judged.metrics] == [row.get("grad_norm") for row in chosen.metrics]
    assert measured[0] != measured[1]
    assert measured[0] == pytest.approx(measured[1], abs=0.2)  # of the same documents
    assert judged.path != chosen.path
    said = [(each.identity["held_out"], each.identity["validation"]) for each in (judged, chosen)]
    assert [held_out for held_out, _ in said] == ["evaluation", "tuning"]
    assert said[0][1] != said[1][1]
