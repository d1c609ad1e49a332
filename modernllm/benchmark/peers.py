"""What a step is compared with: models of other hands, and our own without the trainer around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modernllm.batch import Batch
from modernllm.benchmark.minimal_gpt2 import MinimalGPT2
from modernllm.precision import Precision, autocast

Logits = Callable[[Tensor], Tensor]


def plain_loop(
    model: nn.Module, logits: Logits, batch: Callable[[int], Batch], precision: Precision
) -> Callable[[int], None]:
    """`loop(n)` trains for n steps as a tutorial would: forward, backward, clip, AdamW, and the loss read back."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def loop(n_steps: int) -> None:
        model.train()
        for step in range(n_steps):
            data = batch(step)
            assert data.targets is not None
            with autocast(precision, torch.device("cpu")):
                loss = F.cross_entropy(logits(data.tokens).flatten(0, 1).float(), data.targets.flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            loss.item()

    return loop


def ours(model: nn.Module) -> tuple[nn.Module, Logits]:
    return model, lambda tokens: model(Batch(tokens))


def minimal_gpt2(vocab: int, dim: int, layers: int, heads: int, length: int) -> tuple[nn.Module, Logits]:
    model = MinimalGPT2(vocab, dim, layers, heads, length)
    return model, model


def hf_gpt2(vocab: int, dim: int, layers: int, heads: int, length: int) -> tuple[nn.Module, Logits]:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=vocab,
        n_embd=dim,
        n_layer=layers,
        n_head=heads,
        n_positions=length,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
        use_cache=False,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = GPT2LMHeadModel(config)
    return model, lambda tokens: model(tokens).logits


def hf_llama(vocab: int, dim: int, layers: int, heads: int, length: int) -> tuple[nn.Module, Logits]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=vocab,
        hidden_size=dim,
        intermediate_size=8 * round(dim / 3),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=length,
        use_cache=False,
    )
    model = LlamaForCausalLM(config)
    return model, lambda tokens: model(tokens).logits


def x_transformers(vocab: int, dim: int, layers: int, heads: int, length: int) -> tuple[nn.Module, Logits]:
    from x_transformers import Decoder as XDecoder
    from x_transformers import TransformerWrapper

    decoder = XDecoder(dim=dim, depth=layers, heads=heads, attn_dim_head=dim // heads, attn_flash=True)
    model = TransformerWrapper(num_tokens=vocab, max_seq_len=length, attn_layers=decoder)
    return model, model


class Peer(NamedTuple):
    """A model of other hands, and the choices that make ours the same design: `arch=gpt2` beside a GPT-2."""

    make: Callable[[int, int, int, int, int], tuple[nn.Module, Logits]]
    design: tuple[str, ...]


GPT2 = ("arch=gpt2", "head=untied")
X_TRANSFORMERS = (
    "norm=layernorm_nobias",
    "position=learned",
    "activation=gelu",
    "model.feedforward_bias=true",
)

PEERS = {
    "hand-written GPT-2": Peer(minimal_gpt2, GPT2),
    "Hugging Face GPT-2": Peer(hf_gpt2, GPT2),
    "Hugging Face LLaMA": Peer(hf_llama, ("arch=llama",)),
    "x-transformers": Peer(x_transformers, X_TRANSFORMERS),
}
