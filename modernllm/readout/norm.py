from collections.abc import Callable

from torch import Tensor, nn


class FinalNorm(nn.Module):
    """norm(x)  (GPT-2): an un-normed stream grows with depth, the head wants one scale"""

    def __init__(self, norm: Callable[[], nn.Module]):
        super().__init__()
        self.norm = norm()

    def forward(self, stream: Tensor) -> Tensor:
        return self.norm(stream)
