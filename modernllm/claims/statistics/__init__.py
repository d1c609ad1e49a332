"""The arithmetic of a verdict: pure functions of numpy float64 arrays, seeds on the last axis.

Every function takes leading axes along, so that its error rates can be simulated with the code that judges.
"""
