"""Everything that a sublayer may need beside its input, made once per forward."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from modernllm.attention.cache import State
from modernllm.batch import IGNORED, Batch, refuse_numbers


@dataclass
class Context:
    """`positions` count from the start of a row's own text (one row stands for all where they agree); `mask` is
    True where a key may be seen, and None stands for plain causal attention, which needs no tensor.
    """

    positions: Int[Tensor, "#b t"]
    mask: Bool[Tensor, "#b 1 t s"] | None = None
    segments: Int[Tensor, "b t"] | None = None
    real: Bool[Tensor, "b t"] | None = None
    """False at padding; None where there is none."""
    targets: Int[Tensor, "b t"] | None = None
    """Of the loss; None without one."""
    memory: Tensor | None = None
    """What cross-attention reads."""
    states: list[State] | None = None
    """Per layer what generation keeps (keys and values so far)."""
    past: int = 0
    """How many tokens of every row that is."""
    length: int = 0
    """How many tokens the text may have in the end: a generation knows it from its start."""
    first_values: Tensor | None = None
    """Values of the first layer, for value residuals."""
    position: Any = None
    """What the position module prepared for this forward (RoPE's phases, ALiBi's bias)."""
    losses: dict[str, Tensor] = field(default_factory=dict)
    """Auxiliary losses, each a sum over the target tokens of the batch."""

    def __post_init__(self) -> None:
        refuse_numbers("Context.mask", self.mask)

    def add_loss(self, name: str, loss: Tensor) -> None:
        """Layers add up under one name."""
        self.losses[name] = self.losses.get(name, 0) + loss

    @property
    def key_positions(self) -> Int[Tensor, "#b s"]:
        """Positions of all keys: those that `states` holds, then the new ones."""
        if self.past == 0:
            return self.positions
        return torch.arange(self.past + self.positions.shape[1], device=self.positions.device)[None]

    @property
    def counted(self) -> Bool[Tensor, "b t"] | None:
        """True where the loss has a target, so that auxiliary losses are over the same tokens; None without a loss."""
        if self.targets is None:
            return None
        counted = self.targets != IGNORED
        return counted if self.real is None else counted & self.real

    def distances(self) -> Int[Tensor, "#b t s"]:
        """How many tokens of its text a query lies behind a key."""
        return self.positions[:, :, None] - self.key_positions[:, None, :]

    def seen(self) -> Bool[Tensor, "#b 1 t s"]:
        """The mask, also where plain causal attention needs none."""
        if self.mask is not None:
            return self.mask
        return (self.distances() >= 0)[:, None]

    @classmethod
    def of(cls, batch: Batch, states: list[State] | None = None, past: int = 0, length: int = 0) -> Context:
        """`past` tokens of every row were already seen and are kept in `states`; `length` they may become."""
        n_rows, n_tokens = batch.tokens.shape
        device = batch.tokens.device
        steps = torch.arange(past, past + n_tokens, device=device)
        if batch.mask is None and batch.segments is None:
            mask = None
            if past and n_tokens > 1:
                mask = (torch.arange(past + n_tokens, device=device) <= steps[:, None])[None, None]
            return cls(positions=steps[None], mask=mask, targets=batch.targets, states=states, past=past, length=length)
        if past:
            raise ValueError("padding and segments are not kept between the parts of a generation")
        allowed = (steps <= steps[:, None]).expand(n_rows, 1, n_tokens, n_tokens)
        real = torch.ones_like(batch.tokens) if batch.mask is None else batch.mask.long()
        positions = real.cumsum(1) - real  # real tokens before: padding does not shift a row's text
        if batch.mask is not None:
            allowed = allowed & batch.mask[:, None, None, :]
        if batch.segments is not None:
            allowed = allowed & (batch.segments[:, :, None] == batch.segments[:, None, :])[:, None]
            opens = torch.ones_like(batch.segments, dtype=torch.bool)
            opens[:, 1:] = batch.segments[:, 1:] != batch.segments[:, :-1]
            positions = positions - torch.where(opens, positions, 0).cummax(1).values
        return cls(
            positions=positions,
            mask=allowed,
            segments=batch.segments,
            real=batch.mask,
            targets=batch.targets,
            states=states,
            length=length,
        )
