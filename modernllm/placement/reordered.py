from torch import Tensor

from modernllm.placement import NormedPlacement, Sublayer


class Reordered(NormedPlacement):
    """x + norm(f(x))  (Swin v2, Liu et al., 2022; OLMo 2, where it comes with qk_norm=width)"""

    def forward(self, x: Tensor, f: Sublayer) -> Tensor:
        return x + self.branch(self.norm(f(x)))
