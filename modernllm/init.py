"""Initialisations: `init(model, seed)` draws every parameter by its role, from a stream keyed by its name.

Two models share the initial value of every parameter whose name, shape and role they share, whatever else
they are made of, so that differences between them are paired.
"""

from __future__ import annotations

import hashlib
from collections import Counter

import torch
from torch import Tensor, nn

from modernllm.linear import Role, Start, parameter_roles, parameter_starts
from modernllm.quantities import Count, Positive

TABLES: tuple[Role, ...] = ("embedding", "small_embedding", "position")
INSIDE: tuple[Role, ...] = ("hidden", "score", "gate", "stream")
"""Matrices of the sublayers."""


def named_generator(seed: int, name: str) -> torch.Generator:
    """A CPU generator of its own for `name`: nothing drawn elsewhere shifts it."""
    digest = hashlib.sha256(f"{seed}:{name}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


class Init:
    """Gains 1, biases 0, what a module starts itself as it says, everything else N(0, std(role)^2)."""

    def __call__(self, model: nn.Module, seed: int) -> None:
        n_layers = len(model.blocks)  # type: ignore[arg-type]
        own = parameter_starts(model)
        for name, parameter, role in parameter_roles(model):
            start = own[parameter] if parameter in own else self.start(role, parameter, n_layers)
            value = torch.full(parameter.shape, float(start.mean))
            if start.std:
                value.normal_(start.mean, start.std, generator=named_generator(seed, name))
            with torch.no_grad():
                parameter.copy_(value)

    def start(self, role: Role, parameter: Tensor, n_layers: int) -> Start:
        if role in ("gain", "bias"):
            return Start(mean=1.0 if role == "gain" else 0.0)
        assert role != "scale", "a scale has no start but that of its module"
        return Start(std=self.std(role, parameter, n_layers))

    def std(self, role: Role, parameter: Tensor, n_layers: int) -> float:
        raise NotImplementedError


class FanIn(Init):
    """W ~ N(0, 1/fan_in), so that a matrix keeps the scale of its input at any width  (LeCun et al., 1998)

    Token and position vectors have entries of variance 1; a table that is the head too is drawn as the head is.
    """

    def std(self, role: Role, parameter: Tensor, n_layers: int) -> float:
        return 1.0 if role in ("embedding", "position") else parameter.shape[-1] ** -0.5


class DepthScaled(FanIn):
    """As fanin, and N(0, 1/(2 L fan_in)) for the 2 L matrices that write into the stream

    GPT-2's rule (Megatron's `scaled_init_method`) at the scale of fanin: what they write adds up to the size of one
    sublayer's output, whatever the depth. OLMo 1 had 2 l of layer l in place of 2 L.
    """

    def std(self, role: Role, parameter: Tensor, n_layers: int) -> float:
        return super().std(role, parameter, n_layers) * ((2 * n_layers) ** -0.5 if role == "stream" else 1.0)


class Normal(Init):
    """W ~ N(0, base^2), whatever its size and place  (BERT; LLaMA; OLMo 2)

    0.02 is a number for widths near 768, where it is 0.55 / sqrt(fan_in); at width 64 it is 0.16 / sqrt(fan_in).
    """

    def __init__(self, base: Positive = 0.02):
        self.base = base

    def std(self, role: Role, parameter: Tensor, n_layers: int) -> float:
        return self.base


class GPT2(Normal):
    """W ~ N(0, base^2), and base / sqrt(2 L) for the 2 L matrices that write into the stream  (Radford et al., 2019)"""

    def std(self, role: Role, parameter: Tensor, n_layers: int) -> float:
        return self.base * (2 * n_layers) ** -0.5 if role == "stream" else self.base


class Xavier(FanIn):
    """W ~ N(0, 2 / (fan_in + fan_out)) in the sublayers, tables and head as fanin  (Glorot and Bengio, 2010)"""

    def std(self, role: Role, parameter: Tensor, n_layers: int) -> float:
        if role not in INSIDE:
            return super().std(role, parameter, n_layers)
        return (2 / (parameter.shape[-1] + parameter.shape[-2])) ** 0.5


class Small(FanIn):
    """W ~ N(0, 2 / (5 d)) in the sublayers, tables and head as fanin  (Nguyen and Salazar, 2019)

    Xavier's variance of a feed-forward d -> 4 d, for all; d is the width of the stream that is read or written.
    """

    def std(self, role: Role, parameter: Tensor, n_layers: int) -> float:
        if role not in INSIDE:
            return super().std(role, parameter, n_layers)
        return (2 / (5 * parameter.shape[-2 if role == "stream" else -1])) ** 0.5


class ZeroOut(FanIn):
    """As fanin, and 0 for what writes into the stream: a residual block starts as the identity  (Zhang et al., 2019)

    One of Fixup's rules: it zeroes the head too (head=zero), draws the other matrices of a block smaller the more
    blocks there are, and adds scalar gains and biases, all in place of norms. At the first step nothing else in a
    sublayer has a gradient, nor its norm; from the second on all have.
    """

    def std(self, role: Role, parameter: Tensor, n_layers: int) -> float:
        return 0.0 if role == "stream" else super().std(role, parameter, n_layers)


class DeepNorm(Xavier):
    """As xavier, times (8 L)^(-1/4) but for queries and keys: the start of placement=deepnorm  (Wang et al., 2022)"""

    def std(self, role: Role, parameter: Tensor, n_layers: int) -> float:
        scaled = role in INSIDE and role != "score"
        return super().std(role, parameter, n_layers) * ((8 * n_layers) ** -0.25 if scaled else 1.0)


class MuP(FanIn):
    """As fanin at width `base`; at width d the head is drawn sqrt(base/d) smaller and all matrices learn at lr base/d

    (Yang et al., 2022, for Adam): updates of every activation keep their size at any width, so that the learning rate
    of a narrow model is that of a wide one. The authors' package mup divides the head's input by d/base instead, which
    is the same. Keep head_dim, or take attention.scale=width (1/d_k).
    """

    def __init__(self, base: Count = 64):
        self.base = base

    def __call__(self, model: nn.Module, seed: int) -> None:
        roles = [(parameter, role) for _, parameter, role in parameter_roles(model)]
        tables = [parameter for parameter, role in roles if role in TABLES]
        uses = Counter(parameter for _, parameter in model.named_parameters(remove_duplicate=False))
        if any(uses[table] > 1 for table in tables):
            raise ValueError(
                "init=mup draws and trains the head unlike the embedding, head=tied makes them one: "
                "choose head=untied or head=zero, or another init"
            )
        super().__call__(model, seed)
        shrink = self.base / tables[0].shape[-1]
        for parameter, role in roles:
            # a table that is multiplied by sqrt(d) on reading moves the stream sqrt(d) times as far
            parameter.lr_scale = (  # type: ignore[attr-defined]
                shrink if role in (*INSIDE, "head") else shrink**0.5 if role == "small_embedding" else 1.0
            )

    def std(self, role: Role, parameter: Tensor, n_layers: int) -> float:
        shrink = (self.base / parameter.shape[-1]) ** 0.5 if role == "head" else 1.0
        return super().std(role, parameter, n_layers) * shrink


class Own(Init):
    """What the modules drew when they were made: for models of other hands"""

    def __call__(self, model: nn.Module, seed: int) -> None:
        ours = [name for name, module in model.named_modules() if hasattr(module, "roles")]
        if ours:
            raise ValueError(f"init=own: {ours[0]} draws nothing itself; choose another init, such as init=fanin")
