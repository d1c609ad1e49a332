"""Attentions: made with `attention(dim, n_heads, n_kv_heads, head_dim, layer, position, bias, dropout, qk_norm)`,
used as `(x, context) -> x`.

Projections q, k and v are separate; all scores go through one `Attend`; `.state(batch, length)` makes the cache, and
`.flops(length)` is what a token costs beside the projections (cost.py).
Those with a softmax take `softcap`, `sinks` and `scale` too (softmax.py).
"""
