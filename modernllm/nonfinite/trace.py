"""An instrumented pass: every operator that made something that is not finite, with what went in and whence it came."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from modernllm.nonfinite.magnitude import Magnitude, is_broken, measurable
from modernllm.position import NoPosition

Phase = Literal["start", "forward", "backward", "clip", "optimizer"]
Memory = tuple[torch.device, int]
"""Where a tensor's memory is: views of one tensor share it."""

ASIDE = ("prepare", "embed")
"""What a position does for all layers, and by other names than `forward`."""
LOSS = "loss"
"""Stands for a module where the loss is computed, outside the model."""
CONSTANTS = (
    "masked_fill",
    "fill",
    "full",
    "scalar_tensor",
    "new_full",
    "full_like",
    "constant_pad_nd",
    "masked_scatter",
)
"""Operators that write a number that was asked for: one of -inf is a mask, no fault."""
OVERWRITTEN = ("copy_", "fill_", "zero_", "normal_", "uniform_", "bernoulli_", "exponential_", "random_")
"""Operators that never read the tensor that they write."""


@dataclass
class Operation:
    """One operator whose output is not finite; `causes` made those of its inputs that are not finite either."""

    index: int
    phase: Phase
    module: str
    name: str
    node: str
    """The operator of the forward pass that this one is the derivative of, as autograd calls it."""
    inputs: list[Magnitude]
    scalars: list[float]
    output: Magnitude
    causes: list[Operation] = field(repr=False)
    deliberate: bool
    """Whether the output has only entries of -inf that a mask put there."""


class Trace(TorchDispatchMode):
    """Used as a context, around forward and backward of `model` within `watching()`."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self.phase: Phase = "forward"
        self.operations: list[Operation] = []
        self.count = 0
        self.makers: dict[Memory, Operation] = {}
        named = [*model.named_parameters(), *model.named_buffers()]
        self.names = {memory(tensor): name for name, tensor in named if tensor.numel()}
        self.weights = {memory(parameter) for parameter in model.parameters()}
        self.logits: Operation | None = None
        self.inside = [LOSS]
        # autograd numbers its nodes as forward makes them: from which number on which module was at work
        self.numbers, self.workers = [0], [LOSS]

    # --- where we are

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Know which module is at work."""
        paths = {module: path or type(self.model).__name__ for path, module in self.model.named_modules()}

        def enter(module: nn.Module, args: Any) -> None:
            self.inside.append(paths[module])
            self.note()

        def leave(module: nn.Module, args: Any, made: Any) -> None:
            self.inside.pop()
            self.note()
            if module is self.model and isinstance(made, Tensor):
                self.logits = self.maker(made)

        handles = [module.register_forward_pre_hook(enter) for module in paths]
        handles += [module.register_forward_hook(leave, always_call=True) for module in paths]
        aside = [(m, name, path) for m, path in paths.items() if isinstance(m, NoPosition) for name in ASIDE]
        for module, name, path in aside:
            setattr(module, name, self.entered(path, getattr(module, name)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
            for module, name, _ in aside:
                delattr(module, name)

    def entered(self, path: str, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method, with its module known to be at work: no hook of torch sees it."""

        def call(*args: Any) -> Any:
            self.inside.append(path)
            self.note()
            try:
                return method(*args)
            finally:
                self.inside.pop()
                self.note()

        return call

    def note(self) -> None:
        self.numbers.append(torch.autograd._get_sequence_nr())
        self.workers.append(self.inside[-1])

    def worker(self, node: Any) -> str:
        """The module that a node of the backward pass belongs to; a weight's gradient to the weight's own."""
        if hasattr(node, "variable"):
            return self.names.get(memory(node.variable), LOSS).rpartition(".")[0] or type(self.model).__name__
        return self.workers[bisect_right(self.numbers, node._sequence_nr()) - 1]

    # --- what is done there

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.count += 1
        schema = func._schema
        name = schema.name.rpartition("::")[2]
        written = list(measurable(written_by(schema, args, kwargs)))
        given = [x for x in measurable((args, kwargs)) if not (name in OVERWRITTEN and any(x is w for w in written))]
        before = [self.measured(x) for x in given] if written else []  # what is written is read no more
        out = func(*args, **kwargs)
        if "empty" in name or name == "lift_fresh":  # what no one has written yet, and a constant, are nobody's doing
            for x in measurable(out):
                self.makers.pop(memory(x), None)
            return out
        sources = {memory(x) for x in measurable((args, kwargs))}
        made = [x for x in measurable(out) if memory(x) not in sources] + written
        broken = next((x for x in made if is_broken(x)), None)
        if broken is not None:
            numbers = [x for x in tree_leaves((args, kwargs)) if isinstance(x, float)]
            operation = self.operation(name, given, before or [self.measured(x) for x in given], numbers, broken)
            self.operations.append(operation)
        for x in made:
            if broken is not None and is_broken(x):
                self.makers[memory(x)] = self.operations[-1]
            elif memory(x) not in sources:  # new, where something else may have been
                self.makers.pop(memory(x), None)
        return out

    def measured(self, x: Tensor) -> Magnitude:
        return Magnitude.of(x, self.names.get(memory(x), ""))

    def operation(
        self, name: str, given: list[Tensor], inputs: list[Magnitude], scalars: list[float], broken: Tensor
    ) -> Operation:
        node = torch._C._current_autograd_node()
        output = Magnitude.of(broken)
        sick = [(x, magnitude) for x, magnitude in zip(given, inputs, strict=True) if magnitude.broken]
        causes = [self.makers[memory(x)] for x, _ in sick if memory(x) in self.makers]
        harmless = all(self.harmless(x, magnitude) for x, magnitude in sick)
        # a mask may be added or moved, as long as it stays what it is: scores of -inf, whose weight is 0
        masks = not output.nan and not output.positive
        placed = name.rstrip("_") in CONSTANTS
        return Operation(
            index=self.count,
            phase="backward" if node is not None else self.phase,
            module=self.inside[-1] if node is None else self.worker(node),
            name=name,
            node="" if node is None else node.name().removeprefix("torch::autograd::"),
            inputs=inputs,
            scalars=scalars,
            output=output,
            causes=causes,
            deliberate=masks and harmless and (placed or bool(sick)),
        )

    def harmless(self, x: Tensor, magnitude: Magnitude) -> bool:
        """Whether an input is infinite because a mask is, or is a mask that was there before."""
        if memory(x) in self.makers:
            return self.makers[memory(x)].deliberate
        return not magnitude.nan and not magnitude.positive and memory(x) not in self.weights

    def maker(self, x: Tensor) -> Operation | None:
        """What made `x` not finite."""
        return self.makers.get(memory(x))


def memory(x: Tensor) -> Memory:
    return x.device, x.untyped_storage().data_ptr()


def written_by(schema: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """The arguments that an operator writes."""
    if not schema.is_mutable:
        return []
    by_place = dict(zip((argument.name for argument in schema.arguments), args, strict=False)) | kwargs
    marked = [a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write]
    return [by_place[name] for name in marked if name in by_place]
