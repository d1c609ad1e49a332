"""Windows against loops, in their limits, and with a cache that forgets (F-04, F-05)."""

from __future__ import annotations

import pytest
import torch
from attention_layers import DIM, HEADS, SIZE, decoded, equal, loops, made, prepared, run, side_by_side, text

from modernllm.attention.cache import Kept, KeptWindow
from modernllm.attention.multi_head import GroupedQueryAttention, MultiHeadAttention
from modernllm.attention.window import WindowAttention
from modernllm.position import NoPosition
from modernllm.position.alibi import ALiBi
from modernllm.position.rope import RoPE

LENGTH = 20
POSITIONS = [NoPosition, RoPE, ALiBi]


@pytest.mark.parametrize("position", [NoPosition, RoPE])
@pytest.mark.parametrize("n_kv_heads", [None, 2])
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_query_sees_itself_and_the_keys_before(size: int, n_kv_heads: int | None, position: type[NoPosition]) -> None:
    attention, x = made(WindowAttention, n_kv_heads, position, size=size), text(11)
    read = loops(attention, x, lambda t: range(max(0, t - size + 1), t + 1))
    equal(run(attention, x), attention.out(side_by_side(read)))


@pytest.mark.parametrize("size", [LENGTH, LENGTH + 1, 100])
def test_a_window_of_the_whole_text_is_none(size: int) -> None:
    """Bit for bit: the same kernel."""
    for n_kv_heads, full in ((None, MultiHeadAttention), (2, GroupedQueryAttention)):
        attention, other = made(WindowAttention, n_kv_heads, RoPE, size=size), made(full, n_kv_heads, RoPE)
        other.load_state_dict(attention.state_dict())
        x = text(LENGTH)
        assert torch.equal(run(attention, x), run(other, x))
        narrow = made(WindowAttention, n_kv_heads, RoPE, size=LENGTH - 1)
        narrow.load_state_dict(attention.state_dict())
        equal(run(narrow, x)[:, :-1], run(other, x)[:, :-1])
        assert float((run(narrow, x) - run(other, x))[:, -1].abs().max()) > 1e-3


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("size", [1, 3, 8])
@pytest.mark.parametrize(
    "parts", [[1] * LENGTH, [5, 1, 3, 1, 1, 9], [8, 12], [7, 8, 5], [LENGTH]], ids=lambda parts: f"{len(parts)} parts"
)
def test_a_full_window_goes_on(parts: list[int], size: int, position: type[NoPosition], softcap: float | None) -> None:
    """F-04: one token after the other, and chunks shorter and longer than the window, are the text at once."""
    attention, x = made(WindowAttention, 2, position, size=size, softcap=softcap), text(LENGTH)
    expected = run(attention, x)
    equal(decoded(attention, x, parts), expected)
    equal(decoded(attention, x[:, :9], [4, 5]), run(attention, x[:, :9]))  # a second text, with a new state


def test_the_cache_holds_the_window() -> None:
    attention = made(WindowAttention, 2, size=8)
    state = attention.state(3, 100)
    assert state.elements() == 2 * 3 * 2 * 8 * SIZE
    decoded(attention, text(20, 3), [20])
    decoded(attention, text(20, 3), [5] * 4, state)
    assert state.keys.rows.numel() + state.values.rows.numel() == state.elements()
    assert attention.state(3, 5).elements() == 2 * 3 * 2 * 5 * SIZE  # the text is shorter than the window


def test_a_kept_window_is_the_end_of_all() -> None:
    """Before every new token one less than `size` old ones, and after it the last `size`."""
    new, size = torch.arange(40.0).view(1, 1, 20, 2), 6
    window, whole, end = KeptWindow(1, 1, size, 2, torch.zeros(1)), Kept(1, 1, 20, 2, torch.zeros(1)), 0
    for n_tokens in (1, 4, 1, 1, 9, 4):
        part = new[:, :, end : end + n_tokens]
        expected = whole.extend(part)[:, :, -(size - 1 + n_tokens) :]
        assert torch.equal(window.extend(part), expected)
        end += n_tokens
        assert window.filled == min(end, size)
        assert torch.equal(window.rows[:, :, size - window.filled :], new[:, :, :end][:, :, -size:])


def test_windows_with_padding_and_documents() -> None:
    """A window counts the tokens of a text: padding within it takes no place, and no other document is seen."""
    attention, x = made(WindowAttention, position=RoPE, size=3), text(LENGTH)
    real = torch.rand(2, LENGTH) < 0.6
    found = run(attention, x, mask=real)
    for b in range(2):
        alone = run(attention, x[b : b + 1, real[b]])
        equal(found[b, real[b]], alone[0])
    segments = torch.tensor([[0] * 7 + [1] * 13, [0] * 2 + [1] * 9 + [2] * 9])
    found = run(attention, x, segments=segments)
    for b in range(2):
        for number in range(3):
            part = segments[b] == number
            if part.any():
                equal(found[b, part], run(attention, x[b : b + 1, part])[0])


@pytest.mark.parametrize("softcap", [None, 5.0])
def test_a_window_of_padding_alone(softcap: float | None) -> None:
    """F-09: no key at all gives zeros and finite gradients."""
    attention, x = made(WindowAttention, size=3, softcap=softcap), text(9).requires_grad_()
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0], mask[1, :5] = False, False
    y = attention(x, prepared(attention, x, mask=mask))
    assert torch.equal(y[0], torch.zeros(9, DIM, dtype=torch.float64))
    assert torch.equal(y[1, :5], torch.zeros(5, DIM, dtype=torch.float64))
    for gradient in torch.autograd.grad(y.square().sum(), [x, *attention.parameters()]):
        assert gradient.isfinite().all()


def test_heads_that_do_not_divide() -> None:
    with pytest.raises(ValueError, match=rf"model\.n_kv_heads=3 does not divide model\.n_heads={HEADS}"):
        made(WindowAttention, 3)
