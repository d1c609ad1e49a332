"""The look inside: what it tells of models whose insides are known, and that it leaves no trace."""

from __future__ import annotations

import math

import pytest
import torch
from models import CHOICES, LENGTH, VOCAB, choices, close, config, made_fast, tiny, windows
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from modernllm.attention.attend import Attend
from modernllm.attention.explicit import ExplicitAttend, SoftCap
from modernllm.attention.sinks import ZeroSink
from modernllm.batch import Batch
from modernllm.context import Context
from modernllm.family.external import External
from modernllm.objective import token_losses
from modernllm.telemetry.layers import Layers, blocks
from modernllm.telemetry.observers.attention import attention_maps
from modernllm.telemetry.probe import Probe, probe_batch
from modernllm.telemetry.sharpness import sharpness

OURS = {
    "probe", "probe_grad_norm", "stream_grad_rms", "growth", "branch_ratio", "stream_rms", "stream_kurtosis",
    "stream_max", "stream_massive", "effective_rank", "token_cosine", "stream_cosine", "activation_mean",
    "activation_std", "activation_kurtosis", "activation_max", "gate_mean", "gate_std", "gate_closed",
    "attention_max_logit", "attention_entropy", "attention_sinks", "logits",
}  # fmt: skip
"""Of the default model with two layers; a slope needs three."""


def probe(model: nn.Module, batch: Batch | None = None) -> dict[str, dict[str, float]]:
    return Probe(model, "fp32")(batch or windows())


def test_what_is_told_of_the_default_model() -> None:
    found = probe(tiny())
    assert found.keys() == OURS
    assert list(found["stream_rms"]) == ["start", "layer.00", "layer.01"]
    assert list(found["attention_entropy"])[:2] == ["layer.00.head.00", "layer.00.head.01"]
    assert list(found["branch_ratio"])[:2] == ["layer.00.attention", "layer.00.feedforward"]
    assert all(isinstance(value, float) for series in found.values() for value in series.values())


@pytest.mark.parametrize(
    ("choice", "more", "fewer"),
    [
        ("activation=relu", {"units_dead", "units_near_dead"}, {"gate_mean", "gate_std", "gate_closed"}),
        ("activation=reglu", {"units_dead", "units_near_dead"}, set()),
        ("activation=gelu", set(), {"gate_mean", "gate_std", "gate_closed"}),
        ("attention=linear", set(), {"attention_max_logit", "attention_entropy", "attention_sinks"}),
        ("moe=topk", {"router_max_load", "router_idle", "router_load_entropy", "router_entropy"}, set()),
    ],
)
def test_what_a_model_does_not_have_is_absent(choice: str, more: set[str], fewer: set[str]) -> None:
    assert probe(tiny(choice)).keys() == (OURS | more) - fewer


def test_loss_and_gradients_are_those_of_the_loss() -> None:
    model, batch = tiny("model.n_layers=4"), windows()
    found = probe(model, batch)
    loss = token_losses(model(batch), batch).mean()
    loss.backward()
    assert found["probe"]["loss"] == pytest.approx(loss.item(), rel=1e-6)
    norms = [
        math.hypot(*(float(p.grad.norm()) for p in block.parameters() if p.grad is not None)) for block in model.blocks
    ]
    assert [found["probe_grad_norm"][f"layer.0{layer}"] for layer in range(4)] == pytest.approx(norms, rel=1e-4)
    x, y = ([math.log(value) for value in values] for values in ((1, 2, 3, 4), norms))
    mean_x, mean_y = sum(x) / 4, sum(y) / 4
    above = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    assert found["grad_slope"]["gradient"] == pytest.approx(above / sum((a - mean_x) ** 2 for a in x), rel=1e-3)


@torch.no_grad()
def test_the_stream_is_what_the_blocks_give() -> None:
    model, batch = tiny(), windows()
    x = model.embedding(batch.tokens)
    found = probe(model, batch)
    context = Context.of(batch)
    model.position.prepare(context)
    states: list[Tensor] = [x]
    for block in model.blocks:
        states.append(block(states[-1], context))
    sizes = [float(state.square().mean().sqrt()) for state in states]
    assert list(found["stream_rms"].values()) == pytest.approx(sizes, rel=1e-5)
    cos = nn.functional.cosine_similarity(states[0], states[1], dim=-1).mean()
    assert found["stream_cosine"]["layer.00"] == pytest.approx(float(cos), rel=1e-5)
    first, last = states[0].mean((0, 1)).norm(), states[-1].mean((0, 1)).norm()
    assert found["growth"]["activation"] == pytest.approx(math.log(last / first) / 2, rel=1e-4)
    assert found["logits"]["log_z"] == pytest.approx(float(model(batch).logsumexp(-1).mean()), rel=1e-5)


