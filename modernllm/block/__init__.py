"""Blocks: made with `block(sublayers, placement)`, used as `(stream, context) -> stream`.

`sublayers` maps a site ("attention", "feedforward") to its module; `placement(site)` makes the join of a site.
"""
