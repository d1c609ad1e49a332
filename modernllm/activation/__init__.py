"""Feed-forwards: made with `activation(dim, hidden, bias, dropout)`, used as `(x, context) -> x`.

The nonlinearity is a submodule `act`, so that observers find it; `hidden=None` takes the class's own width.
"""
