"""Attention weights against an explicit softmax, with every kind of mask and score (F-05, F-07, F-09, F-10, F-13)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from models import choices, config, tiny
from torch import Tensor, nn

from modernllm.attention.attend import Attend
from modernllm.attention.explicit import ExplicitAttend, SoftCap
from modernllm.attention.sinks import LearnedSink, ZeroSink
from modernllm.attention.softmax import make_attend
from modernllm.config.check import check
from modernllm.config.errors import ConfigError

HEADS, SIZE = 4, 6
KINDS: dict[str, dict[str, Any]] = {
    "fused": {},
    "capped": {"softcap": 1.5},
    "zero sink": {"sinks": "zero"},
    "learned sink": {"sinks": "learned"},
    "unscaled": {"scale": "none"},
    "by width, capped, sink": {"scale": "width", "softcap": 0.3, "sinks": "learned"},
}
SOFTMAX = [choice for choice in choices("attention") if "softcap" in config(choice)["model"]["attention"]]
EXPLICIT = [kind for kind in KINDS if kind not in ("fused", "unscaled")]


def made(kind: str = "fused", dropout: float = 0.0) -> Attend:
    keys = {"softcap": None, "sinks": "none", "scale": "sqrt"} | KINDS[kind]
    attend = make_attend(HEADS, SIZE, dropout, **keys)
    for parameter in attend.parameters():
        nn.init.normal_(parameter)
    return attend


def attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias: Tensor | None = None, kind: str = "fused"
) -> Tensor:
    return made(kind)(q, k, v, mask, bias)


def loops(
    module: Attend, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, kind: str
) -> Tensor:
    """softmax(cap(scale q k) + bias) v, one query after the other; no key gives zeros."""
    keys, size = KINDS[kind], q.shape[3]
    factor = {"sqrt": 1 / math.sqrt(size), "none": 1.0, "width": 1 / size}[keys.get("scale", "sqrt")]
    sinks = {"none": None, "zero": [0.0] * HEADS, "learned": [z for p in module.parameters() for z in p.tolist()]}
    sink, cap = sinks[keys.get("sinks", "none")], keys.get("softcap")
    n_rows, n_heads, n_queries, _ = q.shape
    n_keys, group = k.shape[2], q.shape[1] // k.shape[1]
    y = torch.zeros(n_rows, n_heads, n_queries, v.shape[3], dtype=q.dtype)
    for b in range(n_rows):
        for h in range(n_heads):
            for t in range(n_queries):
                if mask is None:
                    seen = list(range(n_keys - n_queries + t + 1))
                else:
                    allowed = mask[b % len(mask), 0, t].tolist()
                    seen = [s for s in range(n_keys) if allowed[s]]
                scores = [factor * float(q[b, h, t] @ k[b, h // group, s]) for s in seen]
                if cap is not None:
                    scores = [cap * math.tanh(score / cap) for score in scores]
                if bias is not None:
                    added = bias[b % len(bias), h, t].tolist()
                    scores = [score + added[s] for score, s in zip(scores, seen, strict=True)]
                weights = [math.exp(score) for score in scores]
                total = sum(weights) + (0.0 if sink is None else math.exp(sink[h]))
                for weight, s in zip(weights, seen, strict=True):
                    y[b, h, t] += weight / total * v[b, h // group, s]
    return y


def random_qkv(n_queries: int, n_keys: int, n_kv_heads: int = HEADS) -> tuple[Tensor, Tensor, Tensor]:
    """Values have another size than keys."""
    q = torch.randn(2, HEADS, n_queries, SIZE, dtype=torch.float64)
    k = torch.randn(2, n_kv_heads, n_keys, SIZE, dtype=torch.float64)
    return q, k, torch.randn(2, n_kv_heads, n_keys, 5, dtype=torch.float64)


@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("masked", [False, True], ids=["causal", "mask"])
@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_the_formula(kind: str, n_kv_heads: int, masked: bool, biased: bool) -> None:
    """The mask is any, and leaves a query without a key."""
    q, k, v = random_qkv(7, 7, n_kv_heads)
    mask = (torch.rand(2, 1, 7, 7) < 0.4) & (torch.arange(7) != 2)[:, None] if masked else None
    bias = torch.randn(1, HEADS, 7, 7, dtype=torch.float64) if biased else None
    module = made(kind).double()
    expected = loops(module, q, k, v, mask, bias, kind)
    torch.testing.assert_close(module(q, k, v, mask, bias).detach(), expected, rtol=0, atol=1e-12)


def test_what_the_fused_kernels_can_do_is_left_to_them() -> None:
    """And every part of the rest is there: a cap or a sink that is asked for is never dropped."""
    assert type(made("fused")) is type(made("unscaled")) is Attend
    for kind in EXPLICIT:
        module = made(kind)
        assert isinstance(module, ExplicitAttend)
        assert isinstance(module.cap, SoftCap) == ("softcap" in KINDS[kind])
        expected = {"zero": ZeroSink, "learned": LearnedSink}.get(KINDS[kind].get("sinks", ""), nn.Softmax)
        assert type(module.softmax) is expected


def test_score_by_score_is_the_fused_kernel() -> None:
    """Bit for bit is not to be had: two orders of summing."""
    q, k, v = (x.float() for x in random_qkv(33, 33, 2))
    explicit = ExplicitAttend(1 / math.sqrt(SIZE), 0.0, nn.Identity(), nn.Softmax(-1))
    torch.testing.assert_close(explicit(q, k, v, None, None), attend(q, k, v), rtol=0, atol=1e-6)


def test_one_query_after_many_keys_sees_them_all() -> None:
    """F-05: SDPA's own causal mask would show it the first key only."""
    q, k, _ = random_qkv(1, 5)
    v = torch.arange(5.0, dtype=torch.float64)[None, None, :, None].expand(2, HEADS, 5, SIZE)
    for kind in ("fused", "capped"):
        torch.testing.assert_close(attend(0 * q, k, v, kind=kind), torch.full_like(q, 2.0))
    torch.testing.assert_close(attend(q, k, v), loops(made(), q, k, v, None, None, "fused"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_bias_alone_is_causal_from_the_end(kind: str) -> None:
    """A chunk of 3 after 4 keys: its queries see 5, 6 and 7 keys."""
    q, k, v = random_qkv(3, 7, 2)
    bias = torch.randn(1, HEADS, 3, 7, dtype=torch.float64)
    module = made(kind).double()
    expected = loops(module, q, k, v, None, bias, kind)
    torch.testing.assert_close(module(q, k, v, None, bias).detach(), expected, rtol=0, atol=1e-12)


def test_a_chunk_needs_a_mask() -> None:
    with pytest.raises(AssertionError):
        attend(*random_qkv(3, 7))


@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_query_without_keys_gives_zeros(kind: str, biased: bool) -> None:
    """F-09: and finite gradients for everything; the other queries do not notice."""
    q, k, v = (x.float().requires_grad_() for x in random_qkv(6, 6))
    mask = torch.ones(6, 6, dtype=torch.bool).tril().expand(2, 1, 6, 6).clone()
    bias = torch.randn(1, HEADS, 6, 6, requires_grad=True) if biased else None
    module = made(kind)
    before = module(q, k, v, mask, bias)
    mask[1], mask[0, :, :2] = False, False
    with torch.autograd.set_detect_anomaly(True):
        y = module(q, k, v, mask, bias)
        assert torch.equal(y[1], torch.zeros_like(y[1]))
        assert torch.equal(y[0, :, :2], torch.zeros_like(y[0, :, :2]))
        torch.testing.assert_close(y[0, :, 2:], before[0, :, 2:])
        inputs = [x for x in (q, k, v, bias, *module.parameters()) if x is not None]
        for gradient in torch.autograd.grad(y.square().sum(), inputs):
            assert gradient.isfinite().all()
            assert float(gradient.abs().max()) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("masked", [False, True], ids=["causal", "mask"])
@pytest.mark.parametrize("kind", ["fused", "capped"])
def test_no_score_is_so_low_that_the_future_is_seen(kind: str, masked: bool, dtype: torch.dtype) -> None:
    """F-10: scores of -1e5 against masked ones that a fill of -1e4 would leave higher: their weight is 0."""
    n = 6
    q = torch.full((1, 1, n, n), 1e5 / math.sqrt(n), dtype=dtype)
    k = torch.full((1, 1, n, n), -1.0, dtype=dtype)
    q[..., -1, :] = 0  # the last query sees all keys alike
    mask = torch.ones(1, 1, n, n, dtype=torch.bool).tril() if masked else None
    weights = attend(q, k, torch.eye(n, dtype=dtype)[None, None], mask, kind=kind)[0, 0].float()
    assert torch.equal(weights.triu(1), torch.zeros(n, n))
    torch.testing.assert_close(weights.sum(1), torch.ones(n), rtol=0, atol=0.01)
    torch.testing.assert_close(weights[3, :4], torch.full((4,), 0.25), rtol=0, atol=0.01)


@pytest.mark.parametrize("autocast", [False, True], ids=["", "autocast"])
@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_masks_in_low_precision(kind: str, dtype: torch.dtype, biased: bool, autocast: bool) -> None:
    """F-10: no -inf - inf, no value that the dtype cannot hold, and the answer of float64."""
    q, k, v = random_qkv(6, 6, 2)
    mask = torch.ones(6, 6, dtype=torch.bool).tril().expand(2, 1, 6, 6).clone()
    mask[1, :, :, :3] = False
    bias = torch.randn(1, HEADS, 6, 6) if biased else None
    module = made(kind)
    with torch.autocast("cpu", dtype, enabled=autocast):
        y = module(q.to(dtype), k.to(dtype), v.to(dtype), mask, bias).detach()
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), loops(module, q, k, v, mask, bias, kind), rtol=0, atol=0.04)


