"""Every combination: the last axis varies fastest, as Hydra's own sweeper has it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from modernllm.sweep.axes import Axis, listed


class Product:
    def __call__(self, axes: Sequence[Axis]) -> list[tuple[str, ...]]:
        return list(product(*listed(axes, "a product")))
