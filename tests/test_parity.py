"""Each named design is the real one: with the weights of Hugging Face's model ours gives its logits and gradients.

Designs of mixed parts have no twin there: they are held against x-transformers where it has the parts, and against
`naive_decoder`, a second implementation written from the formulas.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import naive_decoder
import pytest
import torch
import torch.nn.functional as F
from hf_models import BESIDE, DESIGNS, drawn, settings
from models import VOCAB, awake, close, tiny
from naive_decoder import Plan

from modernllm.batch import IGNORED, Batch
from modernllm.config.build import build
from modernllm.interop.facts import facts_of, sized
from modernllm.interop.huggingface import design_named, ours_of, theirs_of, ties_for
from modernllm.interop.weights import Tie, theirs_from
from modernllm.linear import parameter_roles
from modernllm.model import Decoder
from modernllm.objective import Objective
from modernllm.optimizer import DECAYED

pytest.importorskip("transformers", reason="parity is with the package transformers")
# what their package says when it is imported or makes a model is theirs
pytestmark = pytest.mark.filterwarnings("ignore")

GROUPED = ("llama", "mistral", "mixtral", "qwen3", "gemma2", "olmo2")
"""Designs whose key heads can be fewer."""


def batches() -> Iterator[Batch]:
    """Several shapes, odd lengths; and rows that begin with padding."""
    draw = torch.Generator().manual_seed(1)
    for rows, length, padded in ((1, 1, 0), (3, 7, 0), (2, 16, 0), (3, 13, 6)):
        tokens = torch.randint(VOCAB, (rows, length), generator=draw)
        targets = torch.randint(VOCAB, (rows, length), generator=draw)
        mask = None
        if padded:
            starts = torch.arange(rows)[:, None] * padded // (rows - 1)  # none, some, `padded`
            mask = torch.arange(length) >= starts
            targets = targets.masked_fill(~mask, IGNORED)
        yield Batch(tokens, targets, mask=mask)


def theirs_on(model: Any, batch: Batch) -> torch.Tensor:
    """Their logits; positions count from the first real token, as in their `generate`."""
    if batch.mask is None:
        return model(batch.tokens, use_cache=False).logits
    real = batch.mask.long()
    positions = (real.cumsum(1) - 1).clamp(min=0)
    return model(batch.tokens, attention_mask=real, position_ids=positions, use_cache=False).logits


def ties_between(theirs: Any, ours: Decoder, config: dict[str, Any]) -> list[Tie]:
    return ties_for(design_named(theirs.config.model_type), ours, sized(facts_of(config["model"]), ours))


def agree(theirs: Any) -> None:
    """Logits at every real token, and the gradient of every parameter."""
    ours, config, _ = ours_of(theirs)
    ties = ties_between(theirs, ours, config)
    for batch in batches():
        real = torch.ones_like(batch.tokens, dtype=torch.bool) if batch.mask is None else batch.mask
        logits, expected = ours(batch), theirs_on(theirs, batch)
        assert logits.std() > 0.1
        close(logits[real], expected[real], 1e-5)
        assert batch.targets is not None
        for model, made in ((ours, logits), (theirs, expected)):
            model.zero_grad()
            F.cross_entropy(made.flatten(0, 1), batch.targets.flatten(), ignore_index=IGNORED).backward()
        mine = {name: p.grad for name, p in ours.named_parameters() if p.grad is not None}
        found = theirs_from(ties, mine, gradients=True)
        wanted = {name: p.grad for name, p in theirs.named_parameters() if p.grad is not None}
        assert found.keys() >= wanted.keys() >= {name for name, _ in theirs.named_parameters()}
        largest = max(float(gradient.abs().max()) for gradient in wanted.values())
        assert largest > 1e-3
        for name, gradient in wanted.items():
            scale = max(float(gradient.abs().max()), 1e-2 * largest)  # of what is 0 but for rounding, as a key's bias
            apart = float((found[name] - gradient).abs().max())
            assert apart <= 1e-4 * scale, f"{name}: {apart / scale:.1e} apart"
    there_and_back(theirs, ours, config)


def there_and_back(theirs: Any, ours: Decoder, config: dict[str, Any]) -> None:
    """Theirs of ours of theirs: the same logits, and the same weights to the last bit where it is the same class."""
    again = theirs_of(ours, config["model"])
    tokens = torch.randint(VOCAB, (2, 11), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        close(again(tokens).logits, theirs(tokens).logits, 1e-5)
    kind = theirs.config.model_type
    if again.config.model_type == kind:  # type: ignore[union-attr]
        state = theirs.state_dict()
        for name, tensor in again.state_dict().items():  # a gain that is kept above 1 is rounded
            torch.testing.assert_close(tensor, state[name], rtol=0, atol=3e-7 if kind.startswith("gemma") else 0)


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("design", DESIGNS)
def test_an_arch_is_the_real_one(design: str, tied: bool) -> None:
    kind, keys = DESIGNS[design]
    for heads in (1, 2) if design in GROUPED else (4,):
        grouped = {"num_key_value_heads": heads} if design in GROUPED else {}
        agree(drawn(kind, **(keys | grouped), tie_word_embeddings=tied))


@pytest.mark.parametrize("design", BESIDE)
def test_what_our_groups_express_is_real_too(design: str) -> None:
    kind, keys = BESIDE[design]
    agree(drawn(kind, **keys))


def test_training_is_the_same() -> None:
    """GPT-2 from equal weights, 20 steps of AdamW on equal batches: equal losses."""
    kind, keys = DESIGNS["gpt2"]
    theirs = drawn(kind, **keys)
    ours, config, _ = ours_of(theirs, ["optimizer.lr=1e-2", "optimizer.weight_decay=0.1"])
    ties = ties_between(theirs, ours, config)
    mine = build(config["optimizer"], "optimizer", model=ours)
    decayed_ours = {name for name, _, role in parameter_roles(ours) if role in DECAYED}
    decayed = {tie.theirs for tie in ties if set(tie.ours) <= decayed_ours}
    groups: dict[bool, list[Any]] = {True: [], False: []}
    for name, parameter in theirs.named_parameters():
        groups[name in decayed].append(parameter)
    hers = torch.optim.AdamW(
        [{"params": groups[True], "weight_decay": 0.1}, {"params": groups[False], "weight_decay": 0.0}],
        lr=1e-2,
        betas=(config["optimizer"]["betas"][0], config["optimizer"]["betas"][1]),
        eps=config["optimizer"]["eps"],
    )
    ours.train()
    theirs.train()
    draw = torch.Generator().manual_seed(5)
    losses = []
    for _ in range(20):
        windows = torch.randint(VOCAB // 4, (4, 17), generator=draw)
        batch = Batch.from_windows(windows)
        nats, _ = Objective(ours)(batch)
        loss = nats / batch.n_targets
        other = theirs(windows, labels=windows, use_cache=False).loss
        for optimizer, value in ((mine, loss), (hers, other)):
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        losses.append(float(loss.detach()))
        assert losses[-1] == pytest.approx(float(other.detach()), abs=1e-4)
    assert losses[-1] < losses[0] - 1
    assert decayed


def test_settings_are_those_of_the_package() -> None:
    """The tables above make what they say."""
    assert settings("gemma2", **DESIGNS["gemma2"][1]).layer_types == ["sliding_attention", "full_attention"]
    assert settings("deepseek_v3", **DESIGNS["deepseek"][1]).n_group == 4


PLAN = Plan(n_layers=2, n_heads=4, n_kv_heads=4, head_dim=8, position="rope", turned=8)
"""What the overrides of a tiny model leave as it is."""

MIXED: dict[str, Plan] = {
    "norm=rmsnorm": PLAN,
    "placement=post position=rope activation=geglu norm=layernorm": replace(
        PLAN, placement="post", readout=False, feedforward="gelu", norm="layernorm", eps=1e-5
    ),
    "placement=sandwich position=alibi attention=mqa activation=relu2": replace(
        PLAN, placement="sandwich", position="alibi", n_kv_heads=1, feedforward="relu2", gated=False
    ),
    "block=parallel model.position.fraction=0.5 norm=layernorm_nobias activation=gelu model.bias=true": replace(
        PLAN, block="parallel", turned=4, norm="layernorm_nobias", eps=1e-5, feedforward="gelu", gated=False
    ),
    "placement=reordered position=sinusoidal qk_norm=width attention=gqa activation=reglu": replace(
        PLAN, placement="reordered", position="sinusoidal", qk_norm="width", n_kv_heads=2, feedforward="relu"
    ),
    "placement=deepnorm position=learned norm=scalenorm activation=glu head=tied": replace(
        PLAN, placement="deepnorm", readout=False, position="learned", norm="scalenorm", feedforward="sigmoid"
    ),
    "block=parallel_norms position=none norm=dyt activation=bilinear attention=window model.attention.size=3": replace(
        PLAN, block="parallel_norms", position="none", norm="dyt", feedforward="identity", window=3
    ),
    "qk_norm=head model.position.layout=half model.head_dim=6 embedding=normed model.attention.sinks=learned": replace(
        PLAN, qk_norm="head", layout="half", head_dim=6, turned=6, embedding="normed", sink="learned"
    ),
    "norm=nonparametric position=alibi model.attention.softcap=0.5 embedding=scaled head=softcapped": replace(
        PLAN, norm="nonparametric", eps=1e-5, position="alibi", cap=0.5, embedding="scaled", head_cap=30.0
    ),
    "layers=alternate model.layers.other.size=3 attention=gqa model.n_kv_heads=2 placement=sandwich": replace(
        PLAN, n_kv_heads=2, window=3, full_every=2, placement="sandwich"
    ),
    "placement=post block=parallel_norms norm=layernorm activation=gelu_tanh model.attention.sinks=zero": replace(
        PLAN,
        placement="post",
        readout=False,
        block="parallel_norms",
        norm="layernorm",
        eps=1e-5,
        feedforward="gelu_tanh",
        gated=False,
        sink="zero",
    ),
    "placement=deepnorm model.position.base=100.0 attention=mqa model.feedforward_bias=true": replace(
        PLAN, placement="deepnorm", readout=False, base=100.0, n_kv_heads=1
    ),
}
"""Overrides, and the same design in the words of the second implementation."""


def scattered(model: Decoder) -> Decoder:
    """With gains, biases and whatever else starts alike drawn at random."""
    draw = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for _, parameter, role in parameter_roles(awake(model)):
            if role in ("gain", "bias", "scale", "position"):
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=draw))
    return model


@pytest.mark.parametrize("words", MIXED)
def test_a_mixed_design_is_its_formulas(words: str) -> None:
    model = scattered(tiny(*words.split())).double()
    tokens = torch.randint(VOCAB, (2, 7), generator=torch.Generator().manual_seed(4))
    weights = {name: value.double() for name, value in model.state_dict().items()}
    with torch.no_grad():
        found = model(Batch(tokens))
        for row in range(2):
            expected = naive_decoder.logits(MIXED[words], weights, tokens[row].tolist())
            assert expected.std() > 0.1
            close(found[row], expected, 1e-5)


BESIDE_X: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "norm=rmsnorm model.norm.eps=1e-12 position=rope model.position.fraction=0.5 activation=swiglu": (
        {"use_rmsnorm": True, "rotary_pos_emb": True, "rotary_emb_dim": 8, "ff_glu": True, "ff_swish": True},
        {},
    ),
    "placement=post norm=layernorm_nobias position=alibi attention=mqa activation=gelu": (
        {"pre_norm": False, "alibi_pos_bias": True, "attn_kv_heads": 1},
        {},
    ),
    "placement=sandwich norm=scalenorm model.norm.eps=1e-12 position=t5 activation=relu2": (
        {"sandwich_norm": True, "use_scalenorm": True, "rel_pos_bias": True, "ff_relu_squared": True},
        {},
    ),
    "norm=layernorm_nobias position=learned activation=geglu head=tied": (
        {"ff_glu": True},
        {"use_abs_pos_emb": True, "tie_embedding": True, "tie_embedding_scale": 1.0},
    ),
    "norm=rmsnorm model.norm.eps=1e-12 position=rope_linear activation=gelu model.attention.softcap=1.5": (
        {
            "use_rmsnorm": True,
            "rotary_pos_emb": True,
            "rotary_emb_dim": 16,
            "rotary_interpolation_factor": 4.0,
            "attn_softclamp_logits": True,
            "attn_logit_softclamp_value": 1.5,
        },
        {},
    ),
}
"""Overrides, and the same in arguments of x-transformers' layers and of what is around them."""


