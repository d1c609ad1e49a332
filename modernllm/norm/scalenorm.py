from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.linear import Role, Start
from modernllm.quantities import Positive


class ScaleNorm(nn.Module):
    """g * x / |x|, one g that starts at sqrt(d)  (Nguyen and Salazar, 2019)

    As RMSNorm with the same gain g / sqrt(d) in every entry; eps is of the mean square, as there.
    """

    def __init__(self, dim: int, eps: Positive = 1e-6):
        super().__init__()
        self.dim, self.eps = dim, eps
        self.scale = nn.Parameter(dim**0.5 * torch.ones(1))
        self.roles: dict[str, Role] = {"scale": "scale"}
        self.starts = {"scale": Start(mean=dim**0.5)}

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        gain = (self.scale * self.dim**-0.5).to(x.dtype).expand(self.dim)
        return F.rms_norm(x, (self.dim,), gain, self.eps)
