from __future__ import annotations

from modernllm.branch.constant import Constant
from modernllm.quantities import Count, Natural


class Depth(Constant):
    """y / sqrt(2 L): GPT-2's factor for 2 L sublayers, in the forward pass in place of the initialisation

    Unlike there it scales the gradients of the sublayer too.
    """

    def __init__(self, dim: Count, n_layers: Count, layer: Natural):
        super().__init__(dim, n_layers, layer, (2 * n_layers) ** -0.5)
