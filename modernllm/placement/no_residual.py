from torch import Tensor

from modernllm.placement import NormedPlacement, Sublayer


class NoResidual(NormedPlacement):
    """f(norm(x)): nothing is carried past a sublayer"""

    def forward(self, x: Tensor, f: Sublayer) -> Tensor:
        return self.branch(f(self.norm(x))).to(x.dtype)  # under autocast the stream stays float32 here too
