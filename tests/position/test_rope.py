"""Rotary positions against complex numbers, in both layouts (F-01, F-02, F-23)."""

from __future__ import annotations

import cmath
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from models import close, tiny, windows
from running import run
from safetensors.torch import load_model
from torch import Tensor

from modernllm import checkpoint, load_run
from modernllm.context import Context
from modernllm.model import Decoder
from modernllm.position.rope import LAYOUTS, Layout, RoPE


def context(position: RoPE, positions: Tensor) -> Context:
    made = Context(positions=positions)
    position.prepare(made)
    return made


def turned(x: list[float], p: int, base: float, layout: Layout) -> list[float]:
    """Each pair as one complex number, turned by p base^(-2i/k): neighbours, or one of each half."""
    k, y = len(x), [0.0] * len(x)
    for i in range(k // 2):
        first, second = (2 * i, 2 * i + 1) if layout == "interleaved" else (i, i + k // 2)
        pair = complex(x[first], x[second]) * cmath.exp(1j * p * base ** (-2 * i / k))
        y[first], y[second] = pair.real, pair.imag
    return y


def loops(x: Tensor, positions: Tensor, base: float, layout: Layout) -> Tensor:
    expected = [
        [[turned(k, int(p), base, layout) for k, p in zip(head, row, strict=True)] for head in heads]
        for heads, row in zip(x.tolist(), positions.tolist(), strict=True)
    ]
    return torch.tensor(expected, dtype=torch.float64)


def rotate(x: Tensor, positions: Tensor, base: float = 10_000.0, layout: Layout = "interleaved") -> Tensor:
    position = RoPE(64, 4, x.shape[-1], 32, base, layout=layout)
    q, k = position.rotate(x, x[:, :1], context(position, positions))
    torch.testing.assert_close(q[:, :1], k, rtol=0, atol=1e-6)
    return q


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("base", [10_000.0, 500.0])
@pytest.mark.parametrize("shape", [(2, 4, 4, 8), (1, 3, 7, 6), (2, 2, 1, 2)], ids=str)
def test_the_formula(shape: tuple[int, ...], base: float, layout: Layout) -> None:
    """Also with as many heads as tokens, where turning along the wrong axis would not raise."""
    x = torch.randn(shape, dtype=torch.float64)
    positions = torch.stack([torch.arange(shape[2]) + 5 * row for row in range(shape[0])])
    expected = loops(x, positions, base, layout)
    torch.testing.assert_close(rotate(x, positions, base, layout), expected, rtol=0, atol=1e-5)


def test_the_layouts_are_one_up_to_the_order_of_dimensions() -> None:
    """F-02: they agree at position 0 only, and everywhere once the dimensions are put in the other's order."""
    q, positions = torch.randn(1, 1, 4, 8, dtype=torch.float64), torch.arange(4)[None]
    inter, half = rotate(q, positions), rotate(q, positions, layout="half")
    assert torch.equal(inter[:, :, 0], half[:, :, 0])
    assert float((inter - half)[0, 0, 1:].abs().amax(-1).min()) > 0.05
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    torch.testing.assert_close(rotate(q[..., order], positions, layout="half"), inter[..., order], rtol=0, atol=1e-12)


def test_half_is_the_rule_of_llama() -> None:
    """x cos + rotate_half(x) sin, the angles repeated for both halves."""
    x, steps = torch.randn(2, 3, 9, 12), torch.arange(9)
    angles = steps[:, None] * (1 / 10_000 ** (torch.arange(0, 12, 2) / 12))
    cos, sin = torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()
    rotated_half = torch.cat((-x[..., 6:], x[..., :6]), -1)
    torch.testing.assert_close(rotate(x, steps[None], layout="half"), x * cos + rotated_half * sin, rtol=0, atol=1e-5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_fraction_of_the_head_is_turned(layout: Layout) -> None:
    """The first dimensions, as a head of their own; the others are kept."""
    x, positions = torch.randn(2, 3, 5, 12, dtype=torch.float64), torch.arange(5).expand(2, -1)
    position = RoPE(36, 3, 12, 32, 100.0, fraction=1 / 3, layout=layout)
    y, _ = position.rotate(x, x, context(position, positions))
    assert torch.equal(y[..., 4:], x[..., 4:])
    torch.testing.assert_close(y[..., :4], loops(x[..., :4], positions, 100.0, layout), rtol=0, atol=1e-5)
    assert position.n_turned == 4


@pytest.mark.parametrize(("head_dim", "fraction"), [(12, 0.3), (8, 0.1), (6, 0.5), (7, 1.0), (1, 1.0), (7, 0.5)])
def test_half_pairs_are_refused(head_dim: int, fraction: float) -> None:
    with pytest.raises(ValueError, match=r"position=rope turns pairs: .*model\.head_dim"):
        RoPE(28, 4, head_dim, 32, fraction=fraction)


def test_what_is_refused_is_named() -> None:
    with pytest.raises(ValueError, match=r"model\.head_dim=7 is odd; .*model\.n_heads"):
        RoPE(28, 4, 7, 32)
    with pytest.raises(ValueError, match=r"model\.position\.fraction=0\.3 of model\.head_dim=12 is 3\.6, no even"):
        RoPE(48, 4, 12, 32, fraction=0.3)


@pytest.mark.parametrize(("head_dim", "fraction", "n"), [(80, 0.4, 32), (64, 0.25, 16), (24, 1 / 12, 2), (7, 6 / 7, 6)])
def test_whole_pairs_are_counted(head_dim: int, fraction: float, n: int) -> None:
    assert RoPE(28, 4, head_dim, 32, fraction=fraction).n_turned == n


def test_one_row_of_positions_stands_for_all() -> None:
    x, steps = torch.randn(3, 2, 5, 8), torch.arange(5)
    assert torch.equal(rotate(x, steps[None]), rotate(x, steps.expand(3, -1)))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_lengths_are_kept_and_the_first_position_is_not_turned(layout: Layout) -> None:
    x = torch.randn(2, 4, 100, 16)
    y = rotate(x, torch.arange(100)[None], layout=layout)
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1), rtol=1e-6, atol=0)
    assert torch.equal(y[:, :, 0], x[:, :, 0])
    assert float((y - x)[:, :, 1:].abs().amax(-1).min()) > 1e-3


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("m", "n"), [(0, 0), (3, 1), (17, 40), (100, 98)])
def test_scores_depend_on_the_distance_alone(m: int, n: int, layout: Layout) -> None:
    q, k = torch.randn(2, 1, 1, 1, 32, dtype=torch.float64)

    def score(m: int, n: int) -> float:
        at_m, at_n = (rotate(x, torch.tensor([[p]]), layout=layout) for x, p in ((q, m), (k, n)))
        return float((at_m * at_n).sum())

    assert score(m + 200, n + 200) == pytest.approx(score(m, n), abs=1e-4)
    assert abs(score(m + 1, n) - score(m, n)) > 1e-2


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_table_is_precise_after_a_cast_to_bfloat16(layout: Layout) -> None:
    """F-01: 1024 positions, heads of 64: phases made in bf16 are off by almost 2, and positions fall together."""
    position = RoPE(64, 1, 64, 1024, layout=layout).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        table = context(position, torch.arange(1024)[None]).position
    parts = table[0, 0].unbind(-1) if layout == "interleaved" else table[:, 0, 0, :, :32].unbind()
    turns = torch.complex(*parts)
    phases = [[p * 10_000.0 ** (-2 * i / 64) for i in range(32)] for p in range(1024)]
    expected = torch.tensor([[cmath.exp(1j * phase) for phase in row] for row in phases])
    assert float((turns - expected).abs().max()) < 2e-4
    assert len(torch.view_as_real(turns).flatten(1).unique(dim=0)) == 1024
    x = torch.randn(1, 1, 1024, 64).bfloat16()
    y, _ = position.rotate(x, x, context(position, torch.arange(1024)[None]))
    assert y.dtype == torch.bfloat16
    exact = rotate(x.double(), torch.arange(1024)[None], layout=layout)
    assert float((y.double() - exact).norm() / exact.norm()) < 0.01


