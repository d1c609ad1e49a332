"""What multiplies a sublayer's output, against the formulas and in the limits."""

from __future__ import annotations

import math

import pytest
import torch
from models import config, made, tiny, windows
from torch import Tensor, nn

from modernllm.branch.constant import Constant
from modernllm.branch.depth import Depth
from modernllm.branch.layerscale import LayerScale
from modernllm.branch.rezero import ReZero
from modernllm.objective import Objective


def test_the_formulas() -> None:
    y = torch.randn(2, 3, 5)
    assert torch.equal(Constant(5, 8, 0, scale=0.3)(y), 0.3 * y)
    torch.testing.assert_close(Depth(5, 8, 3)(y), y / 4)
    vector = LayerScale(5, 8, 0, start=0.2)
    assert torch.equal(vector(y), torch.tensor(0.2) * y)
    nn.init.normal_(vector.scale)
    scale = vector.scale.tolist()
    expected = [[[scale[i] * v for i, v in enumerate(row)] for row in rows] for rows in y.tolist()]
    torch.testing.assert_close(vector(y).detach(), torch.tensor(expected))
    number = ReZero(5, 8, 0)
    assert torch.equal(number(y), torch.zeros(2, 3, 5))
    nn.init.constant_(number.scale, -2.0)
    assert torch.equal(number(y), -2 * y)


@pytest.mark.parametrize("one", ["layerscale model.branch.start=1.0", "constant model.branch.scale=1.0"])
def test_a_branch_of_one_is_none(one: str) -> None:
    """The model without a branch, bit for bit."""
    assert torch.equal(tiny(*f"branch={one}".split())(windows()), tiny()(windows()))


def test_depth_at_the_start_is_depth_scaled_initialisation() -> None:
    """The same function, by the forward pass or by the initial values, where f is linear in what writes."""
    batch = windows()
    ours, scaled = tiny("branch=depth"), tiny("init=depth_scaled")
    torch.testing.assert_close(ours(batch), scaled(batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("branch", ["layerscale", "rezero"])
def test_where_it_starts_is_up_to_the_branch(branch: str) -> None:
    """Whatever the initialisation, from memory that holds nothing in particular."""
    for init in ("fanin", "gpt2", "mup", "deepnorm"):
        model = made(config(f"branch={branch}", f"init={init}"))
        scales = [p for name, p in model.named_parameters() if name.endswith("branch.scale")]
        assert len(scales) == 4
        for scale in scales:
            assert torch.equal(scale, torch.full_like(scale, 0.1 if branch == "layerscale" else 0.0))


def test_a_block_of_rezero_starts_as_the_identity() -> None:
    model, batch = tiny("branch=rezero", "placement=none"), windows()
    expected = model.head(model.embedding(batch.tokens))
    assert torch.equal(model(batch), expected)
    Objective(model)(batch)[0].backward()
    moved = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
    scales = {name for name, _ in model.named_parameters() if name.endswith("scale")}
    assert moved == scales | {"embedding.weight", "head.weight"}


def growth(model: nn.Module) -> float:
    """RMS of the stream after the blocks, over that before."""
    sizes: list[float] = []

    def keep(module: nn.Module, given: tuple[Tensor, ...]) -> None:
        sizes.append(float(given[0].detach().pow(2).mean().sqrt()))

    for part in ("dropout", "readout"):
        model.get_submodule(part).register_forward_pre_hook(keep)
    model(windows())
    before, after = sizes
    return after / before


def test_what_depth_is_for() -> None:
    """Without it the stream grows with the root of the depth; with it, it grows as much at any depth."""
    sizes = {
        branch: [growth(made(config(branch), n_layers=n)) for n in (2, 8, 32)]
        for branch in ("branch=none", "branch=depth")
    }
    shallow, middle, deep = sizes["branch=none"]
    assert deep / middle > 1.6
    assert middle / shallow > 1.4
    assert max(sizes["branch=depth"]) / min(sizes["branch=depth"]) < 1.1
    assert max(sizes["branch=depth"]) < math.sqrt(2)
