"""Initial values: by role, by name, and of the size that the initialisation states (F-21, F-90)."""

from __future__ import annotations

import math
import re
from collections import defaultdict

import pytest
import torch
from models import FOREIGN, VOCAB, choices, config, label, made, made_fast, paired, tiny, windows
from torch import Tensor, nn

from modernllm.init import GPT2, FanIn, named_generator
from modernllm.linear import Linear
from modernllm.model import Decoder
from modernllm.objective import token_losses

DIM, LAYERS = 32, 8


def drawn(model: Decoder) -> dict[str, Tensor]:
    """Every matrix, pooled over the layers: `attention.q.weight` is that of all of them."""
    found = defaultdict(list)
    for name, p in model.named_parameters():
        if p.ndim > 1:
            found[re.sub(r"blocks\.\d+\.sublayers\.", "", name)].append(p.detach().flatten())
    return {name: torch.cat(values) for name, values in found.items()}


@pytest.mark.parametrize("activation", choices("activation"))
@pytest.mark.parametrize("attention", choices("attention"))
def test_gpt2_is_small_and_smaller_in_what_writes_into_the_stream(attention: str, activation: str) -> None:
    """F-21: 0.02, and 0.02 / sqrt(2 L) for `out`, whatever the sublayers are made of (the gate, for one)."""
    cfg = {**paired(attention, activation), "init": config("init=gpt2")["init"]}
    found = drawn(made_fast(cfg, n_layers=LAYERS))
    writers = {name for name in found if ".out." in name}
    assert writers == {"attention.out.weight", "feedforward.out.weight"}
    assert set(found) - writers >= {"embedding.weight", "head.weight", "feedforward.up.weight"}
    for name, values in found.items():
        expected = 0.02 / 4 if name in writers else 0.02
        assert float(values.std()) == pytest.approx(expected, rel=0.1)
        assert abs(float(values.mean())) < 0.1 * expected


@pytest.mark.parametrize("activation", choices("activation"))
@pytest.mark.parametrize("attention", choices("attention"))
def test_fanin_keeps_the_scale_of_the_input(attention: str, activation: str) -> None:
    """1/sqrt(inputs) for every matrix, 1 for the vectors of tokens and positions."""
    cfg = paired(attention, activation)
    cfg["model"]["position"] = config("position=learned")["model"]["position"]
    model = made_fast(cfg, n_layers=LAYERS)
    for name, values in drawn(model).items():
        inside = name.startswith(("attention", "feedforward"))
        n_inputs = model.get_parameter(f"blocks.0.sublayers.{name}").shape[-1] if inside else DIM
        expected = 1.0 if name in ("embedding.weight", "position.table") else n_inputs**-0.5
        assert float(values.std()) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(
    ("made_of", "std"),
    [
        (["embedding=plain", "head=untied"], 1.0),
        (["embedding=plain", "head=tied"], DIM**-0.5),
        (["embedding=scaled", "head=untied"], DIM**-0.5),
        (["embedding=scaled", "head=tied"], DIM**-0.5),
        (["embedding=scaled", "head=tied", "init=gpt2"], 0.02),
    ],
    ids=label,
)
def test_a_table_that_is_head_or_is_scaled_up_starts_small(made_of: list[str], std: float) -> None:
    assert float(tiny(*made_of).embedding.get_parameter("weight").detach().std()) == pytest.approx(std, rel=0.1)


@pytest.mark.parametrize("init", [init for init in choices("init") if init not in FOREIGN])
def test_gains_are_one_and_biases_zero(init: str) -> None:
    model = tiny(init, "norm=layernorm", "model.bias=true")
    vectors = {name: p for name, p in model.named_parameters() if p.ndim == 1}
    assert len(vectors) == 2 * 5 + 7 * 2
    for name, p in vectors.items():
        assert torch.equal(p, torch.ones_like(p) if name.endswith("gain") else torch.zeros_like(p))


