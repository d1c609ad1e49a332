"""Branches: made with `branch(dim, n_layers, layer)`, used as `y -> y`; what multiplies a sublayer's output."""
