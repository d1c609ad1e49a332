"""The decoder: tokens in, logits out, everything in between chosen by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import cast

from jaxtyping import Float
from torch import Tensor, nn

from modernllm.attention.cache import State, Stateful
from modernllm.batch import Batch
from modernllm.block import Block
from modernllm.context import Context
from modernllm.position import NoPosition
from modernllm.quantities import Count, Probability


class Decoder(nn.Module):
    """head(readout(block_L(... block_1(embed(tokens)))))

    Every component arrives as a factory and its sizes are supplied here. `n_kv_heads=None` is the attention's own
    choice, `head_dim=None` is dim / n_heads, `hidden=None` is the feed-forward's own width.
    """

    def __init__(
        self,
        *,
        vocab_size: Count,
        context_length: Count,
        dim: Count,
        n_layers: Count,
        n_heads: Count,
        n_kv_heads: Count | None,
        head_dim: Count | None,
        hidden: Count | None,
        bias: bool,
        feedforward_bias: bool | None,
        dropout: Probability,
        norm: Callable[..., nn.Module],
        placement: Callable[..., nn.Module],
        branch: Callable[..., nn.Module],
        position: Callable[..., NoPosition],
        activation: Callable[..., nn.Module],
        attention: Callable[..., nn.Module],
        qk_norm: Callable[..., nn.Module],
        moe: Callable[..., nn.Module],
        block: Callable[..., nn.Module],
        layers: Callable[..., Callable[[int], dict[str, nn.Module]]],
        embedding: Callable[..., nn.Module],
        readout: Callable[..., nn.Module],
        head: Callable[..., nn.Module],
    ):
        super().__init__()
        if head_dim is None and dim % n_heads:
            raise ValueError(
                f"model.n_heads={n_heads} does not divide model.dim={dim}: "
                f"choose one of {[h for h in range(1, dim + 1) if dim % h == 0]}, or set model.head_dim"
            )
        head_dim = head_dim or dim // n_heads
        self.vocab_size, self.context_length = vocab_size, context_length
        self.embedding = embedding(vocab_size, dim)
        self.position = position(dim, n_heads, head_dim, context_length)
        self.dropout = nn.Dropout(dropout)
        feedforward_bias = bias if feedforward_bias is None else feedforward_bias
        make_norm, make_branch = partial(norm, dim), partial(branch, dim, n_layers)
        make_expert = partial(activation, dim, hidden=hidden, bias=feedforward_bias, dropout=dropout)

        def mix(layer: int, kind: Callable[..., nn.Module] = attention) -> nn.Module:
            return kind(
                dim,
                n_heads,
                n_kv_heads,
                head_dim,
                layer,
                self.position,
                bias=bias,
                dropout=dropout,
                qk_norm=partial(qk_norm, norm),
            )

        def feed(layer: int, kind: Callable[..., nn.Module] = moe) -> nn.Module:
            return kind(make_expert, dim)

        sublayers = layers(mix, feed, n_layers)
        self.blocks = nn.ModuleList(
            block(
                sublayers(layer),
                partial(placement, make_norm, partial(make_branch, layer), n_layers, layer),
            )
            for layer in range(n_layers)
        )
        self.readout = readout(make_norm)
        self.head = head(dim, vocab_size, self.embedding)

    def forward(self, batch: Batch, context: Context | None = None) -> Float[Tensor, "b t v"]:
        """Logits of the token after each position. `context` is made from the batch unless a generation or a
        trainer that wants the auxiliary losses brings its own.
        """
        context = context or Context.of(batch)
        self.position.prepare(context)
        x = self.dropout(self.position.embed(self.embedding(batch.tokens), context))
        first, last = cast(Block, self.blocks[0]), cast(Block, self.blocks[-1])
        stream = first.open(x)
        for block in self.blocks:
            stream = block(stream, context)
        return self.head(last.close(stream, self.readout))

    def states(self, batch: int, length: int) -> list[State]:
        """Empty caches, one a layer, for generating `batch` rows of up to `length` tokens."""
        attentions = (cast(Block, block).sublayers["attention"] for block in self.blocks)
        return [cast(Stateful, attention).state(batch, length) for attention in attentions]