@pytest.mark.parametrize("init", FOREIGN)
def test_models_of_ours_do_not_draw_themselves(init: str) -> None:
    with pytest.raises(ValueError, match=rf"{init}: embedding draws nothing itself; choose another init"):
        tiny(init)


class Writers(nn.Module):
    """Two matrices of one role and shape, under names of our choice."""

    def __init__(self, *names: str):
        super().__init__()
        self.blocks = nn.ModuleList([nn.ModuleDict({name: Linear(64, 64, False, "stream") for name in names})])


def test_a_name_decides_the_stream_of_numbers_and_nothing_else() -> None:
    """F-21: `w3` and `c_proj` start as large as `out`; each has numbers of its own, wherever it stands."""
    model, other = Writers("out", "w3", "c_proj"), Writers("c_proj", "out")
    GPT2()(model, 0)
    GPT2()(other, 0)
    weights = {name.split(".")[2]: p.detach() for name, p in model.named_parameters()}
    for p in weights.values():
        assert float(p.std()) == pytest.approx(0.02 / math.sqrt(2), rel=0.05)
    assert not torch.equal(weights["out"], weights["w3"])
    for name, p in other.named_parameters():
        assert torch.equal(p, weights[name.split(".")[2]])


def test_seeds_and_layers_differ() -> None:
    """No two layers, and no two seeds, are correlated."""
    q = torch.stack(
        [
            made(config(), seed, n_layers=LAYERS).get_parameter(f"blocks.{layer}.sublayers.attention.q.weight")
            for seed in (0, 1)
            for layer in range(LAYERS)
        ]
    )
    correlations = torch.corrcoef(q.detach().flatten(1)).fill_diagonal_(0)
    assert float(correlations.abs().max()) < 4 / 32  # four standard deviations of 1024 independent pairs


def test_a_generator_for_each_name() -> None:
    state = torch.get_rng_state()
    first = torch.randn(4, generator=named_generator(3, "a.weight"))
    assert torch.equal(first, torch.randn(4, generator=named_generator(3, "a.weight")))
    for seed, name in ((3, "b.weight"), (4, "a.weight"), (0, "3:a.weight")):
        assert not torch.equal(first, torch.randn(4, generator=named_generator(seed, name)))
    assert torch.equal(torch.get_rng_state(), state)


def test_values_are_normal_floats() -> None:
    """Shares within one, two and three standard deviations, and a tail that is not cut."""
    model = Writers("out")
    FanIn()(model, 0)
    values = model.get_parameter("blocks.0.out.weight").detach()
    assert values.dtype == torch.float32
    z = values.flatten() * 8
    for deviations, share in ((1, 0.6827), (2, 0.9545), (3, 0.9973)):
        assert float((z.abs() < deviations).float().mean()) == pytest.approx(share, abs=0.02)
    assert 3.3 < float(z.abs().max()) < 5


def test_a_model_in_bfloat16_has_the_same_numbers_rounded() -> None:
    single, half = Writers("out"), Writers("out").bfloat16()
    FanIn()(single, 0)
    FanIn()(half, 0)
    name = "blocks.0.out.weight"
    assert torch.equal(half.get_parameter(name), single.get_parameter(name).bfloat16())


@pytest.mark.parametrize(
    ("made_of", "extra", "tolerance"),
    [
        (["init=gpt2"], 0.0, 0.02),
        (["init=gpt2", "head=tied", "norm=layernorm", "position=learned"], 0.0, 0.02),
        (["init=gpt2", "placement=post"], 0.0, 0.02),
        (["init=fanin"], 0.5, 0.15),
        (["init=fanin", "placement=post"], 0.5, 0.15),
    ],
    ids=label,
)
def test_the_first_loss(made_of: list[str], extra: float, tolerance: float) -> None:
    """ln V where logits are small; half a nat more where they are normal of variance 1: ln E[e^z] = 1/2."""
    batch = windows(rows=32)
    loss = float(token_losses(made(config(*made_of), n_layers=LAYERS)(batch).detach(), batch).mean())
    assert loss == pytest.approx(math.log(VOCAB) + extra, abs=tolerance)
