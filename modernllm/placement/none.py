from torch import Tensor

from modernllm.placement import Placement, Sublayer


class NoNorm(Placement):
    """x + f(x): a residual connection and no norm at all"""

    def forward(self, x: Tensor, f: Sublayer) -> Tensor:
        return x + self.branch(f(x))
