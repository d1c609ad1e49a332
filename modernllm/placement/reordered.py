from torch import Tensor

from modernllm.placement import NormedPlacement, Sublayer


class Reordered(NormedPlacement):
    """x + norm(f(x))  (Swin v2, Liu et al., 2022, with attention by cosine; OLMo 2, with qk_norm=width)"""

    def forward(self, x: Tensor, f: Sublayer) -> Tensor:
        return x + self.branch(self.norm(f(x)))