def of_x_transformers(theirs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Their tensors under our names."""
    found = {"embedding.weight": theirs["token_emb.emb.weight"]}
    found["head.weight"] = theirs.get("to_logits.weight", found["embedding.weight"])
    dim, size = found["embedding.weight"].shape[1], 16

    def norm(name: str, tensor: torch.Tensor) -> None:
        one = tensor.numel() == 1  # their ScaleNorm has the root of the width beside its gain
        found[f"{name}.{'scale' if one else 'gain'}"] = tensor * dim**0.5 if one else tensor

    for key, tensor in theirs.items():
        words = key.split(".")
        if key == "pos_emb.emb.weight":
            found["position.table"] = tensor * dim**-0.5
        elif "relative_attention_bias" in key:
            found["position.table"] = tensor * size**0.5
        elif "final_norm" in key:
            norm("readout.norm", tensor)
        elif words[:2] == ["attn_layers", "layers"]:
            site = ("attention", "feedforward")[int(words[2]) % 2]
            block = f"blocks.{int(words[2]) // 2}"
            if words[3] == "0":
                norm(f"{block}.joins.{site}.{'out_norm' if words[4] == '1' else 'norm'}", tensor)
            elif words[4].startswith("to_"):
                found[f"{block}.sublayers.attention.{words[4][3:]}.weight"] = tensor
            elif "proj" in words:
                up, gate = tensor.chunk(2)
                found[f"{block}.sublayers.feedforward.up.{words[-1]}"] = up
                found[f"{block}.sublayers.feedforward.gate.{words[-1]}"] = gate
            else:
                found[f"{block}.sublayers.feedforward.{'up' if words[5] == '0' else 'out'}.{words[-1]}"] = tensor
    return found


@pytest.mark.parametrize("words", BESIDE_X)
def test_a_mixed_design_is_that_of_x_transformers(words: str) -> None:
    library = pytest.importorskip("x_transformers")
    layers, around = BESIDE_X[words]
    decoder = library.Decoder(
        dim=32, depth=2, heads=4, attn_dim_head=16, norm_add_unit_offset=False, attn_flash=False, **layers
    )
    theirs = library.TransformerWrapper(
        num_tokens=VOCAB, max_seq_len=32, attn_layers=decoder, **{"use_abs_pos_emb": False, **around}
    ).eval()
    draw = torch.Generator().manual_seed(6)
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_(0, parameter.shape[-1] ** -0.5 if parameter.ndim > 1 else 0.5, generator=draw)
    gated = layers.get("ff_glu", False)
    ours = tiny(*words.split(), "model.head_dim=16", "model.feedforward_bias=true", "model.hidden=128")
    state = of_x_transformers({key: value for key, value in theirs.state_dict().items() if "inv_freq" not in key})
    assert gated == any(".gate." in name for name in state)
    ours.load_state_dict(state)
    tokens = torch.randint(VOCAB, (3, 15), generator=draw)
    with torch.no_grad():
        found, expected = ours(Batch(tokens)), theirs(tokens)
    assert expected.std() > 0.05
    close(found, expected, 1e-5)
