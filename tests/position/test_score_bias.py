"""What is added to the scores: ALiBi and T5's buckets, against loops over queries and keys (F-08)."""

from __future__ import annotations

import math

import pytest
import torch
from models import LENGTH, close, tiny, windows
from torch import Tensor, nn

from modernllm.batch import Batch
from modernllm.context import Context
from modernllm.position import NoPosition, ScoreBias
from modernllm.position.alibi import ALiBi, slopes
from modernllm.position.t5 import T5


def bias(position: NoPosition, context: Context) -> Tensor:
    position.prepare(context)
    found = position.bias(context)
    assert found is not None
    return found


def alibi(n_heads: int = 4) -> ALiBi:
    return ALiBi(8 * n_heads, n_heads, 8, LENGTH)


def t5(n_heads: int = 4, **keys: int) -> T5:
    """With a table of random numbers."""
    position = T5(8 * n_heads, n_heads, 8, LENGTH, **keys)
    nn.init.normal_(position.table)
    return position


# --- ALiBi


def test_the_slopes_of_powers_of_two() -> None:
    assert slopes(8) == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert slopes(4) == [1 / 4, 1 / 16, 1 / 64, 1 / 256]
    assert slopes(1) == [1 / 256]
    assert slopes(16)[::2] == pytest.approx([2 ** (-h + 0.5) for h in range(1, 9)])


def test_the_slopes_of_other_numbers() -> None:
    """F-08: those of the power below, and then every second one of the power above."""
    assert slopes(6) == [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]
    assert slopes(12)[:8] == slopes(8)
    assert slopes(12)[8:] == pytest.approx([0.70711, 0.35355, 0.17678, 0.08839], abs=5e-6)
    assert slopes(3) == [1 / 16, 1 / 256, 1 / 4]


@pytest.mark.parametrize("n_heads", range(1, 33))
def test_each_head_has_a_slope_of_its_own(n_heads: int) -> None:
    found = slopes(n_heads)
    assert len(set(found)) == len(found) == n_heads
    assert all(1 / 256 <= slope < 1 for slope in found)


@pytest.mark.parametrize("n_heads", [4, 5, 6])
def test_alibi_is_its_formula(n_heads: int) -> None:
    """Zero on the diagonal, below zero elsewhere; also with as many heads as tokens."""
    found = bias(alibi(n_heads), Context(positions=torch.arange(5)[None]))
    expected = [[[-slopes(n_heads)[h] * abs(i - j) for j in range(5)] for i in range(5)] for h in range(n_heads)]
    torch.testing.assert_close(found, torch.tensor([expected]))
    assert torch.equal(found.diagonal(dim1=2, dim2=3), torch.zeros(1, n_heads, 5))
    assert float(found[0, :, ~torch.eye(5, dtype=torch.bool)].max()) < 0


def test_alibi_stays_float32() -> None:
    """bf16 knows no odd number above 256: distances would fall together."""
    with torch.autocast("cpu", torch.bfloat16):
        found = bias(alibi().bfloat16(), Context(positions=torch.arange(1024)[None]))
    assert found.dtype == torch.float32
    assert len(found[0, 0, -1].unique()) == 1024
    assert list(alibi().state_dict()) == []


# --- T5


def bucket(distance: int, buckets: int, max_distance: int) -> int:
    """Of a key that lies `distance` tokens back."""
    exact = buckets // 2
    if distance < exact:
        return max(distance, 0)
    share = math.log(distance / exact) / math.log(max_distance / exact)
    return min(exact + int(share * (buckets - exact)), buckets - 1)


