"""What is known to explain a difference beside the one that a claim is about: said, not refused."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from modernllm.claims.preflight.arm import STEPS, Arm
from modernllm.model import Decoder

SWAMPED = 10.0
"""Times as large as what it is added to, in RMS."""
UNMATCHED = {"parameters": 0.01, "FLOPs per token": 0.02}


def confounders(arms: Sequence[Arm], grids: Mapping[str, Sequence[float]]) -> list[str]:
    """`grids` are the learning rates that each arm is tuned over, if they are."""
    found = [warning for arm in arms for warning in scales(arm)]
    return [*found, *clipping(arms), *costs(arms), *tables(arms), *decay(arms, grids), *tuning(grids)]


def scales(arm: Arm) -> Iterator[str]:
    """Of the stream at the start: token rows, what positions add to them, what the first block adds to the sum."""
    model = arm.model().eval()
    if not isinstance(model, Decoder):
        return
    streams: list[Tensor] = []

    def embedded(module: nn.Module, given: Any, made: Tensor) -> None:
        streams.append(made)

    def first_block(module: nn.Module, given: Any, made: Any) -> None:
        streams.extend((_first(given), _first(made)))

    hooks = [
        model.embedding.register_forward_hook(embedded),
        model.blocks[0].register_forward_hook(first_block),
    ]
    with torch.no_grad():
        model(arm.fixed)
    for hook in hooks:
        hook.remove()
    tokens, stream, after = streams
    rows, positions, read, added = _rms(tokens), _rms(stream - tokens), _rms(stream), _rms(after - stream)
    if positions > SWAMPED * rows:
        yield f"{arm.name}: positions start {positions / rows:.0f} times as large as token rows (RMS {rows:.2g})"
    if added > SWAMPED * read:
        yield f"{arm.name}: the first block adds {added / read:.0f} times what it reads (RMS {read:.2g})"


def clipping(arms: Sequence[Arm]) -> Iterator[str]:
    """Clipping acts on some arms only."""
    counts = {
        arm.name: sum(norm > arm.config["trainer"]["clip"] for norm in arm.rehearsal.gradient_norms) for arm in arms
    }
    if len(set(counts.values())) > 1:
        yield f"gradients clipped in the first {STEPS} steps: {_each(counts)}"


def costs(arms: Sequence[Arm]) -> Iterator[str]:
    """Arms that cost unlike amounts: `matching` makes them equal."""
    measures = {
        "parameters": lambda arm: arm.prepared.identity["parameters"]["non_embedding"],
        "FLOPs per token": lambda arm: arm.prepared.identity["flops_per_token"]["algorithmic"],
    }
    for name, of in measures.items():
        values = {arm.name: of(arm) for arm in arms}
        if max(values.values()) > (1 + UNMATCHED[name]) * min(values.values()):
            what = "non-embedding parameters" if name == "parameters" else name
            yield f"{what} are not matched: {_each({key: f'{value:,.0f}' for key, value in values.items()})}"


def tables(arms: Sequence[Arm]) -> Iterator[str]:
    """Learned positions are parameters that the others have not."""
    sizes = {
        arm.name: sum(torch.Size(start.shape).numel() for start in arm.starts.values() if start.role == "position")
        for arm in arms
    }
    if len(set(sizes.values())) > 1:
        yield f"parameters of learned positions: {_each({key: f'{value:,}' for key, value in sizes.items()})}"


def decay(arms: Sequence[Arm], grids: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """A sweep over the learning rate is one over decay too, where that is coupled to it."""
    kinds = {arm.name: str(arm.config["optimizer"].get("decay", "its own")) for arm in arms}
    if len(set(kinds.values())) > 1:
        yield f"weight decay is not of one kind: {_each(kinds)}"
    coupled = [name for name, kind in kinds.items() if kind == "coupled" and len(grids.get(name, ())) > 1]
    if coupled:
        yield (
            f"weight decay is coupled to the learning rate, which is tuned ({', '.join(coupled)}); "
            "optimizer.decay=independent keeps it"
        )


def tuning(grids: Mapping[str, Sequence[float]]) -> Iterator[str]:
    """Unequal effort explains many a gain."""
    if len({tuple(sorted(grid)) for grid in grids.values()}) > 1:
        yield f"learning rates tried: {_each({name: len(grid) for name, grid in grids.items()})}, not the same ones"


def _first(streams: object) -> Tensor:
    return next(leaf for leaf in tree_leaves(streams) if isinstance(leaf, Tensor))


def _rms(x: Tensor) -> float:
    return float(x.float().square().mean().sqrt())


def _each(values: Mapping[str, object]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
