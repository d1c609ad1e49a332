"""A step that went wrong, done again from its bundle: the lines that `scripts/replay.py` prints."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import torch

from modernllm import checkpoint
from modernllm.config.build import build_model
from modernllm.config.check import check
from modernllm.nonfinite import bundle
from modernllm.nonfinite.bundle import Bundle
from modernllm.nonfinite.examine import Finding, Step, examine
from modernllm.nonfinite.magnitude import Magnitude
from modernllm.nonfinite.place import Place, words
from modernllm.nonfinite.trace import Operation
from modernllm.objective import Objective
from modernllm.precision import is_deterministic, reproducible


@dataclass(frozen=True)
class Replayed:
    """What was found when a step was done again, `on` this device."""

    bundle: Bundle
    finding: Finding
    on: torch.device

    @property
    def reproduced(self) -> bool:
        """Whether the place is the recorded one, or one was found where none had been. What an optimizer left behind is
        there before the next step begins.
        """
        recorded, found = self.bundle.place, self.finding.place
        if recorded is None or found is None:
            return found is not None
        if recorded.phase == "optimizer":
            return found.phase == "start" and found.module == recorded.module
        return found.same(recorded)


def replay(path: Path, device: torch.device, allow_targets: Sequence[str] = ()) -> Replayed:
    """Do the step in a run's folder, or in a file from one, again. FileNotFoundError where there is none.

    `allow_targets` are classes outside this package that its configuration may name: its own list counts for nothing.
    """
    kept = bundle.load(path)
    check(kept.config | {"allow_targets": list(allow_targets)})
    model, _ = build_model(kept.config["model"])
    checkpoint.restore(model, kept.model)
    model.to(device)
    trainer = kept.config["trainer"]
    step = Step(Objective(model, trainer["z_loss"]), kept.batch.to(device), kept.rows, trainer["precision"], kept.began)
    try:
        with reproducible(is_deterministic(trainer["deterministic"], device)):
            return Replayed(kept, examine(step), device)
    except (RuntimeError, IndexError, TypeError) as error:  # no memory, an operator that is not there, foreign content
        said = str(error).partition("\n")[0]
        raise ValueError(f"{path} cannot be done again here: {type(error).__name__}: {said}") from None


def lines(replayed: Replayed) -> Iterator[str]:
    """What was recorded, what is found here, and the way from the first bad operation to the loss or a gradient."""
    kept, found = replayed.bundle, replayed.finding
    rows, length = kept.batch.tokens.shape
    precision = kept.config["trainer"]["precision"]
    yield f"step {kept.number} in {precision}: {rows} rows of {length} tokens, {kept.rows} at a time"
    there = f"on {kept.machine['device']}, torch {kept.machine['torch']}"
    yield f"recorded {there}: {words(kept.place, kept.number) if kept.place else 'no place was found'}"
    here = f"on {replayed.on.type}, torch {torch.__version__}"
    if found.place is None:
        size = f"loss {found.loss:.4g}, gradient norm {found.grad_norm:.4g}"
        yield f"does not reproduce {here}: the step is finite here, {size}"
        if kept.machine["device"] != replayed.on.type and kept.config["model"].get("dropout"):
            yield "dropout drops other entries on another kind of device"
        return
    if kept.place and kept.place.phase == "optimizer":
        yield f"the weights after that update, {here}: {_entry(found.place.inputs[0])}; the weights before it are gone"
    else:
        said = "the same" if replayed.reproduced else "not the same place"
        yield f"again {here}: {words(found.place, kept.number)}{f' ({said})' if kept.place else ''}"
    yield from _way(found, found.place)


def _way(found: Finding, place: Place) -> Iterator[str]:
    if found.left:
        yield "what forward had left there:"
        yield from _modules(found.left)
    if found.way:
        end = "the loss" if found.way[-1].phase == "forward" else "a gradient"
        yield f"from there to {end}:"
        yield from _modules(found.way)
        yield f"  {'loss' if end == 'the loss' else place.tensor}: not finite"


def _modules(operations: Sequence[Operation]) -> Iterator[str]:
    """Two lines at most for each module in turn: its first operation with what went in, its last."""
    for (phase, module), group in groupby(operations, key=lambda operation: (operation.phase, operation.module)):
        members = list(group)
        yield f"  {phase} of {module}"
        shown = members if len(members) < 3 else [members[0], members[-1]]
        for operation in shown:
            if operation is members[-1] and len(members) > 2:
                yield f"    ... {len(members) - 2} operations between"
            yield f"    {operation.name}{operation.node and f' ({operation.node})'}: {_went_in(operation)}"


def _went_in(operation: Operation) -> str:
    given = ", ".join([*map(_entry, operation.inputs), *(f"{number:.3g}" for number in operation.scalars)])
    return f"{given or 'no tensor'} -> {_entry(operation.output)}"


def _entry(tensor: Magnitude) -> str:
    """`weight float32[64, 172] up to 3.1e+38`, and how many entries are not finite."""
    counts = {"nan": tensor.nan, "+inf": tensor.positive, "-inf": tensor.negative}
    said = [] if tensor.broken == math.prod(tensor.shape) else [f"up to {tensor.largest:.3g}"]
    said += [f"{count:,} {name}" for name, count in counts.items() if count]
    return f"{tensor.name} {tensor.dtype}{tensor.shape} {', '.join(said)}".lstrip()
