from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor


@runtime_checkable
class State(Protocol):
    """What one layer keeps between the parts of a generation."""

    def elements(self) -> int:
        """Numbers kept."""
        ...


class KeysAndValues:
    """The keys and values of up to `length` tokens, and how many there are."""

    def __init__(self, batch: int, n_kv_heads: int, length: int, head_dim: int, like: Tensor):
        self.keys = like.new_zeros(batch, n_kv_heads, length, head_dim)
        self.values = torch.zeros_like(self.keys)
        self.filled = 0

    def extend(
        self, k: Float[Tensor, "b g t k"], v: Float[Tensor, "b g t k"]
    ) -> tuple[Float[Tensor, "b g s k"], Float[Tensor, "b g s k"]]:
        """Append, and return all so far."""
        end = self.filled + k.shape[2]
        if end > self.keys.shape[2]:
            raise ValueError(f"the cache holds {self.keys.shape[2]} tokens, {end} are needed")
        self.keys[:, :, self.filled : end] = k
        self.values[:, :, self.filled : end] = v
        self.filled = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def elements(self) -> int:
        return self.keys.numel() + self.values.numel()
