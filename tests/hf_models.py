"""Tiny models of Hugging Face with every weight drawn at random: gains, biases and routers too."""

from __future__ import annotations

from typing import Any

import torch
from models import VOCAB

from modernllm.interop.huggingface import quietly, transformers

KEYS: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 48,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
HEAD = {"head_dim": 16}
CAPS = {"query_pre_attn_scalar": 16, "sliding_window": 4, "attn_logit_softcapping": 2.0}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    "q_lora_rank": 12,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 8,
    "qk_rope_head_dim": 4,
    "v_head_dim": 12,
    "num_key_value_heads": 4,
}
ROUTED = {
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "moe_intermediate_size": 16,
    "num_experts_per_tok": 4,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
}
GPT2_KEYS = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 48, "n_inner": 40}
NO_TOKENS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
DRY = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}

DESIGNS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {**GPT2_KEYS, **NO_TOKENS, **DRY}),
    "neox": ("gpt_neox", {**KEYS, "num_attention_heads": 2}),
    "llama": ("llama", KEYS),
    "mistral": ("mistral", {**KEYS, "sliding_window": 5}),
    "mixtral": ("mixtral", {**KEYS, **EXPERTS}),
    "qwen3": ("qwen3", {**KEYS, **HEAD}),
    "gemma2": (
        "gemma2",
        {**KEYS, **HEAD, "query_pre_attn_scalar": 16, "sliding_window": 4, "attn_logit_softcapping": 2.0},
    ),
    "olmo2": ("olmo2", KEYS),
    "deepseek": ("deepseek_v3", {**KEYS, **LATENT, **ROUTED}),
}
"""Of each arch: the model type and its keys."""

BESIDE: dict[str, tuple[str, dict[str, Any]]] = {
    "llama with biases": ("llama", {**KEYS, "attention_bias": True, "mlp_bias": True, "num_key_value_heads": 2}),
    "llama stretched linearly": (
        "llama",
        {**KEYS, "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 5e5}},
    ),
    "llama stretched by yarn": (
        "llama",
        {
            **KEYS,
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 4.0,
                "rope_theta": 1e4,
                "original_max_position_embeddings": 12,
            },
        },
    ),
    "mistral without a window": ("mistral", {**KEYS, "sliding_window": None, "num_key_value_heads": 2}),
    "neox in series": ("gpt_neox", {**KEYS, "use_parallel_residual": False}),
    "gemma": ("gemma", {**KEYS, **HEAD, "num_key_value_heads": 1}),
    "olmo": ("olmo", {**KEYS, "num_key_value_heads": 2}),
    "phi3": ("phi3", {**KEYS, "num_key_value_heads": 2}),
    "stablelm": ("stablelm", {**KEYS, "num_key_value_heads": 2}),
    "stablelm in parallel": ("stablelm", {**KEYS, "num_key_value_heads": 4, "use_parallel_residual": True}),
    "falcon": ("falcon", {**KEYS, "ffn_hidden_size": 40}),
    "falcon of many key heads": ("falcon", {**KEYS, "ffn_hidden_size": 40, "multi_query": False, "bias": True}),
    "falcon of 2023": ("falcon", {**KEYS, "ffn_hidden_size": 40, "new_decoder_architecture": True, "num_kv_heads": 2}),
    "deepseek without a rank of queries": (
        "deepseek_v3",
        {**KEYS, **LATENT, **ROUTED, "q_lora_rank": None, "rope_interleave": False},
    ),
}
"""What our groups express without an arch of its own, and further keys."""


def settings(kind: str, **keys: Any) -> Any:
    return transformers().AutoConfig.for_model(kind, **keys)


def drawn(kind: str, seed: int = 0, **keys: Any) -> Any:
    """The causal model of these keys in eval mode, every parameter N(0, 1/fan_in), gains around 1, biases not 0."""
    with quietly():
        model = transformers().AutoModelForCausalLM.from_config(settings(kind, **keys), attn_implementation="eager")
    draw = torch.Generator().manual_seed(seed)
    centre = 0.0 if kind.startswith("gemma") else 1.0  # Gemma keeps what a gain has above 1
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, parameter.shape[-1] ** -0.5, generator=draw)
            else:
                gain = name.endswith("weight")
                parameter.normal_(centre if gain else 0.0, 0.3, generator=draw)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):  # whole steps of 0.001
                buffer.copy_(torch.randint(-200, 200, buffer.shape, generator=draw) * 0.001)
    return model.eval()