@pytest.mark.parametrize("kind", ["fused", "capped"])
def test_dropout_drops_weights_in_training_only(kind: str) -> None:
    """What is left is scaled up: with values of one the mean stays one."""
    module, n = made(kind, dropout=0.5), 64
    q, k, v = torch.zeros(1, HEADS, n, SIZE), torch.zeros(1, HEADS, n, SIZE), torch.ones(1, HEADS, n, 3)
    y = module.train()(q, k, v, None, None)
    assert set(y[0, :, 0].flatten().tolist()) <= {0.0, 2.0}
    assert float(y.mean()) == pytest.approx(1.0, abs=0.1)
    assert float(y.std()) > 0.05
    torch.testing.assert_close(module.eval()(q, k, v, None, None), v)


# --- the cap (F-13)


def test_a_cap_of_one_leaves_attention_almost_flat() -> None:
    """Scores of +-50: at most 1 after the cap, so no weight is more than e^2 times another."""
    scores = torch.linspace(-50, 50, 101)[None, None, None]
    capped = SoftCap(1.0)(scores)
    assert float(capped.abs().max()) <= 1
    assert torch.equal(capped, capped.sort().values)
    n = 8
    q, v = torch.zeros(1, 1, 1, SIZE, dtype=torch.float64), torch.eye(n, dtype=torch.float64)[None, None]
    q[..., 0], k = math.sqrt(SIZE), torch.zeros(1, 1, n, SIZE, dtype=torch.float64)
    k[..., 0] = torch.tensor([-50.0, 50.0] * (n // 2), dtype=torch.float64)
    module = make_attend(1, SIZE, 0.0, 1.0, "none", "sqrt")
    weights = module(q, k, v, None, None)[0, 0, 0]
    assert float(weights.max() / weights.min()) == pytest.approx(math.exp(2))
    uncapped = make_attend(1, SIZE, 0.0, None, "none", "sqrt")(q, k, v, None, None)[0, 0, 0]
    assert float(uncapped.min()) < 1e-40


def test_a_cap_that_is_never_reached_is_none() -> None:
    q, k, v = random_qkv(7, 7)
    far = make_attend(HEADS, SIZE, 0.0, 1e6, "none", "sqrt")
    torch.testing.assert_close(far(q, k, v, None, None), attend(q, k, v), rtol=0, atol=1e-9)


def refusal(choice: str, key: str, value: object) -> str:
    cfg = config(choice)
    cfg["model"]["attention"][key] = value
    with pytest.raises(ConfigError) as caught:
        check(cfg)
    return str(caught.value)


@pytest.mark.parametrize("cap", [0, 0.0, -30, math.inf, math.nan, "30", True])
@pytest.mark.parametrize("choice", SOFTMAX)
def test_a_cap_that_is_none_is_refused_where_it_is_read(choice: str, cap: object) -> None:
    message = refusal(choice, "softcap", cap)
    assert message.startswith("model.attention.softcap=")
    assert "should be a finite number > 0, or null" in message


@pytest.mark.parametrize("value", ["yes", True, None, 0.5])
@pytest.mark.parametrize("choice", SOFTMAX)
def test_other_words_are_refused(choice: str, value: object) -> None:
    assert "should be one of none, zero, learned" in refusal(choice, "sinks", value)
    assert "should be one of sqrt, none, width" in refusal(choice, "scale", value)


@pytest.mark.parametrize("choice", SOFTMAX)
def test_what_is_asked_for_reaches_the_scores(choice: str) -> None:
    """In every attention with a softmax."""
    model = tiny(choice, "model.attention.softcap=0.7", "model.attention.sinks=learned", "model.attention.scale=width")
    for block in model.blocks:
        found = block.sublayers["attention"].attend
        size = block.sublayers["attention"].q.out_features // 4  # of each of the four heads
        assert (found.cap.cap, found.scale) == (0.7, pytest.approx(1 / size))
        assert found.softmax.logits.tolist() == [0.0] * 4


# --- sinks


def test_a_sink_takes_what_the_keys_leave() -> None:
    """Weights add up to S / (e^z + S); far below all scores a sink is none, far above them nothing is read."""
    q, k, _ = random_qkv(7, 7)
    ones = torch.ones(2, HEADS, 7, 1, dtype=torch.float64)
    softmax = LearnedSink(HEADS).double()
    module = ExplicitAttend(1 / math.sqrt(SIZE), 0.0, nn.Identity(), softmax)
    nn.init.constant_(softmax.logits, -50.0)
    torch.testing.assert_close(module(q, k, ones, None, None), ones)
    nn.init.constant_(softmax.logits, 50.0)
    torch.testing.assert_close(module(q, k, ones, None, None), 0 * ones)
    nn.init.zeros_(softmax.logits)
    read = module(q, k, ones, None, None)
    torch.testing.assert_close(read, attend(q, k, ones, kind="zero sink"))
    total = (q @ k.mT / math.sqrt(SIZE)).exp().tril().sum(-1, keepdim=True)
    torch.testing.assert_close(read, total / (1 + total))


def test_a_sink_does_not_overflow() -> None:
    scores = torch.tensor([[[[1e4, -1e4]], [[-1e4, -1e4]]]])
    assert torch.equal(ZeroSink()(scores), torch.tensor([[[[1.0, 0.0]], [[0.0, 0.0]]]]))


# --- the scale


def test_scales() -> None:
    """1/sqrt(d_k), 1 and 1/d_k are what multiplies the product of q and k."""
    for scale, factor in (("sqrt", 0.25), ("none", 1.0), ("width", 1 / 16)):
        assert make_attend(2, 16, 0.0, None, "none", scale).scale == factor  # type: ignore[arg-type]


def test_unit_queries_and_keys_have_scores_of_variance_d() -> None:
    """So 1/sqrt(d_k) makes it 1, for entries of mean 0 and variance 1; at another size of entries it does not."""
    for size in (8, 64):
        q, k = torch.randn(2, 30_000, size)
        assert float((q * k).sum(1).var()) == pytest.approx(size, rel=0.05)
        assert float((0.02 * q * 0.02 * k).sum(1).var()) == pytest.approx(size * 0.02**4, rel=0.05)


@pytest.mark.parametrize(
    ("z", "share", "slope"), [(2.0, 0.88080, 0.10499), (5.0, 0.99331, 0.0066481), (10.0, 0.999955, 4.5396e-05)]
)
def test_softmax_saturates(z: float, share: float, slope: float) -> None:
    """softmax([z, 0]) and its derivative by z, p (1 - p): the further the scores are apart, the less gradient."""
    scores = torch.tensor([z, 0.0], dtype=torch.float64, requires_grad=True)
    weights = scores.softmax(0)
    (gradient,) = torch.autograd.grad(weights[0], scores)
    assert float(weights[0].detach()) == pytest.approx(share, rel=1e-4)
    assert gradient.tolist() == pytest.approx([slope, -slope], rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("kind", ["causal", "masked", "biased"])
def test_sixteen_bits_are_attended_to_in_float32_on_a_cpu(kind: str, autocast: bool, dtype: torch.dtype) -> None:
    """Rounded once, at the end, and so are the gradients: torch's own 16-bit kernel rounds the weights too."""
    draw = torch.Generator().manual_seed(1)
    small = [torch.randn(2, HEADS, 9, SIZE, generator=draw).to(dtype).requires_grad_() for _ in range(3)]
    wide = [x.detach().float().requires_grad_() for x in small]
    mask = torch.rand(2, 1, 9, 9, generator=draw) > 0.5 if kind == "masked" else None
    bias = torch.randn(1, HEADS, 9, 9, generator=draw) if kind == "biased" else None
    with torch.autocast("cpu", dtype, enabled=autocast):
        # under autocast float32 queries, as qk_norm gives, meet 16-bit values
        y = attend(small[0].float() if autocast else small[0], *small[1:], mask, bias)
    exact = attend(*wide, mask, bias)
    assert y.dtype == dtype
    assert torch.equal(y, exact.to(dtype))
    upstream = torch.randn(exact.shape, generator=draw).to(dtype)
    y.backward(upstream)
    exact.backward(upstream.float())
    for x, reference in zip(small, wide, strict=True):
        assert x.grad is not None
        assert reference.grad is not None
        assert torch.equal(x.grad, reference.grad.to(dtype))
