from torch import Tensor

from modernllm.placement import NormedPlacement, Sublayer


class PostNorm(NormedPlacement):
    """norm(x + f(x))  (Vaswani et al., 2017)"""

    def forward(self, x: Tensor, f: Sublayer) -> Tensor:
        return self.norm(x + self.branch(f(x)))
