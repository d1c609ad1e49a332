"""Attention weights against an explicit softmax, with every kind of mask (F-05, F-07, F-09, F-10)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from modernllm.attention.attend import Attend


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    return Attend(0.0)(q, k, v, mask, bias)


def loops(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
    """softmax(q k / sqrt(k) + bias) v, one query after the other; no key gives zeros."""
    n_rows, n_heads, n_queries, size = q.shape
    n_keys, group = k.shape[2], q.shape[1] // k.shape[1]
    y = torch.zeros(n_rows, n_heads, n_queries, v.shape[3], dtype=q.dtype)
    for b in range(n_rows):
        for h in range(n_heads):
            for t in range(n_queries):
                if mask is None:
                    seen = range(n_keys - n_queries + t + 1)
                else:
                    allowed = mask[b % len(mask), 0, t].tolist()
                    seen = [s for s in range(n_keys) if allowed[s]]
                scores = [float(q[b, h, t] @ k[b, h // group, s]) / math.sqrt(size) for s in seen]
                if bias is not None:
                    added = bias[b % len(bias), h, t].tolist()
                    scores = [score + added[s] for score, s in zip(scores, seen, strict=True)]
                weights = [math.exp(score - max(scores)) for score in scores]
                for weight, s in zip(weights, seen, strict=True):
                    y[b, h, t] += weight / sum(weights) * v[b, h // group, s]
    return y


def random_qkv(n_queries: int, n_keys: int, n_kv_heads: int = 4) -> tuple[Tensor, Tensor, Tensor]:
    q = torch.randn(2, 4, n_queries, 6, dtype=torch.float64)
    k, v = torch.randn(2, 2, n_kv_heads, n_keys, 6, dtype=torch.float64)
    return q, k, v


@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("masked", [False, True], ids=["causal", "mask"])
@pytest.mark.parametrize("n_kv_heads", [4, 2, 1])
def test_the_formula(n_kv_heads: int, masked: bool, biased: bool) -> None:
    """The mask is any, and leaves a query without a key."""
    q, k, v = random_qkv(7, 7, n_kv_heads)
    mask = (torch.rand(2, 1, 7, 7) < 0.4) & (torch.arange(7) != 2)[:, None] if masked else None
    bias = torch.randn(1, 4, 7, 7, dtype=torch.float64) if biased else None
    torch.testing.assert_close(attend(q, k, v, mask, bias), loops(q, k, v, mask, bias), rtol=0, atol=1e-12)


def test_one_query_after_many_keys_sees_them_all() -> None:
    """F-05: SDPA's own causal mask would show it the first key only."""
    q, k, _ = random_qkv(1, 5)
    v = torch.arange(5.0, dtype=torch.float64)[None, None, :, None].expand(2, 4, 5, 6)
    torch.testing.assert_close(attend(0 * q, k, v), torch.full_like(q, 2.0))
    torch.testing.assert_close(attend(q, k, v), loops(q, k, v, None, None))


def test_a_bias_alone_is_causal_from_the_end() -> None:
    """A chunk of 3 after 4 keys: its queries see 5, 6 and 7 keys."""
    q, k, v = random_qkv(3, 7, 2)
    bias = torch.randn(1, 4, 3, 7, dtype=torch.float64)
    torch.testing.assert_close(attend(q, k, v, None, bias), loops(q, k, v, None, bias), rtol=0, atol=1e-12)


def test_a_chunk_needs_a_mask() -> None:
    with pytest.raises(AssertionError):
        attend(*random_qkv(3, 7))


@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
def test_a_query_without_keys_gives_zeros(biased: bool) -> None:
    """F-09: and finite gradients for everything; the other queries do not notice."""
    q, k, v = (x.float().requires_grad_() for x in random_qkv(6, 6))
    mask = torch.ones(6, 6, dtype=torch.bool).tril().expand(2, 1, 6, 6).clone()
    bias = torch.randn(1, 4, 6, 6, requires_grad=True) if biased else None
    before = attend(q, k, v, mask, bias)
    mask[1], mask[0, :, :2] = False, False
    y = attend(q, k, v, mask, bias)
    assert torch.equal(y[1], torch.zeros_like(y[1]))
    assert torch.equal(y[0, :, :2], torch.zeros_like(y[0, :, :2]))
    torch.testing.assert_close(y[0, :, 2:], before[0, :, 2:])
    inputs = [x for x in (q, k, v, bias) if x is not None]
    for gradient in torch.autograd.grad(y.sum(), inputs):
        assert gradient.isfinite().all()
        assert float(gradient.abs().max()) > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("masked", [False, True], ids=["causal", "mask"])
def test_no_score_is_so_low_that_the_future_is_seen(masked: bool, dtype: torch.dtype) -> None:
    """F-10: scores of -1e5 against masked ones that a fill of -1e4 would leave higher: their weight is 0."""
    n = 6
    q = torch.full((1, 1, n, n), 1e5 / math.sqrt(n), dtype=dtype)
    k = torch.full((1, 1, n, n), -1.0, dtype=dtype)
    q[..., -1, :] = 0  # the last query sees all keys alike
    mask = torch.ones(1, 1, n, n, dtype=torch.bool).tril() if masked else None
    weights = attend(q, k, torch.eye(n, dtype=dtype)[None, None], mask)[0, 0].float()
    assert torch.equal(weights.triu(1), torch.zeros(n, n))
    torch.testing.assert_close(weights.sum(1), torch.ones(n), rtol=0, atol=0.01)
    torch.testing.assert_close(weights[3, :4], torch.full((4,), 0.25), rtol=0, atol=0.01)


@pytest.mark.parametrize("biased", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_masks_in_low_precision(dtype: torch.dtype, biased: bool) -> None:
    """F-10: no -inf - inf, no value that the dtype cannot hold, and the answer of float64."""
    q, k, v = random_qkv(6, 6, 2)
    mask = torch.ones(6, 6, dtype=torch.bool).tril().expand(2, 1, 6, 6).clone()
    mask[1, :, :, :3] = False
    bias = torch.randn(1, 4, 6, 6) if biased else None
    y = attend(q.to(dtype), k.to(dtype), v.to(dtype), mask, bias)
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), loops(q, k, v, mask, bias), rtol=0, atol=0.03)


def test_dropout_drops_weights_in_training_only() -> None:
    """What is left is scaled up: with values of one the mean stays one."""
    module, n = Attend(0.5), 64
    q, k, v = torch.zeros(1, 2, n, 4), torch.zeros(1, 2, n, 4), torch.ones(1, 2, n, 4)
    y = module.train()(q, k, v, None, None)
    assert set(y[0, :, 0].flatten().tolist()) <= {0.0, 2.0}
    assert float(y.mean()) == pytest.approx(1.0, abs=0.1)
    assert float(y.std()) > 0.05
    torch.testing.assert_close(module.eval()(q, k, v, None, None), v)
