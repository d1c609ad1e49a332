"""What a step asks of its device, seen without one: operators that would keep a host waiting for CUDA."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

READS = {
    "_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "_unique2", "unique_dim",
    "unique_consecutive", "repeat_interleave", "bincount", "histc",
}  # fmt: skip
"""They give the host a number, or a shape, that only the device knows."""

CONSTANTS = {"lift_fresh"}
"""What `torch.tensor` leaves behind: numbers of the host, which a device gets by a copy that is waited for."""

INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
"""By a mask they look for its entries first."""


class Reads(TorchDispatchMode):
    """Counts them, by operator and type of number."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[tuple[str, torch.dtype]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in READS | CONSTANTS or (name in INDEXING and by_mask(args[1])):
            self.found[name, args[0].dtype] += 1
        return func(*args, **(kwargs or {}))


def by_mask(indices: list[Tensor | None]) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)
