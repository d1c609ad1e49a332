"""Whole designs: what each consists of, that it trains, and that the command line still wins."""

from __future__ import annotations

import pytest
import torch
from models import SIZES, VOCAB
from omegaconf import OmegaConf

from modernllm.batch import Batch
from modernllm.config.build import build, build_model, resolve
from modernllm.config.check import check
from modernllm.config.compose import CONFIG_DIR, compose_with_choices
from modernllm.model import Decoder
from modernllm.objective import Objective

DESIGNS = sorted(path.stem for path in (CONFIG_DIR / "arch").glob("*.yaml"))

CONSISTS_OF = {
    "transformer2017": "norm=layernorm placement=post readout=none position=sinusoidal activation=relu",
    "gpt2": "norm=layernorm placement=pre position=learned activation=gelu_tanh head=tied init=gpt2",
    "neox": "norm=layernorm block=parallel_norms position=rope activation=gelu head=untied",
    "llama": "norm=rmsnorm placement=pre position=rope activation=swiglu attention=mha head=untied",
    "mistral": "norm=rmsnorm attention=window_gqa activation=swiglu",
    "mixtral": "attention=gqa moe=topk activation=swiglu",
    "qwen3": "attention=gqa qk_norm=head activation=swiglu",
    "gemma2": "placement=sandwich activation=geglu attention=gqa layers=alternate head=tied_softcapped",
    "olmo2": "placement=reordered qk_norm=width attention=mha",
    "deepseek": "attention=mla moe=topk_lossfree layers=moe_every",
    "notes_decoder": "norm=layernorm placement=pre position=none activation=gelu",
    "notes_modern": "norm=layernorm placement=pre position=rope activation=swiglu",
}


def composed(*overrides: str) -> tuple[Decoder, dict[str, str | None]]:
    cfg, choices = compose_with_choices([*SIZES, *overrides])
    check(cfg)
    config = resolve(cfg)
    model, _ = build_model(config["model"], vocab_size=VOCAB)
    build(config["init"], "init")(model, 0)
    assert isinstance(model, Decoder)
    return model, choices


@pytest.mark.parametrize("design", CONSISTS_OF)
def test_what_a_design_consists_of(design: str) -> None:
    _, choices = composed(f"arch={design}")
    for part in CONSISTS_OF[design].split():
        group, _, choice = part.partition("=")
        assert choices[group] == choice


def test_every_design_is_listed_here() -> None:
    assert {*DESIGNS} == {*CONSISTS_OF, "none"}


@pytest.mark.parametrize("design", DESIGNS)
def test_a_design_trains_and_sees_no_future(design: str) -> None:
    model, _ = composed(f"arch={design}")
    tokens = torch.randint(VOCAB, (2, 33), generator=torch.Generator().manual_seed(0))
    batch = Batch.from_windows(tokens)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        nats, auxiliary = Objective(model)(batch)
        optimizer.zero_grad()
        ((nats + auxiliary) / batch.n_targets).backward()
        optimizer.step()
        losses.append(float(nats.detach()) / batch.n_targets)
    assert losses[-1] < losses[0] - 0.1
    model.eval()
    changed = batch.tokens.clone()
    changed[:, 15:] = (changed[:, 15:] + 1) % VOCAB
    with torch.no_grad():
        before, after = model(Batch(batch.tokens)), model(Batch(changed))
    torch.testing.assert_close(after[:, :15], before[:, :15], rtol=0, atol=1e-5)
    assert not torch.allclose(after[:, 15:], before[:, 15:], atol=1e-3)


def test_the_command_line_wins_over_a_design() -> None:
    _, choices = composed("arch=llama", "norm=layernorm", "head=tied")
    assert (choices["norm"], choices["head"], choices["activation"]) == ("layernorm", "tied", "swiglu")
    model, _ = composed("arch=gpt2", "model.bias=false")
    assert not any(name.endswith("attention.q.bias") for name, _ in model.named_parameters())


@pytest.mark.parametrize("design", ["mistral", "mixtral", "qwen3", "gemma2"])
def test_grouped_queries_at_every_size(design: str) -> None:
    """In every layer fewer key heads than query heads, but more than one, without a word on the command line."""
    cfg = resolve(compose_with_choices([*SIZES, f"arch={design}"])[0])["model"]
    files = list((CONFIG_DIR / "size").glob("*.yaml"))
    assert len(files) >= 6
    for size in files:
        shape = OmegaConf.load(size).model
        with torch.device("meta"):
            model, _ = build_model(cfg | {"dim": shape.dim, "n_heads": shape.n_heads, "vocab_size": VOCAB})
        for block in model.get_submodule("blocks").children():
            assert 1 < block.get_submodule("sublayers.attention").n_kv_heads < shape.n_heads  # type: ignore[operator]


@pytest.mark.parametrize(("words", "expected"), [([], 2), (["model.n_kv_heads=1"], 1), (["attention=mha"], 4)], ids=str)
def test_the_key_heads_of_mistral(words: list[str], expected: int) -> None:
    model, _ = composed("arch=mistral", *words)
    keys = model.get_parameter("blocks.0.sublayers.attention.k.weight")
    assert len(keys) == expected * 8


def test_the_width_of_the_modern_block_is_four_dims() -> None:
    model, _ = composed("arch=notes_modern")
    assert model.get_parameter("blocks.0.sublayers.feedforward.up.weight").shape == (4 * 32, 32)
