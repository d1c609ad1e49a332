"""Heads: made with `head(dim, vocab_size, embedding)`, used as `x -> logits`."""
