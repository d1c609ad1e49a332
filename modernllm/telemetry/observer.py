"""What looks at one forward of a model: attached by hooks, asked afterwards, taken off again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from modernllm.telemetry.layers import Layers

Series = dict[str, dict[str, float]]
"""Series by name, each with a number for every place: {"stream_rms": {"layer.00": 1.0}}."""


class Observer(Protocol):
    def attach(self, model: nn.Module, layers: Layers) -> Iterator[RemovableHandle]:
        """Hook on to the modules that it finds by their contracts."""
        ...

    def series(self) -> Series:
        """What it saw. What a model does not have is absent."""
        ...


def first_tensor(value: Any) -> Tensor | None:
    """Of a module's arguments or output; of two streams the one that sublayers read."""
    if isinstance(value, Tensor):
        return value
    found = map(first_tensor, value) if isinstance(value, tuple) else iter(())
    return next((tensor for tensor in found if tensor is not None), None)


def rounded(values: dict[str, Any]) -> dict[str, Any]:
    """To six digits, which is as much as they are worth: half the room on the disk."""
    return {key: rounded(x) if isinstance(x, dict) else float(f"{x:.6g}") for key, x in values.items()}


def told(series: Series) -> Series:
    """Without what could not be told."""
    kept = {name: {place: x for place, x in of.items() if x == x} for name, of in series.items()}
    return {name: of for name, of in kept.items() if of}
