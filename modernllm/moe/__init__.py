"""Experts: made with `moe(expert, dim)`, where `expert()` makes one feed-forward (`expert(hidden=...)` one of another
width), used as `(x, context) -> x`.

Auxiliary losses go to `context.add_loss`, as sums over the counted tokens. A module that adapts itself has
`after_step(held)`, called after every optimizer step; `held` is 1 where the step was not taken. What it counts over the
tokens of a step for that, it names as `tallies()`: they are added up over the ranks. `shares` says which
share of the tokens a child sees (cost.py).
"""
