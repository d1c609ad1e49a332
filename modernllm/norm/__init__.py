"""Norms: made with `norm(dim)`, used as `x -> x` over the last axis."""
