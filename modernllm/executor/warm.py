"""What every run needs, imported once in the fork server that all runs are forked from."""

import gc

import modernllm.experiment  # noqa: F401

gc.collect()
gc.freeze()  # the collector writes to what it visits: pages that it leaves alone stay shared
