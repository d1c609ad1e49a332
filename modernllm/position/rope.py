from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Annotated, Literal

import torch
from annotated_types import Gt, Le
from jaxtyping import Float
from torch import Tensor

from modernllm.context import Context
from modernllm.position import NoPosition
from modernllm.position.pairs import polar, product
from modernllm.quantities import Count, Positive

Fraction = Annotated[float, Gt(0), Le(1)]
Layout = Literal["interleaved", "half"]


class RoPE(NoPosition):
    """Each pair i of q and k turned by p base^(-2i/k), so that q_m . k_n depends on m - n  (Su et al., 2021)

    A pair is (x_2i, x_2i+1) in the interleaved layout of the paper, (x_i, x_i+k/2) in the half layout of GPT-NeoX and
    LLaMA: the same but for the order of the dimensions. With a `fraction` below 1 only the first dimensions of a head
    are turned, and k counts those. Weights say for which layout they are, and do not load into the other: they would
    fit, and only position 0 would be right.
    """

    def __init__(
        self,
        dim: Count,
        n_heads: Count,
        head_dim: Count,
        context_length: Count,
        base: Positive = 10_000.0,
        fraction: Fraction = 1.0,
        layout: Layout = "interleaved",
    ):
        super().__init__(dim, n_heads, head_dim, context_length)
        self.base, self.fraction, self.layout, self.magnitude = base, fraction, layout, 1.0
        self.factors, self.turn_pairs = LAYOUTS[layout]
        self.register_load_state_dict_pre_hook(_unmarked_is_ours)
        self.fit(head_dim)

    def fit(self, head_dim: int, key: str = "model.head_dim") -> None:
        """All that follows from the size of a head, which `key` sets."""
        self.n_turned = turned_dims(head_dim, self.fraction, key)
        whole = self.n_turned == head_dim
        self.turn = self.turn_pairs if whole else partial(turn_first, self.n_turned, self.turn_pairs)

    def get_extra_state(self) -> Tensor:
        """The name of the layout in a state dict, as bytes, which safetensors keeps too."""
        return torch.tensor(list(self.layout.encode()), dtype=torch.uint8)

    def set_extra_state(self, state: Tensor) -> None:
        """ValueError if the weights are of the other layout."""
        if (layout := bytes(state.tolist()).decode()) != self.layout:
            raise ValueError(
                f"model.position.layout={self.layout}: these weights are of layout={layout}, of which queries and keys "
                f"would be turned in the wrong pairs; load them with model.position.layout={layout}"
            )

    def sized(self, head_dim: int) -> RoPE:
        other = copy(self)
        other.fit(head_dim, "model.attention.rope")
        return other

    def frequencies(self, context: Context) -> Float[Tensor, "#b 1 1 pairs"]:
        """Radians a position. Float32 whatever the model's dtype: bf16 keeps 513 of 1024 positions apart."""
        return self.powers(self.base, context)

    def powers(self, base: float | Tensor, context: Context) -> Float[Tensor, "#b 1 1 pairs"]:
        """base^(-2i/k)"""
        even = torch.arange(0, self.n_turned, 2, device=context.positions.device)
        return base ** (-even[None, None, None] / self.n_turned)

    def prepare(self, context: Context) -> None:
        context.position = self.turns(context)

    def turns(self, context: Context) -> Tensor:
        """The complex numbers to multiply pairs with, magnitude exp(i phase), as the layout wants them."""
        return self.factors(polar(self.magnitude, context.positions[:, None, :, None] * self.frequencies(context)))

    def rotate(
        self, q: Float[Tensor, "b h t k"], k: Float[Tensor, "b g t k"], context: Context
    ) -> tuple[Float[Tensor, "b h t k"], Float[Tensor, "b g t k"]]:
        return self.turn(q, context.position), self.turn(k, context.position)


def _unmarked_is_ours(rope: RoPE, weights: dict[str, Tensor], prefix: str, *_: object) -> None:
    """Weights of other hands say nothing: whoever brings them has seen to their layout."""
    weights.setdefault(f"{prefix}_extra_state", rope.get_extra_state())


def turned_dims(head_dim: int, fraction: float, key: str) -> int:
    """How many dimensions of a head are turned: whole pairs."""
    turned = fraction * head_dim
    if turned < 1.99 or abs(turned - 2 * round(turned / 2)) > 0.01:
        part = f"model.position.fraction={fraction:g} of {key}={head_dim} is {turned:g}, no even number"
        raise ValueError(
            f"position=rope turns pairs: {f'{key}={head_dim} is odd' if fraction == 1 else part}; choose an even "
            f"{key} (model.head_dim is model.dim / model.n_heads unless set), a model.position.fraction that gives "
            "an even number, or another position encoding"
        )
    return round(turned)


Turn = Callable[[Tensor, Tensor], Tensor]


def turn_interleaved(x: Float[Tensor, "b h t k"], turns: Float[Tensor, "#b 1 t pairs 2"]) -> Tensor:
    """Neighbours are a pair: one product on the memory as it lies, the fastest on a CPU."""
    return product(_wide(x).view(*x.shape[:-1], -1, 2), turns).flatten(-2).to(x.dtype)


def woven(turns: Float[Tensor, "#b 1 t pairs 2"]) -> Float[Tensor, "#b 1 t pairs 2"]:
    """As they are."""
    return turns


def in_halves(turns: Float[Tensor, "#b 1 t pairs 2"]) -> Float[Tensor, "#parts #b 1 t k"]:
    """Real and imaginary parts, each for both halves of a head."""
    return turns.movedim(-1, 0).tile(2)


def turn_half(x: Float[Tensor, "b h t k"], parts: Float[Tensor, "#parts #b 1 t k"]) -> Tensor:
    """The first half of the dimensions are the real parts, the second the imaginary ones; halves are not woven into
    pairs and back, which takes twice as long.
    """
    wide, (real, imaginary) = _wide(x), parts
    first, second = wide.chunk(2, -1)
    return (wide * real + torch.cat((-second, first), -1) * imaginary).to(x.dtype)


def turn_first(n_turned: int, turn: Turn, x: Float[Tensor, "b h t k"], turns: Tensor) -> Tensor:
    """The first dimensions of each head are turned, the others kept."""
    return torch.cat((turn(x[..., :n_turned], turns), x[..., n_turned:]), -1)


def _wide(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


LAYOUTS: dict[Layout, tuple[Callable[[Tensor], Tensor], Turn]] = {
    "interleaved": (woven, turn_interleaved),
    "half": (in_halves, turn_half),
}
"""What is made of the complex numbers, and what turns with that."""