# --- weights of the other layout (F-02)


HALF = "model.position.layout=half"


@pytest.mark.parametrize("position", ["rope", "rope_linear", "rnope"])
@pytest.mark.parametrize("attention", ["mha", "mla"])
def test_weights_of_the_other_layout_are_refused(position: str, attention: str, tmp_path: Path) -> None:
    """From memory, from a checkpoint and from safetensors; they would fit, and give other logits after position 0."""
    words = [f"position={position}", f"attention={attention}"]
    ours, other = tiny(*words), tiny(*words, HALF, seed=1)
    before = other(windows()).detach()
    checkpoint.save_weights(tmp_path / "w.safetensors", ours)
    path = checkpoint.save(tmp_path, 1, {"model": ours.state_dict()})
    refused = r"model\.position\.layout=half: .* layout=interleaved.*; load them with model\.position\.layout=interl"
    with pytest.raises(ValueError, match=refused):
        other.load_state_dict(ours.state_dict())
    with pytest.raises(ValueError, match=refused):
        checkpoint.restore(other, checkpoint.load(path)["model"])
    with pytest.raises(ValueError, match=refused):
        load_model(other, tmp_path / "w.safetensors")
    weights = {name: value for name, value in ours.state_dict().items() if "extra" not in name}
    silent = deepcopy(other)
    silent.load_state_dict(weights)  # weights of other hands
    assert not torch.allclose(silent(windows())[:, 1:], ours(windows())[:, 1:], atol=1e-3)
    close(silent(windows())[:, :1], ours(windows())[:, :1])
    assert not torch.equal(before, silent(windows()))


def test_weights_of_the_same_layout_load_from_everywhere(tmp_path: Path) -> None:
    ours, batch = tiny(HALF), windows()
    checkpoint.save_weights(tmp_path / "w.safetensors", ours)
    path = checkpoint.save(tmp_path, 1, {"model": ours.state_dict()})
    for load in (
        lambda model: model.load_state_dict(ours.state_dict()),
        lambda model: checkpoint.restore(model, checkpoint.load(path)["model"]),
        lambda model: load_model(model, tmp_path / "w.safetensors"),
        lambda model: model.load_state_dict(ours.bfloat16().float().state_dict()),
    ):
        other = tiny(HALF, seed=1)
        load(other)
        close(other(batch), ours(batch))


def test_an_edited_configuration_does_not_turn_the_weights_of_a_run(tmp_path: Path) -> None:
    """F-02 (d)."""
    _, done = run("trainer.steps=1", f"out={tmp_path}")
    config = done.path / "config.yaml"
    text = config.read_text(encoding="utf-8")
    assert text.count("layout: interleaved") == 1
    assert isinstance(load_run(done.path).model(), Decoder)
    config.write_text(text.replace("layout: interleaved", "layout: half"), encoding="utf-8")
    with pytest.raises(ValueError, match="these weights are of layout=interleaved"):
        load_run(done.path).model()
