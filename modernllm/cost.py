"""What a model costs, as its modules state it: parameters, FLOPs of a forward and bytes of cache for each token.

A module that multiplies has `flops(length)`: what it does itself, without its children, for one token, as the mean over
a text of `length` tokens; a product and its sum are two. A module that sends only some tokens through a child says how
many in `shares`, by the child's name. Elementwise work (norms, activations, softmax, rotations, biases) counts as
nothing, as it does in torch's counter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode, sdpa_flop_count

from modernllm.batch import Batch
from modernllm.config.build import build_model
from modernllm.init import INSIDE, TABLES
from modernllm.linear import Role, own_roles, parameter_roles
from modernllm.model import Decoder

MATRICES: tuple[Role, ...] = (*INSIDE, "head")
"""What a token is multiplied with; a table is read by the row."""
UNCOUNTED = {
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: lambda q, k, v, *_, **__: sdpa_flop_count(q, k, v)
}
"""Operators that torch's counter takes for nothing, by shapes; models of other hands may insist on such a kernel."""


@runtime_checkable
class Costed(Protocol):
    def flops(self, length: int) -> float: ...


def cost(model: nn.Module, length: int) -> dict[str, Any]:
    """All of it, as `run.json` has it, at a context of `length` tokens: without a forward, unless the model is of other
    hands. A backward takes twice the FLOPs of a forward.
    """
    flops = flops_per_token(model, length)
    return {
        "parameters": parameter_counts(model),
        "flops_per_token": {"algorithmic": flops, "training": 3 * flops},
        "cache_bytes_per_token": cache_bytes_per_token(model, length) if isinstance(model, Decoder) else None,
    }


def planned_cost(config: Mapping[str, Any]) -> dict[str, Any]:
    """The `cost` of the model that a resolved `model` section describes, made without a weight where its parts state
    their cost. ConfigError where it cannot be built.
    """
    with torch.random.fork_rng(devices=[]):  # models of other hands draw when they are made
        with torch.device("meta"):
            model, _ = build_model(config)
        if _is_silent(model):
            model, _ = build_model(config)
    return cost(model, config["context_length"])


def parameter_counts(model: nn.Module) -> dict[str, int]:
    """Each parameter once: `total`; `active`, without the experts that a token does not visit; `embedding`, the tables
    that grow with the vocabulary or the context; `head`, 0 where it is such a table; `non_embedding`, without these.
    """
    sizes = [(role, parameter.numel()) for _, parameter, role in parameter_roles(model)]
    total, tables = sum(size for _, size in sizes), sum(size for role, size in sizes if role in TABLES)
    head = sum(size for role, size in sizes if role == "head")
    return {
        "total": total,
        "active": _active(model),
        "non_embedding": total - tables - head,
        "embedding": tables,
        "head": head,
    }


def _active(model: nn.Module) -> int:
    shares: dict[nn.Parameter, float] = {}
    for module, share in visited(model):
        for parameter in module.parameters(recurse=False):
            shares[parameter] = max(share, shares.get(parameter, 0.0))
    return round(sum(share * parameter.numel() for parameter, share in shares.items()))


def flops_per_token(model: nn.Module, length: int) -> float:
    """Of a forward, by the algorithm: two for each weight that meets a token, and for scores and values what a query
    really sees. What torch executes, for a model with parts that do not state their cost.
    """
    if _is_silent(model):
        return executed_flops_per_token(model, length)
    return float(sum(share * module.flops(length) for module, share in visited(model) if isinstance(module, Costed)))


def _is_silent(model: nn.Module) -> bool:
    """Something in it multiplies, or mixes tokens, and does not say how much."""
    return any(map(_hides_its_cost, model.modules()))


def _hides_its_cost(module: nn.Module) -> bool:
    multiplies = any(role in MATRICES for _, _, role in own_roles(module))
    return (multiplies or hasattr(module, "state")) and not isinstance(module, Costed)


def visited(module: nn.Module, share: float = 1.0) -> Iterator[tuple[nn.Module, float]]:
    """Every module at or below this one, with the share of the tokens that goes through it."""
    yield module, share
    shares = getattr(module, "shares", {})
    for name, child in module.named_children():
        yield from visited(child, share * shares.get(name, 1.0))


def executed_flops_per_token(model: nn.Module, length: int) -> float:
    """Of a forward over one text, counted in torch's operators as they run: attention is the full square, and a form
    in parts multiplies within them.
    """
    tokens = torch.zeros(1, length, dtype=torch.long, device=next(model.parameters()).device)
    counter = FlopCounterMode(display=False, custom_mapping=UNCOUNTED)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), counter:
        model(Batch(tokens))
    return counter.get_total_flops() / length


def cache_bytes_per_token(model: Decoder, length: int) -> float:
    """Of what generation keeps of a text of `length` tokens, for each of them: a window or a state of fixed size costs
    the less, the longer the text.
    """
    return sum(state.bytes() for state in model.states(1, length)) / length
