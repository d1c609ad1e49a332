"""What telemetry records, worked out a second time: numpy in float64, one sum after the other, from the formulas.

It shares nothing with the package but the names of modules and weights, at which hooks of its own listen.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import nn

from modernllm.batch import Batch
from modernllm.model import Decoder

Array = np.ndarray


def exact(x: torch.Tensor) -> Array:
    return x.detach().double().numpy()


@dataclass
class Heard:
    """Of one forward and the backward of its mean loss: what went through each named module, and gradients."""

    into: dict[str, Array] = field(default_factory=dict)
    out: dict[str, Array] = field(default_factory=dict)
    gradients: dict[str, Array] = field(default_factory=dict)
    """Of parameters, and of the outputs of blocks (`blocks.0`) and of what goes into the first (`start`)."""
    attended: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By layer: the q, k, mask and bias that `Attend` is given."""
    targets: Array = field(default_factory=lambda: np.zeros(0))


def first(value: Any) -> Any:
    return first(value[0]) if isinstance(value, tuple) else value


def listen(model: Decoder, batch: Batch) -> Heard:
    """In eval mode; of a stream that is two the first."""
    heard, kept = Heard(targets=batch.targets.numpy() if batch.targets is not None else np.zeros(0)), {}
    with listening(model, heard, kept):
        logits = model.eval()(batch)
    assert batch.targets is not None
    model.zero_grad()
    nn.functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()).backward()
    heard.gradients = {name: exact(p.grad) for name, p in model.named_parameters() if p.grad is not None}
    heard.gradients |= {name: exact(x.grad) for name, x in kept.items() if x.grad is not None}
    model.zero_grad()
    return heard


