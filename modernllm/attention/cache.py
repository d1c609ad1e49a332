from __future__ import annotations

from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor


class State:
    """What one layer keeps between the parts of a generation."""

    def tensors(self) -> tuple[Tensor, ...]:
        """All that is kept."""
        raise NotImplementedError

    def elements(self) -> int:
        """How many numbers."""
        return sum(tensor.numel() for tensor in self.tensors())

    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors())


class Stateful(Protocol):
    """What can generate."""

    def state(self, batch: int, length: int) -> State: ...


class Kept(State):
    """Vectors of up to `length` tokens in the order in which they came, and how many there are."""

    def __init__(self, batch: int, heads: int, length: int, size: int, like: Tensor):
        self.rows = like.new_zeros(batch, heads, length, size)
        self.filled = 0

    def extend(self, new: Float[Tensor, "b g t k"]) -> Float[Tensor, "b g s k"]:
        """Append, and return all so far."""
        end = self.filled + new.shape[2]
        if end > self.rows.shape[2]:
            raise ValueError(f"the cache holds {self.rows.shape[2]} tokens, {end} are needed")
        self.rows[:, :, self.filled : end] = new
        self.filled = end
        return self.rows[:, :, :end]

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.rows,)


class KeptWindow(Kept):
    """Vectors of the last `length` tokens."""

    def extend(self, new: Float[Tensor, "b g t k"]) -> Float[Tensor, "b g s k"]:
        """Append, and return those that any of the new ones may need: one less than `length` before the first."""
        size = self.rows.shape[2]
        recent = torch.cat((self.rows[:, :, size - self.filled :], new), 2)
        self.filled = min(size, recent.shape[2])
        self.rows[:, :, size - self.filled :] = recent[:, :, -self.filled :]
        return recent[:, :, -(size - 1 + new.shape[2]) :]


class KeysAndValues(State):
    """What softmax attention keeps; `kept` is the class of what holds it."""

    def __init__(self, batch: int, n_kv_heads: int, length: int, head_dim: int, like: Tensor, kept: type[Kept] = Kept):
        self.keys, self.values = (kept(batch, n_kv_heads, length, head_dim, like) for _ in range(2))

    def extend(
        self, k: Float[Tensor, "b g t k"], v: Float[Tensor, "b g t k"]
    ) -> tuple[Float[Tensor, "b g s k"], Float[Tensor, "b g s k"]]:
        """Append, and return all that a new query may see."""
        return self.keys.extend(k), self.values.extend(v)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.keys.rows, self.values.rows
