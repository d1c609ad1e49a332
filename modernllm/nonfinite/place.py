"""The first bad operation behind a loss or a gradient, and the way from there."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

from modernllm.nonfinite.magnitude import Magnitude
from modernllm.nonfinite.trace import LOSS, Operation, Phase

Kind = Literal["activation", "logit", "loss", "gradient", "parameter", "optimizer state"]

DIVIDING = ("div", "log", "log2", "log10", "log1p", "rsqrt", "reciprocal", "pow")
"""Operators for which zero is too small."""
TINY = 1e-30
"""A number whose reciprocal, or a power of it, is soon beyond float32."""


@dataclass(frozen=True)
class Place:
    """Where a number first was not finite. `micro_batch` counts from 1 over those of all ranks in turn, `rank` is whose
    it is, and `rows` are its first row in the batch and the one after its last; 0, 0 and none where it was none.
    """

    phase: Phase
    kind: Kind
    tensor: str
    module: str
    operation: str
    node: str = ""
    inputs: list[Magnitude] = field(default_factory=list)
    scalars: dict[str, int | float] = field(default_factory=dict)
    """Numbers that went in beside the tensors."""
    micro_batch: int = 0
    rank: int = 0
    rows: list[int] = field(default_factory=list)
    mask: str = ""
    """Whose infinities, that were meant, this operation could not bear."""

    def same(self, other: Place) -> bool:
        """The same operation of the same module, whatever the numbers."""
        return all(getattr(self, name) == getattr(other, name) for name in ("phase", "kind", "module", "operation"))


def way(end: Operation) -> list[Operation]:
    """From the first bad operation to `end`, within the phase of `end`; what a mask made infinite is not bad."""
    after: dict[int, Operation | None] = {end.index: None}
    queue = [end]
    sources = []
    for operation in queue:  # grows as it is read: the shortest way to each
        guilty = [cause for cause in operation.causes if not cause.deliberate and cause.phase == end.phase]
        if not guilty:
            sources.append(operation)
        for cause in guilty:
            if cause.index not in after:
                after[cause.index] = operation
                queue.append(cause)
    step: Operation | None = min(sources, key=lambda operation: operation.index)
    found = []
    while step is not None:
        found.append(step)
        step = after[step.index]
    return found


def mask(operation: Operation) -> str:
    """Whose infinities an operation was given, where they were meant: those of a buffer, or of who wrote them."""
    meant = [cause for cause in operation.causes if cause.deliberate]
    found = None
    while meant:
        found = meant[0]
        meant = [cause for cause in found.causes if cause.deliberate]
    if found is None:
        return ""
    kept = [tensor.name for tensor in found.inputs if tensor.broken and tensor.name]
    return kept[0] if kept else f"{found.name} in {found.module}"


def behind(operation: Operation) -> list[Operation]:
    """What the forward pass had left for an operation of the backward pass that was not finite already."""
    left = [cause for cause in operation.causes if cause.phase != operation.phase]
    return way(min(left, key=lambda cause: cause.index)) if left else []


def kind_of(operation: Operation, logits: Operation | None) -> Kind:
    """`logits` is what made them, where they are not finite. A module called head makes nothing else."""
    if operation.phase != "forward":
        return "gradient"
    if operation.module == LOSS:
        return "loss"
    return "logit" if operation is logits or operation.module.partition(".")[0] == "head" else "activation"


def words(place: Place, step: int) -> str:
    """In one phrase that follows "first non-finite: "."""
    if place.phase == "start":
        when = "as it was initialised" if step == 1 else "as the run went on with it"
        return f"parameter {_counted(place)} before step {step} began, {when}"
    if place.phase == "optimizer":
        numbers = ", ".join(f"{name} {value:.3g}" for name, value in place.scalars.items())
        return f"update of {_counted(place)} by {place.operation}, {numbers}"
    if place.phase == "clip":
        return f"norm of the {place.tensor}, whose entries are finite, {_size(place)}, but not their squares"
    of = f" ({place.node})" if place.node else ""
    part = f", micro-batch {place.micro_batch}" if place.micro_batch > 1 else ""
    part += f" (of rank {place.rank})" if place.rank else ""
    start = ", with the initial weights" if step == 1 else ""
    return f"{place.phase} of {place.module}, operation {place.operation}{of}, inputs {_size(place)}{part}{start}"


def _counted(place: Place) -> str:
    tensor = place.inputs[0]
    return f"{place.tensor} ({tensor.broken:,} of {math.prod(tensor.shape):,} entries)"


def _size(place: Place) -> str:
    """`up to 3.1e+38`, how small where that matters, and a number in the code where it does."""
    divides = place.operation.strip("_") in DIVIDING
    largest = max((tensor.largest for tensor in place.inputs), default=0.0)
    said = f"up to {largest:.3g}"
    if divides:
        said += f" and down to {min((tensor.smallest for tensor in place.inputs), default=0.0):.3g}"
    telling = [x for x in place.scalars.values() if not abs(x) <= largest or (divides and abs(x) < TINY)]
    said += "".join(f" and the number {value:.3g}" for value in telling)
    broken = [tensor.name for tensor in place.inputs if tensor.broken]
    if not broken:
        return said
    names = ", ".join(name for name in broken if name)
    infinities = f"the infinities of {place.mask}" if place.mask else "what is not finite"
    return f"{said} beside {infinities}{names and f' in {names}'}"
