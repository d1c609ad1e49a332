"""Rotary positions for texts longer than those of training: their frequencies, written out, and their limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from modernllm.context import Context
from modernllm.position.rope import RoPE
from modernllm.position.rope_linear import LinearRoPE
from modernllm.position.rope_ntk import DynamicNTKRoPE, NTKRoPE
from modernllm.position.rope_yarn import YaRN

TRAINED, HEAD = 64, 16


def phases(position: RoPE, length: int = TRAINED, said: int = 0) -> Tensor:
    """The angle of each position and pair, unwrapped as position times frequency, and checked against the turns."""
    context = Context(positions=torch.arange(length)[None], length=said)
    position.prepare(context)
    angles = torch.arange(length)[:, None] * position.frequencies(context)[0, 0]
    table, half = context.position, position.n_turned // 2
    parts = table[0, 0].unbind(-1) if position.layout == "interleaved" else table[:, 0, 0, :, :half].unbind()
    turns = torch.complex(*parts)
    torch.testing.assert_close(turns, position.magnitude * torch.exp(1j * angles), rtol=0, atol=1e-5)
    return angles


def made(kind: Callable[..., RoPE], head_dim: int = HEAD, base: float = 1000.0, **keys: object) -> RoPE:
    return kind(64, 4, head_dim, TRAINED, base, **keys)


def expected(frequencies: list[float], length: int = TRAINED) -> Tensor:
    return torch.tensor([[p * f for f in frequencies] for p in range(length)])


def plain(base: float, head_dim: int = HEAD) -> list[float]:
    return [base ** (-2 * i / head_dim) for i in range(head_dim // 2)]


def close(actual: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(actual, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "position",
    [made(LinearRoPE, factor=1.0), made(NTKRoPE, factor=1.0), made(YaRN, factor=1.0), made(DynamicNTKRoPE)],
    ids=lambda position: type(position).__name__,
)
def test_a_factor_of_one_is_rope(position: RoPE) -> None:
    """Bit for bit; the dynamic one within the trained context."""
    x = torch.randn(2, 4, TRAINED, HEAD)
    turned = []
    for scheme in (position, made(RoPE)):
        context = Context(positions=torch.arange(TRAINED)[None])
        scheme.prepare(context)
        turned.append(scheme.rotate(x, x, context)[0])
    assert torch.equal(*turned)


@pytest.mark.parametrize("factor", [2.0, 8.0])
def test_linear_divides_positions(factor: float) -> None:
    """Position 4 p of a factor of 4 is position p of RoPE."""
    position = made(LinearRoPE, factor=factor)
    close(phases(position, 200), expected([f / factor for f in plain(1000.0)], 200))
    every = int(factor)
    close(phases(position, 200)[::every], phases(made(RoPE), 200)[: len(range(0, 200, every))])


@pytest.mark.parametrize("factor", [2.0, 8.0])
def test_ntk_enlarges_the_base(factor: float) -> None:
    """The first pair is left alone and the last slowed down by the factor."""
    angles = phases(made(NTKRoPE, factor=factor), 200)
    close(angles, expected(plain(1000.0 * factor ** (HEAD / (HEAD - 2))), 200))
    ratio = phases(made(RoPE), 200)[100] / angles[100]
    assert float(ratio[0]) == pytest.approx(1.0)
    assert float(ratio[-1]) == pytest.approx(factor, rel=1e-5)
    assert torch.equal(ratio, ratio.sort().values)


@pytest.mark.parametrize("factor", [1.0, 2.0, 4.0])
@pytest.mark.parametrize("length", [TRAINED + 1, 100, 300])
def test_dynamic_enlarges_the_base_with_the_text(length: int, factor: float) -> None:
    base = 1000.0 * (factor * length / TRAINED - (factor - 1)) ** (HEAD / (HEAD - 2))
    close(phases(made(DynamicNTKRoPE, factor=factor), length), expected(plain(base), length))


def test_dynamic_with_a_factor_of_one_is_ntk_by_the_length() -> None:
    stretch = 200 / TRAINED
    close(phases(made(DynamicNTKRoPE, factor=1.0), 200), phases(made(NTKRoPE, factor=stretch), 200))


def test_dynamic_with_no_factor_is_rope() -> None:
    close(phases(made(DynamicNTKRoPE, factor=0.0), 200), phases(made(RoPE), 200))


def test_dynamic_takes_each_row_by_itself() -> None:
    """A longer neighbour in the batch changes nothing, and padding on the left is no length."""
    position = made(DynamicNTKRoPE)
    positions = torch.stack([torch.arange(200), (torch.arange(200) - 120).clamp(min=0)])
    context = Context(positions=positions)
    found = position.frequencies(context)
    close(found[0], position.frequencies(Context(positions=positions[:1]))[0])
    close(found[1, 0, 0], torch.tensor(plain(1000.0 * (2 * 80 / TRAINED - 1) ** (HEAD / (HEAD - 2)))))


def test_dynamic_takes_the_length_that_a_generation_says() -> None:
    """The first tokens of a long text are turned as its last, and a shorter promise than the text is no limit."""
    position = made(DynamicNTKRoPE)
    close(phases(position, 5, said=300), phases(position, 300)[:5])
    close(phases(position, 300, said=100), phases(position, 300))
    assert torch.equal(phases(position, 5, said=TRAINED), phases(made(RoPE), 5))


def yarn(head_dim: int, base: float, factor: float, context: int, fast: float, slow: float) -> list[float]:
    """One pair after the other: kept, slowed down, or in between."""

    def pair(turns: float) -> float:
        return head_dim * math.log(context / (2 * math.pi * turns)) / (2 * math.log(base))

    first = max(math.floor(pair(fast)), 0)
    last = min(math.ceil(pair(slow)), head_dim - 1)
    found = []
    for i, frequency in enumerate(plain(base, head_dim)):
        if i <= first:
            found.append(frequency)
        elif i >= last:
            found.append(frequency / factor)
        else:
            ramp = (i - first) / (last - first)
            found.append(ramp * frequency / factor + (1 - ramp) * frequency)
    return found


@pytest.mark.parametrize("factor", [2.0, 16.0])
@pytest.mark.parametrize(("fast", "slow"), [(32.0, 1.0), (4.0, 2.0), (1.0, 1.0)])
@pytest.mark.parametrize(("head_dim", "context"), [(16, 64), (64, 2048), (128, 8192), (8, 6)])
def test_yarn_is_its_ramp(head_dim: int, context: int, fast: float, slow: float, factor: float) -> None:
    position = made(YaRN, head_dim, 10_000.0, factor=factor, original_context=context, beta_fast=fast, beta_slow=slow)
    angles = phases(position, 3)
    close(angles, expected(yarn(head_dim, 10_000.0, factor, context, fast, slow), 3))
    assert position.magnitude == pytest.approx(0.1 * math.log(factor) + 1)


def test_yarn_by_wavelength() -> None:
    """Heads of 128, trained on 4096: waves of up to 128 tokens are kept, those beyond 4096 stretched in full."""
    position = made(YaRN, 128, 10_000.0, factor=8.0, original_context=4096)
    ratio = phases(position, 2)[1] / phases(made(RoPE, 128, 10_000.0), 2)[1]
    waves = [2 * math.pi / f for f in plain(10_000.0, 128)]
    kept = [i for i, wave in enumerate(waves) if wave < 4096 / 32]
    slow = [i for i, wave in enumerate(waves) if wave > 4096]
    assert (len(kept), len(slow)) == (21, 18)
    torch.testing.assert_close(ratio[kept], torch.ones(21))
    torch.testing.assert_close(ratio[slow], torch.full((18,), 1 / 8))
    assert torch.equal(ratio, ratio.sort(descending=True).values)


def test_yarn_sharpens_the_scores() -> None:
    """By the square of the factor on q and on k; lengths grow by the factor."""
    position, x = made(YaRN, factor=4.0), torch.randn(1, 2, 5, HEAD)
    context = Context(positions=torch.arange(5)[None])
    position.prepare(context)
    y, _ = position.rotate(x, x, context)
    torch.testing.assert_close(y.norm(dim=-1), (1 + 0.1 * math.log(4)) * x.norm(dim=-1))
    torch.testing.assert_close(y[:, :, 0], (1 + 0.1 * math.log(4)) * x[:, :, 0])


def test_yarn_trained_on_its_own_context() -> None:
    given = made(YaRN, factor=4.0, original_context=TRAINED)
    assert torch.equal(phases(made(YaRN, factor=4.0), 100), phases(given, 100))


@pytest.mark.parametrize("kind", [LinearRoPE, NTKRoPE, DynamicNTKRoPE, YaRN])
def test_the_turned_part_counts(kind: type[RoPE]) -> None:
    """A quarter of a head of 64 is turned as a head of 16 is, in the layout that is asked for."""
    part, whole = made(kind, 64, fraction=0.25, layout="half", factor=3.0), made(kind, factor=3.0)
    close(phases(part, 100), phases(whole, 100))
    x = torch.randn(1, 2, 100, 64)
    context = Context(positions=torch.arange(100)[None])
    part.prepare(context)
    y, _ = part.rotate(x, x, context)
    assert torch.equal(y[..., 16:], x[..., 16:])
    order = [i for pair in zip(range(8), range(8, 16), strict=True) for i in pair]
    whole.prepare(context)
    torch.testing.assert_close(y[..., order], whole.rotate(x[..., order], x[..., order], context)[0])


@pytest.mark.parametrize("kind", [NTKRoPE, DynamicNTKRoPE])
def test_ntk_needs_two_pairs(kind: type[RoPE]) -> None:
    with pytest.raises(ValueError, match=r"position=rope_ntk .*at least 4 dimensions.*position=rope_linear"):
        made(kind, 2)
    with pytest.raises(ValueError, match=r"at least 4 dimensions"):
        made(kind, 8, fraction=0.25)


def test_a_ramp_the_wrong_way_is_refused() -> None:
    with pytest.raises(ValueError, match=r"position=rope_yarn .*beta_fast=1 no smaller than .*beta_slow=2"):
        made(YaRN, beta_fast=1.0, beta_slow=2.0)
    with pytest.raises(ValueError, match=r"model\.position\.base=1 above 1"):
        made(YaRN, base=1.0)


@pytest.mark.parametrize("kind", [partial(LinearRoPE, factor=8.0), NTKRoPE, DynamicNTKRoPE, YaRN])
def test_bfloat16_models_have_the_same_phases(kind: Callable[..., RoPE]) -> None:
    """F-01: no buffer that a cast could reach, or that memory without values could lose."""
    position = made(kind)
    assert list(position.buffers()) == list(position.parameters()) == []
    angles = phases(position, 1024)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(phases(made(kind).bfloat16(), 1024), angles)
    assert angles.dtype == torch.float32
