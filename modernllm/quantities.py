"""Ranges for constructor signatures: the signature is the schema that configuration is checked against."""

from typing import Annotated

from annotated_types import Ge, Gt, Le, Lt

Count = Annotated[int, Ge(1)]
"""A whole number of things, at least one."""
Natural = Annotated[int, Ge(0)]
"""A whole number, zero allowed."""
Positive = Annotated[float, Gt(0), Lt(float("inf"))]
"""A finite number above zero."""
NonNegative = Annotated[float, Ge(0), Lt(float("inf"))]
"""A finite number, zero allowed."""
Factor = Annotated[float, Ge(1), Lt(float("inf"))]
"""A finite number by which something grows: 1 leaves it."""
Share = Annotated[float, Ge(0), Le(1)]
"""From none (0) to all (1)."""
Probability = Annotated[float, Ge(0), Lt(1)]
"""In [0, 1), as a dropout rate."""
