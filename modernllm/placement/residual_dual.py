from __future__ import annotations

from torch import Tensor, nn

from modernllm.placement import NormedPlacement, Sublayer

Streams = tuple[Tensor, Tensor]


class ResiDual(NormedPlacement):
    """(x, d) -> (norm(x + f(x)), d + f(x)), read as x + readout(d)  (Xie et al., 2023)

    Post-Norm on x; d adds up what the sublayers write, as in Pre-Norm, and no gradient has to pass the norms of x.
    """

    def open(self, x: Tensor) -> Streams:
        return x, x

    def forward(self, stream: Streams, f: Sublayer) -> Streams:
        x, d = stream
        y = self.branch(f(x))
        return self.norm(x + y), d + y

    def close(self, stream: Streams, readout: nn.Module) -> Tensor:
        x, d = stream
        return x + readout(d)
