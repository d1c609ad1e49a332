"""How much memory the run has taken at most."""

from __future__ import annotations

import sys

import torch


def peak_megabytes(device: torch.device) -> float:
    """Of the device where it counts (CUDA), else of the whole process; NaN where nobody does."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e6
    try:
        import resource
    except ImportError:  # Windows
        return float("nan")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 1e6 if sys.platform == "darwin" else peak * 1024 / 1e6
