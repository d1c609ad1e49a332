"""The yardstick: a GPT-2 as one would write it by hand for one purpose, with no choices at all."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, dim: int, n_heads: int):
        super().__init__()
        self.n_heads = n_heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, dim = x.shape
        heads = (batch, length, self.n_heads, dim // self.n_heads)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(self.norm1(x)).split(dim, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, dim))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class MinimalGPT2(nn.Module):
    """tokens [b t] -> logits [b t v]"""

    def __init__(self, vocab_size: int, dim: int, n_layers: int, n_heads: int, context_length: int):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab_size, dim), nn.Embedding(context_length, dim)
        self.blocks = nn.Sequential(*(Block(dim, n_heads) for _ in range(n_layers)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, vocab_size, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.tokens(tokens) + self.positions(places))))
