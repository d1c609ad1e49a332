"""Output gates against their formula, and in their limits."""

from __future__ import annotations

import pytest
import torch
from attention_layers import DIM, HEADS, SIZE, decoded, equal, loops, made, run, text
from torch import nn

from modernllm.attention.gated import GatedAttention
from modernllm.attention.multi_head import GroupedQueryAttention, MultiHeadAttention
from modernllm.linear import parameter_roles
from modernllm.position.rope import RoPE

PER_HEAD = {"elementwise": SIZE, "headwise": 1}


@pytest.mark.parametrize("n_kv_heads", [None, 2])
@pytest.mark.parametrize("gates", PER_HEAD)
def test_the_formula(gates: str, n_kv_heads: int | None) -> None:
    """Head h, or its number i, is multiplied by sigmoid of its own row of W_gate x."""
    attention, x = made(GatedAttention, n_kv_heads, RoPE, bias=True, gates=gates), text(9)
    read = loops(attention, x, lambda t: range(t + 1))
    opened, n = attention.gate(x), PER_HEAD[gates]
    assert opened.shape == (2, 9, HEADS * n)
    gated = torch.zeros(2, 9, HEADS * SIZE, dtype=torch.float64)
    for h in range(HEADS):
        for i in range(SIZE):
            gate = 1 / (1 + (-opened[:, :, h * n + min(i, n - 1)]).exp())
            gated[:, :, h * SIZE + i] = gate * read[:, h, :, i]
    equal(run(attention, x), attention.out(gated))
    equal(decoded(attention, x, [4, 1, 4]), run(attention, x))


@pytest.mark.parametrize("gates", PER_HEAD)
@pytest.mark.parametrize(("bias", "factor"), [(0.0, 0.5), (50.0, 1.0), (-50.0, 0.0)])
def test_a_gate_that_does_not_look(gates: str, bias: float, factor: float) -> None:
    """Half open, open and shut: that much of attention without a gate."""
    attention, x = made(GatedAttention, 2, RoPE, bias=True, gates=gates), text(9)
    nn.init.zeros_(attention.gate.weight)
    nn.init.constant_(attention.gate.bias, bias)
    nn.init.zeros_(attention.out.bias)
    other = made(GroupedQueryAttention, 2, RoPE, bias=True)
    other.load_state_dict({k: v for k, v in attention.state_dict().items() if not k.startswith("gate")})
    equal(run(attention, x), factor * run(other, x))


@pytest.mark.parametrize("gates", PER_HEAD)
def test_parameters_and_cache_beside_multi_head_attention(gates: str) -> None:
    attention, other = made(GatedAttention, gates=gates), made(MultiHeadAttention)
    count = lambda module: sum(p.numel() for p in module.parameters())  # noqa: E731
    assert count(attention) == count(other) + DIM * HEADS * PER_HEAD[gates]
    assert {name: role for name, _, role in parameter_roles(attention)}["gate.weight"] == "gate"
    assert attention.state(3, 10).elements() == other.state(3, 10).elements() == 2 * 3 * 10 * HEADS * SIZE
