"""Norms of queries and keys: made with `qk_norm(norm, n_heads, head_dim)`, used as `[b h t k] -> [b h t k]`.

With `values=True` what is made is for the values: the identity, unless the choice norms them too.
"""
