from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from modernllm.placement import Placement
from modernllm.telemetry.layers import Layers, blocks
from modernllm.telemetry.observer import Series, first_tensor
from modernllm.telemetry.statistics import cosine, effective_rank, growth, massiveness, moments, pairwise_cosine, rms


class Stream:
    """The residual stream after each block: RMS, cos(x_l, x_{l+1}), effective rank, mean cosine of two tokens, largest
    entry over the median and kurtosis; `growth` over the depth; and RMS(branch) / RMS(stream) of each sublayer, with
    the stream as it comes in, before any norm or factor of its placement.

    A block's series stand for what it gives; the input of the first is `start`. Of ResiDual's two streams they are of
    the one that sublayers read.
    """

    def __init__(self) -> None:
        self.states: dict[str, Tensor] = {}
        self.repeated = False
        self.ratios: dict[str, float] = {}

    def attach(self, model: nn.Module, layers: Layers) -> Iterator[RemovableHandle]:
        members = blocks(model)
        for number, block in enumerate(members):
            if number == 0:
                yield block.register_forward_pre_hook(self._sees("start"), with_kwargs=True)
            yield block.register_forward_hook(self._gives(layers.name(number)))
        for path, module in model.named_modules():
            if isinstance(module, Placement):
                joins, _, site = path.rpartition(".")
                yield from self._meets(module, f"{layers.place(joins)}.{site}")

    def _sees(self, place: str) -> Any:
        def hook(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
            self._keep(place, (*args, *named.values()))

        return hook

    def _gives(self, place: str) -> Any:
        return lambda module, args, output: self._keep(place, output)

    def _keep(self, place: str, value: Any) -> None:
        x = first_tensor(value)
        if x is None or not x.is_floating_point() or x.ndim != 3:
            return
        if place in self.states or self.repeated:  # blocks that are called again and again have no depth of their own
            self.repeated = True
            self.states.clear()
        else:
            self.states[place] = x

    def _meets(self, join: Placement, place: str) -> Iterator[RemovableHandle]:
        sizes: list[float] = []

        def before(module: nn.Module, args: tuple[Any, ...]) -> None:
            x = first_tensor(args)
            sizes[:] = [] if x is None else [rms(x)]

        def branch(module: nn.Module, args: tuple[Any, ...], y: Tensor) -> None:
            if sizes and sizes[0]:
                self.ratios[place] = rms(y) / sizes[0]

        yield join.register_forward_pre_hook(before)
        yield join.branch.register_forward_hook(branch)

    def series(self) -> Series:
        first, *later = self.states.items() or [("", None)]
        found: Series = {"branch_ratio": self.ratios}
        if first[1] is None:
            return found
        states = {place: x.detach() for place, x in self.states.items()}
        shapes = {place: moments(x) for place, x in states.items()}
        found |= {
            "stream_rms": {place: rms(x) for place, x in states.items()},
            "stream_kurtosis": {place: shape["kurtosis"] for place, shape in shapes.items()},
            "stream_max": {place: shape["max"] for place, shape in shapes.items()},
            "stream_massive": {place: massiveness(x) for place, x in states.items()},
            "effective_rank": {place: effective_rank(x) for place, x in states.items()},
            "token_cosine": {place: pairwise_cosine(x) for place, x in states.items()},
        }
        places = list(states)
        found["stream_cosine"] = {after: cosine(states[before], states[after]) for before, after in pairwise(places)}
        if later:
            last = states[places[-1]]
            found["growth"] = {"activation": growth(states[places[0]], last, len(later))}
        return found