@contextmanager
def listening(model: Decoder, heard: Heard, kept: dict[str, torch.Tensor]) -> Iterator[None]:
    n_layers = len(model.blocks)

    def keep(name: str, x: torch.Tensor) -> None:
        kept[name] = x
        x.retain_grad()

    def hook(name: str, module: nn.Module, args: tuple[Any, ...], out: Any) -> None:
        if isinstance(first(args), torch.Tensor):
            heard.into[name] = exact(first(args))
        if isinstance(first(out), torch.Tensor):
            heard.out[name] = exact(first(out))
        if name in {f"blocks.{i}" for i in range(n_layers)}:
            keep(name, first(out))
        if name == "blocks.0":
            keep("start", first(args))
        if name.endswith("attention.attend"):
            heard.attended[int(name.split(".")[1])] = dict(zip(("q", "k", "v", "mask", "bias"), args, strict=True))

    handles = [
        module.register_forward_hook(lambda m, a, o, name=name or "model": hook(name, m, a, o))
        for name, module in model.named_modules()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


# --- of a tensor


def rms(x: Array) -> float:
    return math.sqrt((x**2).sum() / x.size)


def moments(x: Array) -> dict[str, float]:
    mean = x.sum() / x.size
    variance = ((x - mean) ** 2).sum() / x.size
    fourth = ((x - mean) ** 4).sum() / x.size
    return {"mean": mean, "std": math.sqrt(variance), "kurtosis": fourth / variance**2, "max": np.abs(x).max()}


def massiveness(x: Array) -> float:
    """Over the lower of the two medians, where their number is even."""
    ordered = sorted(np.abs(x).flatten())
    return ordered[-1] / ordered[(len(ordered) - 1) // 2]


def cosine(a: Array, b: Array) -> float:
    return float(a @ b) / (math.sqrt(a @ a) * math.sqrt(b @ b))


def cosine_of_tokens(x: Array, y: Array) -> float:
    each = [cosine(a, b) for a, b in zip(x.reshape(-1, x.shape[-1]), y.reshape(-1, y.shape[-1]), strict=True)]
    return sum(each) / len(each)


def token_cosine(x: Array) -> float:
    """Over all pairs of different tokens of a row."""
    pairs = [cosine(row[i], row[j]) for row in x for i in range(len(row)) for j in range(i)]
    return sum(pairs) / len(pairs)


def effective_rank(x: Array) -> float:
    values = np.linalg.svd(x.reshape(-1, x.shape[-1]), compute_uv=False)
    shares = [value / values.sum() for value in values]
    return math.exp(-sum(share * math.log(share) for share in shares if share > 1e-12))


def growth(first: Array, last: Array, n_layers: int) -> float:
    """log(|v'| / |v|) / L of the means over all tokens."""
    v, grown = (x.reshape(-1, x.shape[-1]).mean(0) for x in (first, last))
    return (math.log(math.sqrt(grown @ grown)) - math.log(math.sqrt(v @ v))) / n_layers


def slope(values: list[float]) -> float:
    """Of the line of least squares through (log l, log y_l)."""
    return float(np.polyfit(np.log(range(1, len(values) + 1)), np.log(values), 1)[0])


# --- of logits


def log_normalisers(logits: Array) -> Array:
    top = logits.max(-1)
    return top + np.log(np.exp(logits - top[..., None]).sum(-1))


def loss(logits: Array, targets: Array) -> float:
    chosen = np.take_along_axis(logits, targets[..., None], -1)[..., 0]
    return float((log_normalisers(logits) - chosen).mean())


# --- of attention


@dataclass(frozen=True)
class Heads:
    """What an attention is made of, in words."""

    n_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    cap: float | None = None
    sink: str = "none"
    norm: str = "none"
    rope: bool = True
    alibi: bool = False


def products(of: Heads, weights: dict[str, Array], x: Array) -> Array:
    """scale q_i . k_j of every head, [b h t s], from what the attention reads and its weights."""
    b, t, _ = x.shape
    sides = []
    for name in ("q", "k"):
        y = x @ weights[f"{name}.weight"].T
        if of.norm == "width":
            y = normed(y, weights[f"{name}_norm.norm.gain"])
        y = y.reshape(b, t, -1, of.head_dim)
        if of.norm == "head":
            y = normed(y, weights[f"{name}_norm.norm.gain"])
        sides.append(turned(y) if of.rope else y)
    q, k = sides
    found = np.zeros((b, of.n_heads, t, t))
    for head in range(of.n_heads):
        group = head * k.shape[2] // of.n_heads
        for row in range(b):
            found[row, head] = of.scale * q[row, :, head] @ k[row, :, group].T
    return found


def normed(x: Array, gain: Array) -> Array:
    return gain * x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)


def turned(x: Array) -> Array:
    """Pairs of neighbours, by the position times 10000^(-2i/k)."""
    y, size = x.copy(), x.shape[-1]
    for place in range(x.shape[1]):
        for pair in range(size // 2):
            angle = place * 10_000.0 ** (-2 * pair / size)
            a, b = x[:, place, :, 2 * pair], x[:, place, :, 2 * pair + 1]
            y[:, place, :, 2 * pair] = a * math.cos(angle) - b * math.sin(angle)
            y[:, place, :, 2 * pair + 1] = a * math.sin(angle) + b * math.cos(angle)
    return y


def visible(of: Heads, t: int) -> Array:
    return np.array([[j <= i and (of.window is None or i - j < of.window) for j in range(t)] for i in range(t)])


def attention_numbers(of: Heads, dots: Array, seen: Array, sinks: Array, bias: Array | None = None) -> dict[str, Any]:
    """Largest |logit| and normalised entropy of each head, and the share of heads whose first key takes above 0.3.

    `seen` is [t s], or [b t s]; `sinks` the logit of a head's sink.
    """
    b, h, t, s = dots.shape
    seen = np.broadcast_to(seen, (b, t, s))
    largest, entropy, of_first = [], [], []
    for head in range(h):
        biggest, entropies, firsts = 0.0, [], []
        for row in range(b):
            for i in range(t):
                keys = [j for j in range(s) if seen[row, i, j]]
                biggest = max([biggest, *(abs(dots[row, head, i, j]) for j in keys)])
                scores = [score(of, dots[row, head, i, j], i - j, head) for j in keys]
                if bias is not None:
                    scores = [z + bias[row % len(bias), head, i, j] for z, j in zip(scores, keys, strict=True)]
                exponents = [math.exp(z) for z in scores]
                whole = sum(exponents) + (0.0 if of.sink == "none" else math.exp(sinks[head]))
                firsts.append(exponents[keys.index(0)] / whole if 0 in keys else 0.0)
                shares = [e / sum(exponents) for e in exponents]
                if len(keys) > 1:
                    entropies.append(-sum(p * math.log(p) for p in shares if p) / math.log(len(keys)))
        largest.append(biggest)
        entropy.append(sum(entropies) / len(entropies))
        of_first.append(sum(firsts) / len(firsts))
    return {"max_logit": largest, "entropy": entropy, "sinks": sum(share > 0.3 for share in of_first) / h}


def score(of: Heads, dot: float, distance: int, head: int) -> float:
    capped = dot if of.cap is None else of.cap * math.tanh(dot / of.cap)
    return capped - (2.0 ** (-8 * (head + 1) / of.n_heads) * distance if of.alibi else 0.0)
