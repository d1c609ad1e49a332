"""Embeddings: made with `embedding(vocab_size, dim)`, used as `tokens -> x`; the table is `.weight`."""
