"""Blocks: made with `block(sublayers, placement)`, used as `(stream, context) -> stream`.

`sublayers` maps a site ("attention", "feedforward") to its module; `placement(site)` makes the join of a site.
`open(x)` makes the stream and `close(stream, readout)` what the head reads, as the first and the last join say.
"""
