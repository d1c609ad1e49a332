from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor, nn

from modernllm.placement import NormedPlacement, Placement, Sublayer
from modernllm.placement.none import NoNorm
from modernllm.placement.pre import PreNorm
from modernllm.quantities import Count, Natural


class NormedResidual(NormedPlacement):
    """norm(x) + f(norm(x))"""

    def forward(self, x: Tensor, f: Sublayer) -> Tensor:
        x = self.norm(x)
        return x + self.branch(f(x))


class Hybrid:
    """x + f(x) for attention, whose norms are those of qk_norm=qkv, and norm(x) + f(norm(x)) for the feed-forward

    (HybridNorm, Zhuo et al., 2025). What the paper calls Post-Norm is the norm that the residual goes through too.
    """

    def __new__(
        cls,
        norm: Callable[[], nn.Module],
        branch: Callable[[], nn.Module],
        n_layers: Count,
        layer: Natural,
        site: str,
    ) -> Placement:
        kinds = cls.kinds(layer)
        if site not in kinds:
            raise ValueError(
                "placement=hybrid joins attention and feed-forward each in its own way, block=parallel joins them at "
                "once: choose block=serial or another placement"
            )
        return kinds[site](norm, branch, n_layers, layer, site)

    @staticmethod
    def kinds(layer: int) -> Mapping[str, type[Placement]]:
        return {"attention": NoNorm, "feedforward": NormedResidual}


class HybridStar(Hybrid):
    """As hybrid, but x + f(norm(x)) for both in the first layer, whose input no norm has seen  (HybridNorm*)"""

    @staticmethod
    def kinds(layer: int) -> Mapping[str, type[Placement]]:
        return Hybrid.kinds(layer) if layer else {"attention": PreNorm, "feedforward": PreNorm}
