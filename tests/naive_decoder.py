"""A decoder written a second time, from the formulas alone: one token, one head and one key after the other.

It shares nothing with the package but the names of the weights. A `Plan` says what a model is made of, in words that
each stand for one formula below.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Plan:
    n_layers: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    norm: str = "rmsnorm"
    eps: float = 1e-6
    placement: str = "pre"
    readout: bool = True
    block: str = "serial"
    position: str = "none"
    base: float = 10_000.0
    turned: int = 0
    layout: str = "interleaved"
    feedforward: str = "silu"
    gated: bool = True
    qk_norm: str = "none"
    window: int | None = None
    full_every: int | None = None
    cap: float | None = None
    head_cap: float | None = None
    sink: str = "none"
    embedding: str = "plain"


Weights = dict[str, Tensor]


def logits(plan: Plan, weights: Weights, tokens: list[int]) -> Tensor:
    """[t, v] of one text."""
    stream = [embedded(plan, weights, token, place) for place, token in enumerate(tokens)]
    for layer in range(plan.n_layers):
        stream = block(plan, weights, layer, stream)
    if plan.readout:
        stream = [normed(plan, weights, "readout.norm", x) for x in stream]
    table = weights.get("head.weight", weights["embedding.weight"])
    out = torch.stack([torch.stack([(row * x).sum() for row in table]) for x in stream])
    return out if plan.head_cap is None else plan.head_cap * (out / plan.head_cap).tanh()


def embedded(plan: Plan, weights: Weights, token: int, place: int) -> Tensor:
    x = weights["embedding.weight"][token]
    d = len(x)
    if plan.embedding == "scaled":
        x = x * math.sqrt(d)
    if plan.embedding == "normed":
        x = x / (x.square().mean() + 1e-6).sqrt()
    if plan.position == "learned":
        x = x + weights["position.table"][place]
    if plan.position == "sinusoidal":
        for i in range(d):
            angle = place / 10_000.0 ** (2 * (i // 2) / d)
            x = x + torch.eye(d)[i] * (math.sin(angle) if i % 2 == 0 else math.cos(angle))
    return x


def normed(plan: Plan, weights: Weights, name: str, x: Tensor) -> Tensor:
    gain, bias = weights.get(f"{name}.gain"), weights.get(f"{name}.bias")
    if plan.norm == "dyt":
        return weights[f"{name}.gain"] * torch.tanh(weights[f"{name}.scale"] * x) + weights[f"{name}.bias"]
    if plan.norm == "scalenorm":
        return weights[f"{name}.scale"] * x / (x.square().sum() + len(x) * plan.eps).sqrt()
    if plan.norm.startswith("layernorm") or plan.norm == "nonparametric":
        x = x - x.sum() / len(x)
    x = x / (x.square().sum() / len(x) + plan.eps).sqrt()
    x = x if gain is None else gain * x
    return x if bias is None else x + bias


def block(plan: Plan, weights: Weights, layer: int, stream: list[Tensor]) -> list[Tensor]:
    name = f"blocks.{layer}"

    def attend(xs: list[Tensor]) -> list[Tensor]:
        return attention(plan, weights, f"{name}.sublayers.attention", layer, xs)

    def feed(xs: list[Tensor]) -> list[Tensor]:
        return [feedforward(plan, weights, f"{name}.sublayers.feedforward", x) for x in xs]

    if plan.block == "serial":
        stream = joined(plan, weights, f"{name}.joins.attention", stream, attend)
        return joined(plan, weights, f"{name}.joins.feedforward", stream, feed)
    if plan.block == "parallel":

        def both(xs: list[Tensor]) -> list[Tensor]:
            return [a + f for a, f in zip(attend(xs), feed(xs), strict=True)]

        return joined(plan, weights, f"{name}.joins.parallel", stream, both)
    first = joined(plan, weights, f"{name}.joins.attention", stream, attend)
    second = joined(plan, weights, f"{name}.joins.feedforward", stream, feed)
    return [a + f - x for a, f, x in zip(first, second, stream, strict=True)]


def joined(
    plan: Plan, weights: Weights, name: str, xs: list[Tensor], f: Callable[[list[Tensor]], list[Tensor]]
) -> list[Tensor]:
    def norm(vectors: list[Tensor], which: str = "norm") -> list[Tensor]:
        return [normed(plan, weights, f"{name}.{which}", x) for x in vectors]

    if plan.placement == "pre":  # x + f(norm(x))
        return plus(xs, f(norm(xs)))
    if plan.placement == "post":  # norm(x + f(x))
        return norm(plus(xs, f(xs)))
    if plan.placement == "sandwich":  # x + norm'(f(norm(x)))
        return plus(xs, norm(f(norm(xs)), "out_norm"))
    if plan.placement == "reordered":  # x + norm(f(x))
        return plus(xs, norm(f(xs)))
    assert plan.placement == "deepnorm"  # norm(a x + f(x))
    alpha = (2 * plan.n_layers) ** 0.25
    return norm(plus([alpha * x for x in xs], f(xs)))


def plus(xs: list[Tensor], ys: list[Tensor]) -> list[Tensor]:
    return [x + y for x, y in zip(xs, ys, strict=True)]


def times(weights: Weights, name: str, x: Tensor) -> Tensor:
    y = torch.stack([(row * x).sum() for row in weights[f"{name}.weight"]])
    return y + weights[f"{name}.bias"] if f"{name}.bias" in weights else y


def feedforward(plan: Plan, weights: Weights, name: str, x: Tensor) -> Tensor:
    gate = times(weights, f"{name}.{'gate' if plan.gated else 'up'}", x)
    inside = {
        "silu": lambda u: u / (1 + (-u).exp()),
        "gelu": lambda u: u * 0.5 * (1 + torch.erf(u / math.sqrt(2))),
        "gelu_tanh": lambda u: 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3))),
        "relu": lambda u: u * (u > 0),
        "relu2": lambda u: (u * (u > 0)) ** 2,
        "sigmoid": lambda u: 1 / (1 + (-u).exp()),
        "identity": lambda u: u,
    }[plan.feedforward](gate)
    return times(weights, f"{name}.out", inside * times(weights, f"{name}.up", x) if plan.gated else inside)


def attention(plan: Plan, weights: Weights, name: str, layer: int, xs: list[Tensor]) -> list[Tensor]:
    q, k, v = ([times(weights, f"{name}.{part}", x) for x in xs] for part in "qkv")
    if plan.qk_norm == "width":
        q = [normed(plan, weights, f"{name}.q_norm.norm", x) for x in q]
        k = [normed(plan, weights, f"{name}.k_norm.norm", x) for x in k]
    size = plan.head_dim
    made = []
    for i in range(len(xs)):
        heads = []
        for head in range(plan.n_heads):
            group = head * plan.n_kv_heads // plan.n_heads
            query = of_head(plan, weights, f"{name}.q_norm.norm", q[i], head, i)
            scores, values = [], []
            for j in range(i + 1):
                if sees(plan, layer, i, j):
                    key = of_head(plan, weights, f"{name}.k_norm.norm", k[j], group, j)
                    score = (query * key).sum() / math.sqrt(size)
                    score = score if plan.cap is None else plan.cap * (score / plan.cap).tanh()
                    scores.append(score - slope(plan, head) * (i - j))
                    values.append(v[j][group * size : (group + 1) * size])
            exponents = [score.exp() for score in scores]
            total = sum(exponents, start=torch.zeros(())) + sink(plan, weights, name, head)
            heads.append(
                sum((e / total * value for e, value in zip(exponents, values, strict=True)), start=0 * values[0])
            )
        made.append(times(weights, f"{name}.out", torch.cat(heads)))
    return made


def of_head(plan: Plan, weights: Weights, name: str, x: Tensor, head: int, place: int) -> Tensor:
    """The part of one head, normed and turned."""
    x = x[head * plan.head_dim : (head + 1) * plan.head_dim]
    if plan.qk_norm == "head":
        x = normed(plan, weights, name, x)
    if plan.position != "rope":
        return x
    y = x.clone()
    for pair in range(plan.turned // 2):
        angle = place * plan.base ** (-2 * pair / plan.turned)
        a, b = (2 * pair, 2 * pair + 1) if plan.layout == "interleaved" else (pair, pair + plan.turned // 2)
        y[a] = x[a] * math.cos(angle) - x[b] * math.sin(angle)
        y[b] = x[a] * math.sin(angle) + x[b] * math.cos(angle)
    return y


def sees(plan: Plan, layer: int, i: int, j: int) -> bool:
    full = plan.full_every is not None and (layer + 1) % plan.full_every == 0
    return plan.window is None or full or i - j < plan.window


def slope(plan: Plan, head: int) -> float:
    """For a number of heads that is a power of two."""
    return 2.0 ** (-8 * (head + 1) / plan.n_heads) if plan.position == "alibi" else 0.0


def sink(plan: Plan, weights: Weights, name: str, head: int) -> Tensor:
    if plan.sink == "learned":
        return weights[f"{name}.attend.softmax.logits"][head].exp()
    return torch.tensor(1.0 if plan.sink == "zero" else 0.0)
