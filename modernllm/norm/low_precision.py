"""Norms with their statistics in 16 bits: what norms in float32 are compared with under autocast."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from modernllm.norm.layernorm import LayerNorm
from modernllm.norm.rmsnorm import RMSNorm
from modernllm.precision import working_dtype


class LowRMSNorm(RMSNorm):
    """g * x / sqrt(mean(x^2) + eps), every step of it in 16 bits: in fp16 x^2 overflows beyond |x| = 255"""

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        low = x.to(working_dtype(x))
        with torch.autocast(x.device.type, enabled=False):
            y = low * (low.square().mean(-1, keepdim=True) + self.eps).rsqrt() * self.gain.to(low.dtype)
        return y.to(x.dtype)


class LowLayerNorm(LayerNorm):
    """g * (x - mean(x)) / sqrt(var(x) + eps) + b, every step of it in 16 bits"""

    def forward(self, x: Float[Tensor, "*b d"]) -> Float[Tensor, "*b d"]:
        low = x.to(working_dtype(x))
        with torch.autocast(x.device.type, enabled=False):
            centred = low - low.mean(-1, keepdim=True)
            scaled = centred * (centred.square().mean(-1, keepdim=True) + self.eps).rsqrt()
            y = scaled * self.gain.to(low.dtype) + self.bias.to(low.dtype)
        return y.to(x.dtype)
