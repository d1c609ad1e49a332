"""Configuration: compose it, check it, build from it; with `train.py` the only place that knows Hydra.

`compose` and `help` need no torch; `check` and `build` import the classes that the configuration names.
"""
