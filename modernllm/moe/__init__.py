"""Experts: made with `moe(expert, dim)`, where `expert()` makes one feed-forward, used as `(x, context) -> x`."""
