"""Placements: made with `placement(norm, branch, n_layers, layer, site)`, used as `(stream, f) -> stream`.

How a sublayer f joins the residual stream, as one equation. The placement gets f as a closure, so it never
sees what the sublayer needs, and every placement works with every sublayer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from modernllm.quantities import Count, Natural

Sublayer = Callable[[Tensor], Tensor]


class Placement(nn.Module):
    """`norm()` and `branch()` make fresh modules for this layer (of `n_layers`) and site ("attention", ...)."""

    def __init__(
        self,
        norm: Callable[[], nn.Module],
        branch: Callable[[], nn.Module],
        n_layers: Count,
        layer: Natural,
        site: str,
    ):
        super().__init__()
        self.branch = branch()

    def open(self, x: Tensor) -> Any:
        """The stream made of the embedded tokens."""
        return x

    def close(self, stream: Any, readout: nn.Module) -> Tensor:
        """What the head reads, once the last block is done."""
        return readout(stream)


class NormedPlacement(Placement):
    """A placement with one norm."""

    def __init__(
        self,
        norm: Callable[[], nn.Module],
        branch: Callable[[], nn.Module],
        n_layers: Count,
        layer: Natural,
        site: str,
    ):
        super().__init__(norm, branch, n_layers, layer, site)
        self.norm = norm()
