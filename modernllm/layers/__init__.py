"""Per-layer patterns: made with `layers(attention, feedforward, n_layers)`, used as `layer -> {site: sublayer}`."""
