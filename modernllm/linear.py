"""Parameters say what they are for, where they are made; initialisation, decay and muP's rates go by that role."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from torch import nn

Role = Literal[
    "embedding",  # token table, read as is
    "small_embedding",  # token table that is also the head, or is scaled up on reading
    "position",  # learned position table
    "hidden",  # a matrix inside a sublayer
    "score",  # such a matrix, of queries or keys: what it makes is only compared
    "gate",  # a matrix whose output gates another
    "stream",  # a matrix that writes into the residual stream
    "head",  # stream to logits
    "gain",  # multiplies a normalised vector
    "scale",  # multiplies, from a start of its module's own
    "bias",  # is added
]


class Start(NamedTuple):
    """N(mean, std^2): what a module that lists it in `starts` asks for, whatever the initialisation."""

    mean: float = 0.0
    std: float = 0.0


class Linear(nn.Linear):
    """x W^T + b, with the role of W"""

    def __init__(self, n_in: int, n_out: int, bias: bool, role: Role):
        super().__init__(n_in, n_out, bias=bias)
        self.roles: dict[str, Role] = {"weight": role, "bias": "bias"}

    def flops(self, length: int) -> float:
        return 2.0 * self.weight.numel()


def parameter_roles(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, Role]]:
    """Each parameter once, by its first name, with the role that its module gave it.

    A module from torch.nn states none: there a vector named `bias` is a bias, another vector a gain, the matrix of an
    nn.Embedding a table and any other hidden.
    """
    seen: set[nn.Parameter] = set()
    for prefix, module in model.named_modules():
        for name, parameter, role in own_roles(module):
            if parameter not in seen:
                seen.add(parameter)
                yield f"{prefix}.{name}".lstrip("."), parameter, role


def own_roles(module: nn.Module) -> Iterator[tuple[str, nn.Parameter, Role]]:
    """Of the parameters that the module itself holds."""
    matrix: Role = "embedding" if isinstance(module, nn.Embedding) else "hidden"
    for name, parameter in module.named_parameters(recurse=False):
        default = matrix if parameter.ndim > 1 else "bias" if name == "bias" else "gain"
        yield name, parameter, getattr(module, "roles", {}).get(name, default)


def parameter_starts(model: nn.Module) -> dict[nn.Parameter, Start]:
    """The parameters whose start is their module's own."""
    return {
        module.get_parameter(name): start
        for module in model.modules()
        for name, start in getattr(module, "starts", {}).items()
    }