def test_of_no_residual_the_tokens_become_alike() -> None:
    """Rank collapse: attention alone averages; a residual connection keeps tokens apart (Dong et al., 2021)."""
    deep = ("model.n_layers=6", "position=none")
    lost, kept = (
        probe(tiny(*deep, f"placement={name}"))["token_cosine"]["layer.05"] for name in ("no_residual", "pre")
    )
    assert lost > 0.7
    assert kept < 0.5


@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", ["fused", "explicit"])
def test_attention_maps_are_what_attend_does(kv_heads: int, masked: bool, kind: str) -> None:
    draw = torch.Generator().manual_seed(3)
    q = torch.randn(2, 4, 9, 8, generator=draw)
    k, v = (torch.randn(2, kv_heads, 9, 8, generator=draw) for _ in range(2))
    mask = torch.rand(2, 1, 9, 9, generator=draw) < 0.6 if masked else None
    bias = torch.randn(1, 4, 9, 9, generator=draw) if masked else None
    attend = Attend(0.3, 0.0) if kind == "fused" else ExplicitAttend(0.3, 0.0, SoftCap(0.5), ZeroSink())
    maps = attention_maps(attend, q, k, v, mask, bias)
    y = maps.weights @ v.repeat_interleave(4 // kv_heads, 1)
    close(y, attend(q, k, v, mask, bias))
    close(maps.products, 0.3 * q @ k.repeat_interleave(4 // kv_heads, 1).mT)


class Even(nn.Module):
    """Attention that spreads evenly at size 0, and looks at the first key alone where it is large."""

    def __init__(self, size: float) -> None:
        super().__init__()
        self.embedding, self.attend, self.size = nn.Embedding(VOCAB, 4), Attend(1.0, 0.0), size

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)[:, None]
        q = torch.full_like(x, self.size)
        k = torch.zeros_like(x)
        k[:, :, 0] = 1.0
        return self.attend(q, k, x, None, None)[:, 0] @ self.embedding.weight.T


@pytest.mark.parametrize(("size", "entropy", "sinks", "logit"), [(0.0, 1.0, 0.0, 0.0), (100.0, 0.0, 1.0, 400.0)])
def test_entropy_and_sink_of_known_attention(size: float, entropy: float, sinks: float, logit: float) -> None:
    found = probe(_external(Even(size)))
    assert list(found["attention_entropy"].values()) == pytest.approx([entropy], abs=1e-5)
    assert list(found["attention_sinks"].values()) == [sinks]
    assert list(found["attention_max_logit"].values()) == [logit]


def _external(module: nn.Module) -> External:
    return External(vocab_size=VOCAB, context_length=LENGTH, dim=4, n_layers=1, n_heads=1, module=lambda *sizes: module)


def test_dead_units_are_counted() -> None:
    model = tiny("activation=relu", "model.bias=true")
    up = model.get_submodule("blocks.1.sublayers.feedforward.up")
    with torch.no_grad():
        up.bias[:32] = -1e3
    found = probe(model)
    assert found["units_dead"] == {"layer.00": 0.0, "layer.01": 0.25}
    with torch.no_grad():
        up.bias[32:] = 1e3
    assert probe(model)["units_near_dead"]["layer.01"] == 0.25


def test_router_of_a_single_expert() -> None:
    model = tiny("moe=topk", "model.moe.k=1")
    router = model.get_submodule("blocks.0.sublayers.feedforward.router")
    n_experts = router.weight.shape[0]
    with torch.no_grad():
        router.weight.zero_()
    found = probe(model)
    assert found["router_entropy"]["layer.00"] == pytest.approx(1.0)
    assert found["router_max_load"]["layer.00"] == n_experts  # ties go to one
    assert found["router_idle"]["layer.00"] == pytest.approx(1 - 1 / n_experts)
    assert found["router_load_entropy"]["layer.00"] == 0.0


@pytest.mark.parametrize("choice", ["model.dropout=0.5", "moe=topk_lossfree", "position=rope_ntk_dynamic"])
def test_it_leaves_no_trace(choice: str) -> None:
    model = tiny(choice).train()
    model.embedding.weight.grad = torch.ones_like(model.embedding.weight)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    buffers = [buffer.clone() for buffer in model.buffers()]
    state = torch.get_rng_state()
    one = probe(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(torch.equal(now, then) for now, then in zip(model.buffers(), buffers, strict=True))
    assert all(module.training for module in model.modules())
    assert torch.equal(model.embedding.weight.grad, torch.ones_like(model.embedding.weight))
    assert all(p.grad is None for name, p in model.named_parameters() if name != "embedding.weight")
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert probe(model) == one


class Restless(nn.Module):
    """A buffer that a forward changes, and one that it replaces."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, VOCAB)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("last", torch.zeros(()), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        self.calls += 1
        self.last = torch.rand(())
        return self.table(tokens)


def test_buffers_are_put_back_where_a_forward_replaces_them() -> None:
    module = Restless()
    calls, last = module.calls, module.last
    found = probe(_external(module))
    assert (module.calls, module.last) == (calls, last) == (0.0, 0.0)
    assert module.last is last
    assert found.keys() == {"probe", "probe_grad_norm", "logits"}


@pytest.mark.parametrize("choice", CHOICES)
def test_every_component_can_be_looked_into(choice: str) -> None:
    model = made_fast(config(choice))
    found = Probe(model, "bf16")(windows(rows=2))
    assert {"probe", "probe_grad_norm", "logits", "stream_rms", "branch_ratio"} <= found.keys()
    assert all(math.isfinite(value) for series in found.values() for value in series.values())


NO_MAP = {"deltanet", "linear", "performer", "retention"}
"""Attentions without a softmax."""
PLAIN = {"gelu", "gelu_tanh", "leaky_relu", "relu", "relu2", "silu"}
"""Feed-forwards without a gate."""
RECTIFIED = {"reglu", "relu", "relu2"}
MAPS = {"attention_max_logit", "attention_entropy", "attention_sinks"}
GATES = {"gate_mean", "gate_std", "gate_closed"}
UNITS = {"units_dead", "units_near_dead"}
ROUTER = {"router_max_load", "router_idle", "router_load_entropy", "router_entropy"}


@pytest.mark.parametrize("choice", choices("attention", "placement", "branch", "block", "activation", "moe", "layers"))
def test_every_choice_has_the_series_of_what_it_is_made_of(choice: str) -> None:
    """And no other, a place for each part, and numbers that can be."""
    group, _, name = choice.partition("=")
    found, width = probe(made_fast(config(choice)), windows()), 32
    expected = set(OURS)
    expected -= MAPS if (group == "attention" and name in NO_MAP) or choice == "layers=hybrid" else set()
    expected -= GATES if group == "activation" and name in PLAIN else set()
    expected |= UNITS if group == "activation" and name in RECTIFIED else set()
    expected |= ROUTER if choice in ("moe=topk", "moe=topk_lossfree", "layers=moe_every") else set()
    assert found.keys() == expected
    layers = ["layer.00", "layer.01"]
    for series in expected & {"stream_rms", "effective_rank", "token_cosine", "stream_kurtosis", "stream_grad_rms"}:
        assert list(found[series]) == ["start", *layers]
    sites = ["parallel"] if choice == "block=parallel" else ["attention", "feedforward"]
    assert list(found["branch_ratio"]) == [f"{layer}.{site}" for layer in layers for site in sites]
    for series in expected & {"attention_max_logit", "attention_entropy"}:
        assert list(found[series]) == [f"{layer}.head.0{head}" for layer in layers for head in range(4)]
    if choice == "layers=moe_every":
        assert found["router_idle"].keys() == {"layer.01"}
        assert "layer.00" in found["activation_std"]
    assert sum(place.startswith("layer.00.shared") for place in found["activation_std"]) == (name == "topk_lossfree")
    if choice == "branch=rezero":
        assert set(found["branch_ratio"].values()) == {0.0}
        assert found["growth"]["activation"] == 0.0
    shares = {"attention_entropy", "attention_sinks", "gate_closed", *UNITS, "router_idle", "router_load_entropy"}
    for series in shares & expected:
        assert all(0 <= value <= 1 + 1e-6 for value in found[series].values()), series
    for series in ("token_cosine", "stream_cosine"):
        assert all(-1 <= value <= 1 + 1e-6 for value in found[series].values()), series
    assert all(1 - 1e-9 <= value <= width + 1e-6 for value in found["effective_rank"].values())
    assert all(value >= 1 for value in found["stream_kurtosis"].values())
    assert found["logits"]["log_z_max"] >= found["logits"]["log_z"] >= found["logits"]["mean"]


class Layered(nn.Module):
    """Blocks of other hands, each called so many times."""

    def __init__(self, blocks: list[nn.Module], times: int) -> None:
        super().__init__()
        self.table, self.blocks, self.times = nn.Embedding(VOCAB, 16), nn.ModuleList(blocks), times

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        for _ in range(self.times):
            for block in self.blocks:
                x = x + checkpoint(block, x, use_reentrant=False)
        return x @ self.table.weight.T


def test_a_stream_through_blocks_that_are_used_again_has_no_depth() -> None:
    """Universal transformers and ALBERT: of what is called several times a series by layer would tell the last call."""
    two = [nn.Linear(16, 16), nn.Linear(16, 16)]
    assert "stream_rms" in probe(_external(Layered(two, times=1)))
    for module in (Layered(two, times=3), Layered([two[0]] * 4, times=1)):
        found = probe(_external(module))
        assert not any(name.startswith(("stream", "effective", "token", "growth")) for name in found)
        assert {"probe", "probe_grad_norm", "logits"} <= found.keys()


@pytest.mark.filterwarnings("ignore")  # theirs
@pytest.mark.parametrize("family", ["hf_llama", "x_transformers"])
def test_models_of_other_hands(family: str) -> None:
    model = made_fast(config(f"family={family}"))
    found = Probe(model, "fp32")(windows())
    assert {"probe", "probe_grad_norm", "logits"} <= found.keys()
    assert {"branch_ratio", "attention_entropy"}.isdisjoint(found)
    assert ("stream_rms" in found) == (family == "hf_llama")  # the other has no blocks that are called
    assert "layer.00" in found["probe_grad_norm"]


@pytest.mark.parametrize("sick", [math.nan, math.inf, 0.0])
def test_a_sick_model_is_looked_into_too(sick: float) -> None:
    model = tiny("activation=relu", "moe=topk")
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(sick)
    assert all(value == value for series in probe(model).values() for value in series.values())


def test_the_batch_depends_on_the_windows_alone() -> None:
    whole = windows(rows=24)
    batch = probe_batch([whole], 5 * LENGTH)
    assert batch.tokens.shape == (5, LENGTH)
    assert torch.equal(batch.tokens, whole.tokens[[0, 4, 9, 14, 19]])
    cut = probe_batch(list(whole.split(7)), 5 * LENGTH)
    assert torch.equal(cut.tokens, batch.tokens)
    assert cut.targets is not None
    assert batch.targets is not None
    assert torch.equal(cut.targets, batch.targets)
    assert len(probe_batch([whole], 1).tokens) == 1
    assert len(probe_batch([whole], 10**6).tokens) == 24


def test_names_sort_by_depth() -> None:
    layers = Layers([f"blocks.{n}.q.weight" for n in range(12)])
    assert layers.of("blocks.3.sublayers.attention.q.weight") == "layer.03"
    assert layers.of("embedding.weight") == "embedding"
    assert layers.of("module.llama.model.layers.11.mlp.up.weight") == "layer.11"
    assert layers.of("module.llama.norm.weight") == "llama.norm"
    assert layers.place("blocks.3.sublayers.feedforward.experts.1.act") == "layer.03.experts.1"
    assert layers.place("blocks.3.sublayers.attention.attend") == "layer.03"
    assert Layers(["blocks.120.w"]).of("blocks.3.w") == "layer.003"


def test_blocks_are_the_longest_outermost_list() -> None:
    model = tiny("moe=topk")
    assert blocks(model) == list(model.blocks)
    assert blocks(nn.Sequential(nn.Linear(1, 1), nn.ReLU())) == []


def test_sharpness_is_the_largest_eigenvalue() -> None:
    """Of the Hessian of a table of logits: worked out in full."""
    model = _external(nn.Embedding(VOCAB, 5))
    draw = torch.Generator().manual_seed(0)
    tokens = torch.randint(3, (4, 30), generator=draw)
    batch = Batch(tokens, torch.randint(5, tokens.shape, generator=draw))
    table = model.module.weight

    def loss(weight: Tensor) -> Tensor:
        logits = nn.functional.embedding(batch.tokens, weight)
        return nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten())

    hessian = torch.autograd.functional.hessian(loss, table.detach()).reshape(table.numel(), table.numel())
    largest = float(torch.linalg.eigvalsh(hessian)[-1])
    assert sharpness(model, batch, 200) == pytest.approx(largest, rel=1e-3)
    assert table.grad is None


def test_sharpness_of_our_model_is_a_number() -> None:
    model = tiny()
    one, more = (sharpness(model, windows(), n) for n in (20, 60))
    assert one > 0
    assert more == pytest.approx(one, rel=0.3)
