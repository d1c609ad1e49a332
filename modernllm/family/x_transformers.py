from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor, nn

from modernllm.family import package
from modernllm.quantities import Count


class XTransformersDecoder(nn.Module):
    """A decoder of the package x-transformers with its rotary positions, RMSNorm and SwiGLU switched on"""

    def __init__(self, vocab_size: Count, context_length: Count, dim: Count, n_layers: Count, n_heads: Count):
        super().__init__()
        x_transformers = package("x_transformers", "x_transformers")
        layers = x_transformers.Decoder(
            dim=dim,
            depth=n_layers,
            heads=n_heads,
            attn_dim_head=dim // n_heads,
            attn_flash=True,
            rotary_pos_emb=True,
            use_rmsnorm=True,
            ff_swish=True,
            ff_glu=True,
            ff_mult=8 / 3,
            ff_no_bias=True,
        )
        self.wrapper = x_transformers.TransformerWrapper(
            num_tokens=vocab_size, max_seq_len=context_length, attn_layers=layers, use_abs_pos_emb=False
        )

    def forward(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t v"]:
        return self.wrapper(tokens)
