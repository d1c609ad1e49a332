"""Per-layer patterns: made with `layers(attention, feedforward, n_layers)`, used as `layer -> {site: sublayer}`.

`attention(layer)` and `feedforward(layer)` make what the groups chose; `attention(layer, kind)` and
`feedforward(layer, kind)` make another kind in its place.
"""
