from torch import Tensor

from modernllm.placement import NormedPlacement, Sublayer


class PreNorm(NormedPlacement):
    """x + f(norm(x))  (Baevski and Auli, 2019; GPT-2)"""

    def forward(self, x: Tensor, f: Sublayer) -> Tensor:
        return x + self.branch(f(self.norm(x)))
