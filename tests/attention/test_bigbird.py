"""The keys that BigBird's queries see: how many, which, always the same, and what is made of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attention_layers import decoded, equal, loops, made, prepared, run, side_by_side, text
from torch import Tensor

from modernllm.attention.bigbird import BigBirdAttention, scrambled
from modernllm.attention.multi_head import MultiHeadAttention
from modernllm.attention.window import WindowAttention
from modernllm.position import NoPosition
from modernllm.position.rope import RoPE

LENGTH, KEYS = 40, {"size": 4, "globals": 2, "random": 3}


def bigbird(**keys: Any) -> Any:
    return made(BigBirdAttention, **(KEYS | keys))


def visible(attention: Any, n_tokens: int = LENGTH) -> Tensor:
    mask = attention.visible(prepared(attention, text(n_tokens, 1)))
    assert mask is not None
    return mask[0, 0]


def test_how_many_keys_a_query_sees() -> None:
    """The last 4, the first 2, and 3 of the others, once there are as many."""
    seen = visible(bigbird())
    for t in range(LENGTH):
        row = set(seen[t].nonzero().flatten().tolist())
        always = {s for s in range(t + 1) if s > t - 4 or s < 2}
        others = set(range(t + 1)) - always
        assert always <= row <= set(range(t + 1))
        assert len(row - always) == min(3, len(others))


@pytest.mark.parametrize("position", [NoPosition, RoPE])
def test_the_formula(position: type[NoPosition]) -> None:
    attention, x = bigbird(position=position, n_kv_heads=2), text(15)
    seen = visible(attention, 15)
    read = loops(attention, x, lambda t: seen[t].nonzero().flatten().tolist())
    equal(run(attention, x), attention.out(side_by_side(read)))


def test_the_same_keys_in_every_step_and_run() -> None:
    """From the seed, the layer and the positions; nothing is drawn from the common stream, or put back into it."""
    attention, x = bigbird(), text(LENGTH)
    before = torch.get_rng_state()
    first = run(attention, x)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(7)
    assert torch.equal(run(attention, x), first)
    assert torch.equal(visible(attention), visible(bigbird()))
    assert torch.equal(visible(attention, LENGTH), visible(attention, 64)[:LENGTH, :LENGTH])
    assert visible(attention)[:, 2:].sum() > 150
    for other in ({"seed": 1}, {"layer": 1}):
        assert float((visible(bigbird(**other)) != visible(attention)).float().mean()) > 0.05
    assert torch.equal(visible(bigbird(seed=3, layer=5)), visible(bigbird(seed=3, layer=5)))


def test_all_keys_are_as_likely() -> None:
    """The draws of 2000 seeds at three queries, and of 60 queries each: no key is preferred, no two go together."""
    counts, together = torch.zeros(LENGTH), torch.zeros(LENGTH, LENGTH)
    for seed in range(2000):
        row = visible(bigbird(seed=seed))[39].float()
        counts += row
        together += row[:, None] * row
    others = counts[2:36]  # 34 keys, of which 3 are drawn
    assert float(others.sum()) == 6000
    expected = 6000 / 34
    chi_square = float(((others - expected) ** 2 / expected).sum()) / (1 - 3 / 34)
    assert chi_square < 63.9  # 33 degrees of freedom: one in a thousand lies above
    pairs = together[2:36, 2:36][torch.ones(34, 34).triu(1).bool()]
    assert float(pairs.max()) < 35  # 2000 * 3 * 2 / (34 * 33) = 10.7 expected


def test_neighbouring_queries_draw_on_their_own() -> None:
    """Not the same keys, nor their neighbours: of the few below 90 the next query draws each 3 times in 100 to 400."""
    seen = visible(bigbird(), 400)[100:, 2:90]
    drawn = float(seen.sum(1).float().mean())
    for other in (torch.arange(88), torch.arange(88) ^ 1, (torch.arange(88) + 1) % 88):
        shared = (seen[1:] & seen[:-1, other]).sum(1).float()
        assert float(shared.mean()) < 3 * drawn * 3 / 100


@pytest.mark.parametrize("keys", [{"size": 100}, {"globals": 100}, {"random": 100}])
def test_one_part_that_holds_everything_is_full_attention(keys: dict[str, int]) -> None:
    attention, other, x = bigbird(position=RoPE, **keys), made(MultiHeadAttention, position=RoPE), text(LENGTH)
    other.load_state_dict(attention.state_dict())
    equal(run(attention, x), run(other, x))


def test_without_globals_and_random_keys_it_is_a_window() -> None:
    attention, x = bigbird(position=RoPE, globals=0, random=0), text(LENGTH)
    other = made(WindowAttention, position=RoPE, size=4)
    other.load_state_dict(attention.state_dict())
    assert torch.equal(run(attention, x), run(other, x))


@pytest.mark.parametrize("parts", [[1] * LENGTH, [5, 1, 3, 31], [30, 10]], ids=lambda parts: f"{len(parts)} parts")
def test_decoding(parts: list[int]) -> None:
    attention, x = bigbird(position=RoPE, n_kv_heads=1), text(LENGTH)
    equal(decoded(attention, x, parts), run(attention, x))
    assert attention.state(3, 10).elements() == 2 * 3 * 10 * 6  # any key may be drawn: all are kept


def test_padding_and_documents() -> None:
    """The keys that a text sees are those that it sees alone: neither padding nor a neighbour takes a place."""
    attention, x = bigbird(position=RoPE), text(LENGTH)
    real = torch.rand(2, LENGTH) < 0.7
    found = run(attention, x, mask=real)
    for b in range(2):
        equal(found[b, real[b]], run(attention, x[b : b + 1, real[b]])[0])
    segments = torch.tensor([[0] * 17 + [1] * 23, [0] * 2 + [1] * 19 + [2] * 19])
    found = run(attention, x, segments=segments)
    for b in range(2):
        for number in range(1, 3):
            part = segments[b] == number
            if part.any():
                equal(found[b, part], run(attention, x[b : b + 1, part])[0])


def test_numbers_without_a_pattern() -> None:
    """Different for different input, below 2^32, each bit set half of the time, and half of them turned by one bit."""
    x = torch.arange(1 << 16)
    y = scrambled(x)
    assert len(y.unique()) == len(x)
    assert 0 <= int(y.min()) < int(y.max()) < 1 << 32
    for bit in range(32):
        assert float((y >> bit & 1).double().mean()) == pytest.approx(0.5, abs=0.02)
    flipped = torch.stack([y ^ scrambled(x ^ 1 << bit) for bit in range(16)])
    share = torch.stack([(flipped >> bit & 1).double().mean() for bit in range(32)])
    assert 0.3 < float(share.min()) < float(share.max()) < 0.7
