from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor, nn

from modernllm.family import package
from modernllm.quantities import Count


class HuggingFaceLlama(nn.Module):
    """LlamaForCausalLM of the package transformers, made from a config of the asked size"""

    def __init__(self, vocab_size: Count, context_length: Count, dim: Count, n_layers: Count, n_heads: Count):
        super().__init__()
        transformers = package("transformers", "hf_llama")
        config = transformers.LlamaConfig(
            vocab_size=vocab_size,
            hidden_size=dim,
            intermediate_size=max(8, 8 * round(dim / 3)),
            num_hidden_layers=n_layers,
            num_attention_heads=n_heads,
            max_position_embeddings=context_length,
            bos_token_id=None,
            eos_token_id=None,
            use_cache=False,
        )
        self.llama = transformers.LlamaForCausalLM(config)

    def forward(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t v"]:
        return self.llama(tokens).logits
