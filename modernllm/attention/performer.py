from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.attention.recurrent import Memory, RecurrentAttention, shown
from modernllm.attention.recurrent_scan import reaches, scan
from modernllm.context import Context
from modernllm.init import named_generator
from modernllm.position import NoPosition
from modernllm.quantities import Count, Natural, Probability

UNSEEN = 1e30
"""The level before any key: finite, so that levels can be subtracted."""


class Performer(RecurrentAttention):
    """Linear attention with f(x)_m = exp(w_m . x - |x|^2 / 2), x being q or k over k^(1/4): the mean over random w of
    f(q) . f(k) is exp(q . k / sqrt(k)), so that many features are softmax attention  (FAVOR+; Choromanski et al., 2021)

    The w are orthogonal in blocks of head_dim, drawn once from `seed` and the layer, and not trained. exp(k) is kept
    in range by the largest exponent so far: the authors' largest of all tokens would let the future round the past.
    """

    name = "performer"
    directions: Tensor

    def __init__(
        self,
        dim: Count,
        n_heads: Count,
        n_kv_heads: Count | None,
        head_dim: Count,
        layer: Natural,
        position: NoPosition,
        bias: bool,
        dropout: Probability,
        qk_norm: Callable[..., nn.Module],
        features: Count = 64,
        seed: Natural = 0,
    ):
        super().__init__(dim, n_heads, n_kv_heads, head_dim, layer, position, bias, dropout, qk_norm)
        self.features, self.seed = features, seed
        self.register_buffer("directions", torch.empty(0), persistent=False)
        self.reset()

    def reset(self) -> None:
        """Draw the directions, the same every time, in float32."""
        generator = named_generator(self.seed, f"performer.{self.layer}")
        drawn = orthogonal_directions(self.features, self.head_dim, generator)
        self.directions = drawn.to(self.directions.device)

    def _apply(self, fn, recurse: bool = True):  # type: ignore[override]
        """What moves or casts the weights leaves the directions as they are drawn."""
        super()._apply(fn, recurse)
        self.reset()
        return self

    def mix(
        self,
        q: Float[Tensor, "b h t k"],
        k: Float[Tensor, "b h t k"],
        v: Float[Tensor, "b h t k"],
        gate: Float[Tensor, "b t _"],
        context: Context,
        memory: Memory,
    ) -> Float[Tensor, "b h t k"]:
        (position,), (matrix, start) = self._position, memory.parts
        q, k = (part * self.head_dim**-0.25 for part in position.rotate(q, k, context))
        directions = self.directions.to(q.dtype)
        of_q, of_k = q @ directions.mT, k @ directions.mT - k.square().sum(-1, keepdim=True) / 2
        of_k = shown(of_k, context, hidden=float("-inf"))
        # both scales are common to what stands above and below the line
        scale = of_k.detach().amax(-1).cummax(-1).values
        level = -torch.maximum(scale, -start)
        f_q, f_k = (of_q - of_q.detach().amax(-1, keepdim=True)).exp(), (of_k + level[..., None]).exp()
        v = torch.cat((v, torch.ones_like(v[..., :1])), -1)
        reach = reaches(level, start, context.segments)
        y, matrix = scan(f_q, f_k, lambda keys, old, reach: v[:, :, reach.part], matrix, reach)
        memory.parts = (matrix, level[..., -1:])
        return y[..., :-1] / y[..., -1:].clamp_min(torch.finfo(y.dtype).tiny)

    def flops(self, length: int) -> float:
        """With the features of q and k."""
        return 4.0 * self.n_heads * self.features * (2 * self.head_dim + 1)

    def state(self, batch: int, length: int) -> Memory:
        """f(k) v^T and f(k), summed over the tokens so far, and the level at which they are."""
        matrix = self.zeros(batch, self.n_heads, self.features, self.head_dim + 1)
        return Memory(matrix, self.zeros(batch, self.n_heads, 1) + UNSEEN)


def orthogonal_directions(n: int, size: int, generator: torch.Generator) -> Float[Tensor, "n size"]:
    """Each is N(0, I); within a block of `size` they are orthogonal."""
    blocks = []
    for _ in range(-(-n // size)):
        q, r = torch.linalg.qr(torch.randn(size, size, generator=generator, device="cpu"))
        blocks.append((q * r.diagonal().sign()).mT)  # without the signs q is not uniform
    lengths = torch.randn(n, size, generator=generator, device="cpu").norm(dim=1, keepdim=True)
    return torch.cat(blocks)[:n] * lengths
