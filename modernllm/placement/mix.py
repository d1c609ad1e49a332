from __future__ import annotations

from collections.abc import Callable

from torch import nn

from modernllm.placement import Placement
from modernllm.placement.post import PostNorm
from modernllm.placement.pre import PreNorm
from modernllm.quantities import Count, Natural, Share


class MixNorm:
    """norm(x + f(x)) in the first `post` L layers, x + f(norm(x)) in the others  (Mix-LN, Li et al., 2025)

    Rounded up, so that a small model has such a layer at all.
    """

    def __new__(
        cls,
        norm: Callable[[], nn.Module],
        branch: Callable[[], nn.Module],
        n_layers: Count,
        layer: Natural,
        site: str,
        post: Share = 0.25,
    ) -> Placement:
        kind = PostNorm if layer < post * n_layers else PreNorm
        return kind(norm, branch, n_layers, layer, site)