@pytest.mark.parametrize(("buckets", "max_distance"), [(32, 128), (16, 32), (8, 20), (7, 50), (6, 100), (2, 9)])
def test_the_buckets(buckets: int, max_distance: int) -> None:
    distances = torch.arange(-10, 700)
    found = T5(32, 4, 8, LENGTH, buckets, max_distance).bucket(distances[None, None])[0, 0]
    assert found.tolist() == [bucket(int(d), buckets, max_distance) for d in distances]
    assert torch.equal(found, found.sort().values)
    assert int(found[-1]) == int(found[10 + max_distance]) == buckets - 1
    assert found[10 : 10 + buckets // 2].tolist() == list(range(buckets // 2))


def test_the_published_buckets() -> None:
    """32 up to 128, as in T5: sixteen distances of their own, then ranges that grow."""
    found = T5(32, 4, 8, LENGTH).bucket(torch.arange(140)[None, None])[0, 0].tolist()
    starts = [found.index(b) for b in range(32)]
    assert starts == [*range(17), 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]


@pytest.mark.parametrize("n_heads", [4, 5, 6])
def test_t5_is_its_formula(n_heads: int) -> None:
    """Also with as many heads as tokens."""
    position = t5(n_heads, buckets=4, max_distance=5)
    found = bias(position, Context(positions=torch.arange(5)[None]))
    for i in range(5):
        for j in range(i + 1):
            assert torch.equal(found[0, :, i, j], position.table[bucket(i - j, 4, 5)])


@pytest.mark.parametrize(("buckets", "max_distance"), [(1, 128), (32, 16), (32, 3)])
def test_buckets_that_do_not_fit_are_refused(buckets: int, max_distance: int) -> None:
    with pytest.raises(ValueError, match=rf"position=t5 .*buckets={buckets} .*max_distance={max_distance} "):
        T5(32, 4, 8, LENGTH, buckets, max_distance)


def test_t5_starts_as_no_positions() -> None:
    """Its table is drawn as a bias is, and is the only parameter that it adds to the stack."""
    model, none = tiny("position=t5"), tiny("position=none")
    close(model(windows()), none(windows()))
    names = {name for name, _ in model.named_parameters()} - {name for name, _ in none.named_parameters()}
    assert names == {"position.table"}
    assert model.position.get_parameter("table").shape == (32, 4)


def test_all_layers_share_the_table() -> None:
    """Its gradient is the sum over the layers."""
    model = tiny("position=t5")
    batch = windows()

    def gradient(layers: set[int]) -> Tensor:
        """With the bias cut off from the table in all other layers."""
        model.zero_grad()
        for layer, block in enumerate(model.blocks):
            attention = block.get_submodule("sublayers.attention")
            scheme = model.position if layer in layers else NoPosition(32, 4, 8, LENGTH)
            attention._position = (scheme,)  # type: ignore[assignment]
        model(batch).logsumexp(-1).sum().backward()
        found = model.position.get_parameter("table").grad
        assert found is not None
        return found.clone()

    first, second, both = gradient({0}), gradient({1}), gradient({0, 1})
    assert float(first.abs().max()) > 0
    torch.testing.assert_close(first + second, both, rtol=1e-4, atol=1e-4 * float(both.abs().max()))


# --- positions of queries and keys


@pytest.mark.parametrize("position", [alibi(), t5()], ids=lambda p: type(p).__name__)
def test_a_part_after_others_sees_all_keys(position: ScoreBias) -> None:
    """F-08: a chunk's rows are the last rows of the whole text's."""
    tokens = torch.zeros(2, 9, dtype=torch.long)
    whole = bias(position, Context.of(Batch(tokens)))
    for past in (0, 1, 4, 8):
        part = bias(position, Context.of(Batch(tokens[:, past:]), [], past))
        assert part.shape == (1, 4, 9 - past, 9)
        assert torch.equal(part, whole[:, :, past:])


@pytest.mark.parametrize("position", [alibi(), t5()], ids=lambda p: type(p).__name__)
def test_padding_and_documents_have_their_own_distances(position: ScoreBias) -> None:
    """Where a key may be seen, what is added is that of the text alone."""
    tokens, mask = torch.zeros(2, 9, dtype=torch.long), torch.ones(2, 9, dtype=torch.bool)
    mask[1, :3] = False
    mask[1, 5] = False  # a hole does not count as distance
    segments = torch.tensor([[0] * 4 + [1] * 5, [0] * 9])
    context = Context.of(Batch(tokens, mask=mask, segments=segments))
    found, alone = bias(position, context), bias(position, Context(positions=torch.arange(9)[None]))
    assert context.mask is not None
    seen = [[b, t, s] for b, _, t, s in context.mask.nonzero().tolist() if mask[b, t]]
    assert len(seen) == 10 + 15 + 15
    for b, t, s in seen:
        distance = int(mask[b, s:t].sum())
        assert torch.equal(found[b, :, t, s], alone[0, :, distance, 0])


@pytest.mark.parametrize("choice", ["position=alibi", "position=t5"])
def test_the_scores_of_a_model(choice: str) -> None:
    """The first layer's attention, written out: scores plus bias, then softmax."""
    model = tiny(choice, "attention=gqa").double()
    for name, p in model.named_parameters():
        if name == "position.table":
            nn.init.normal_(p)
    layer, x = model.blocks[0].get_submodule("sublayers.attention"), torch.randn(2, 7, 32, dtype=torch.float64)
    context = Context.of(Batch(torch.zeros(2, 7, dtype=torch.long)))
    model.position.prepare(context)
    q, k, v = (layer.get_submodule(name)(x).unflatten(2, (-1, 8)) for name in "qkv")
    added = bias(model.position, context).double()
    heads = []
    for h in range(4):
        scores = torch.einsum("btk,bsk->bts", q[:, :, h], k[:, :, h // 2]) / math.sqrt(8) + added[:, h]
        weights = scores.masked_fill(~torch.ones(7, 7, dtype=torch.bool).tril(), -math.inf).softmax(-1)
        heads.append(weights @ v[:, :, h // 2])
    expected = layer.get_submodule("out")(torch.stack(heads, 2).flatten(2))
    close(layer(x, context), expected, 1e-6)


def test_near_keys_weigh_more() -> None:
    """With equal scores the weights of ALiBi fall by e^(-slope) a token: the steepest head looks back the least."""
    model = tiny("position=alibi")
    captured: list[Tensor] = []
    attend = model.blocks[0].get_submodule("sublayers.attention.attend")
    attend.register_forward_pre_hook(lambda module, given: captured.extend(given[:3]))
    model(windows(rows=1))
    q, k, _ = captured
    context = Context(positions=torch.arange(LENGTH)[None])
    one_hot = torch.eye(LENGTH).expand(1, 4, -1, -1)
    weights = attend(torch.zeros_like(q), k, one_hot, None, bias(model.position, context))[0, :, -1]
    ratio = weights[:, 1:] / weights[:, :-1]
    torch.testing.assert_close(ratio, torch.tensor(slopes(4)).exp()[:, None].expand(-1, LENGTH - 1))
