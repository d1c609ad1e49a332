"""How tensors of Hugging Face's models are made of ours: rules over module names, each used both ways.

`*` is the number of a layer. Linear maps all, so that gradients go the same way as weights; only `plus`, what a gain
of ours has more than theirs (Gemma's 1 + w), is for weights alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from modernllm.interop.facts import Facts

Shapes = Mapping[str, torch.Size]


@dataclass(frozen=True)
class Tie:
    """A tensor of theirs, `join` of some of ours; `parts` of the tensor are ours again."""

    theirs: str
    ours: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    groups: int = 1
    transposed: bool = False
    axis: int = 0
    plus: float = 0.0
    step: float = 0.0

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """Theirs. `groups` runs of rows, in each run so many rows of every part, one part after the other."""
        if self.step:
            return parts[0].float() * self.step
        cut = [part.movedim(self.axis, 0).unflatten(0, (self.groups, -1)) for part in parts]
        whole = torch.cat(cut, 1).flatten(0, 1).movedim(0, self.axis)
        return whole.mT.contiguous() if self.transposed and whole.ndim > 1 else whole.contiguous()

    def split(self, whole: Tensor) -> list[Tensor]:
        """Ours."""
        if self.step:
            return [self._steps(whole)]
        whole = whole.mT if self.transposed and whole.ndim > 1 else whole
        rows = [shape[self.axis] // self.groups for shape in self.shapes]
        runs = whole.movedim(self.axis, 0).unflatten(0, (self.groups, -1))
        return [part.flatten(0, 1).movedim(0, self.axis).contiguous() for part in runs.split(rows, 1)]

    def _steps(self, bias: Tensor) -> Tensor:
        steps = (bias.double() / self.step).round()
        if ((steps * self.step - bias.double()).abs() > 0.01 * self.step).any():
            raise ValueError(
                f"{self.theirs}: ours is a whole number of steps of model.moe.rate={self.step:g}, and this is none; "
                "model.moe.rate=... sets a finer one"
            )
        return steps.long()


class Stack(Tie):
    """Experts one behind the other, each of so many parts."""

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        n = self.groups
        return torch.stack([torch.cat(list(parts[at : at + n]), 0) for at in range(0, len(parts), n)])

    def split(self, whole: Tensor) -> list[Tensor]:
        rows = [shape[0] for shape in self.shapes[: self.groups]]
        return [part.contiguous() for expert in whole for part in expert.split(rows, 0)]


@dataclass(frozen=True)
class Rule:
    """Module `theirs` has the parameters of our modules `ours`, interleaved in as many runs as the fact `groups` says.

    One to one, with no `groups`, is a module that also computes the same: what `diff_layers` compares.
    """

    theirs: str
    ours: tuple[str, ...]
    groups: str = ""
    transposed: bool = False
    plus: float = 0.0

    def ties(self, shapes: Shapes, facts: Facts) -> Iterator[Tie]:
        for theirs, ours in self.names(facts["model.n_layers"]):
            for kind in NAMES:
                names = tuple(f"{module}.{kind}" for module in ours)
                if all(name in shapes for name in names):
                    yield Tie(
                        f"{theirs}.{NAMES[kind]}",
                        names,
                        tuple(shapes[name] for name in names),
                        facts[self.groups] if self.groups else 1,
                        self.transposed,
                        plus=self.plus,
                    )

    def names(self, n_layers: int) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Their module and ours, for every layer where there is a `*`."""
        for layer in range(n_layers) if "*" in self.theirs else (0,):
            yield self.theirs.replace("*", str(layer)), tuple(name.replace("*", str(layer)) for name in self.ours)


NAMES = {"weight": "weight", "gain": "weight", "bias": "bias", "table": "weight"}
"""What a parameter of ours is called in their modules."""


@dataclass(frozen=True)
class Experts(Rule):
    """Their tensor `theirs` is a stack over experts, `ours` name parameters of one of them, `+` for its number."""

    def ties(self, shapes: Shapes, facts: Facts) -> Iterator[Tie]:
        for theirs, ours in self.names(facts["model.n_layers"]):
            numbered = [
                tuple(f"{name.replace('+', str(expert))}.weight" for name in ours)
                for expert in range(facts.get("model.moe.n_experts", 0))
            ]
            names = tuple(name for group in numbered for name in group)
            if names and all(name in shapes for name in names):
                yield Stack(theirs, names, tuple(shapes[name] for name in names), groups=len(ours))


@dataclass(frozen=True)
class Shared(Rule):
    """One wide expert of theirs is our shared experts side by side: rows, or columns where it writes (`axis`)."""

    axis: int = 0

    def ties(self, shapes: Shapes, facts: Facts) -> Iterator[Tie]:
        for theirs, (ours,) in self.names(facts["model.n_layers"]):
            n = facts.get("model.moe.shared", 0)
            names = tuple(f"{ours.replace('+', str(expert))}.weight" for expert in range(n))
            if names and all(name in shapes for name in names):
                yield Tie(f"{theirs}.weight", names, tuple(shapes[name] for name in names), axis=self.axis)


@dataclass(frozen=True)
class Steps(Rule):
    """Their bias of the choice of experts is our whole number of steps, times the rate."""

    def ties(self, shapes: Shapes, facts: Facts) -> Iterator[Tie]:
        for theirs, (ours,) in self.names(facts["model.n_layers"]):
            if ours in shapes:
                yield Tie(theirs, (ours,), (shapes[ours],), step=facts["model.moe.rate"])


def modules(ours: str, theirs: str, pairs: Mapping[str, str]) -> tuple[Rule, ...]:
    """One rule a pair, {theirs: ours}, below these two prefixes."""
    return tuple(Rule(f"{theirs}{name}", (f"{ours}{mine}",)) for name, mine in pairs.items())


def ties_of(rules: Iterable[Rule], shapes: Shapes, facts: Facts) -> list[Tie]:
    """For a model of ours with these tensors. ValueError names what no rule reaches."""
    ties = [tie for rule in rules for tie in rule.ties(shapes, facts)]
    lost = shapes.keys() - {name for tie in ties for name in tie.ours}
    if lost:
        raise ValueError(f"{min(lost)}: has no place in the other model")
    return ties


def ours_from(ties: Sequence[Tie], theirs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Our tensors from all of theirs. ValueError names one that is missing, that nothing takes, or of another shape."""
    missing = [tie.theirs for tie in ties if tie.theirs not in theirs]
    unused = sorted(theirs.keys() - {tie.theirs for tie in ties})
    if missing or unused:
        raise ValueError(
            f"{missing[0]}: is not in the other model" if missing else f"{unused[0]}: nothing of ours takes it"
        )
    found: dict[str, Tensor] = {}
    for tie in ties:
        for name, shape, part in zip(tie.ours, tie.shapes, tie.split(theirs[tie.theirs]), strict=True):
            if part.shape != shape:
                raise ValueError(f"{tie.theirs}: gives {name} {tuple(part.shape)}, ours is {tuple(shape)}")
            found[name] = part + tie.plus if tie.plus else part
    return found


def theirs_from(ties: Sequence[Tie], ours: Mapping[str, Tensor], gradients: bool = False) -> dict[str, Tensor]:
    """Their tensors from ours, or their gradients from ours where ours has them."""
    found = {}
    for tie in ties:
        if all(name in ours for name in tie.ours):
            whole = tie.join([ours[name] for name in tie.ours])
            found[tie.theirs] = whole - tie.plus if tie.plus and not gradients else whole
    return found
