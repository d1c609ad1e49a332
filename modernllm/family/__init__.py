"""Families: made with `family(vocab_size, context_length, dim, n_layers, n_heads, ...)`, used as `(batch) -> logits`.

The decoder of our own parts is `modernllm.model.Decoder`; here are models of other hands, trained, evaluated and
compared like ours.
"""
