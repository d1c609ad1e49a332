"""Feed-forwards: made with `activation(dim, hidden, bias, dropout)`, used as `(x, context) -> x`.

The nonlinearity is a submodule `act`, so that observers find it; `hidden=None` takes the class's own width.

GELU and SiLU are smooth and not monotone: below zero both are negative, with minima of -0.170 (at -0.752) and -0.278
(at -1.278). They are 0.19 apart at most; x sigmoid(1.702 x) is within 0.021 of GELU, its tanh form within 0.0005.
"""
