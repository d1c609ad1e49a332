"""Data parallelism over the ranks of one run: what they have in common, added up; `OneProcess` has nobody to ask.

Every rank does the same steps in the same order on its own share of each global batch. Gradients are added up by one
explicit all-reduce after the last micro-batch, and not by DistributedDataParallel while backward is at work: that
reducer must know which parameters a step will use, which experts, cuts and models of other hands do not tell, and
hangs or leaves gradients out where it is wrong; here nothing is hooked, wrapped or traced, and a compiled forward and
a bare one are reduced alike. The price is that communication and backward do not overlap.

No rank is given up for being late, since the first one writes checkpoints and looks inside the model while the others
wait: the group's timeout is DAYS. One that is gone is noticed by its closed connections, and by whoever started it.
"""

from __future__ import annotations

import gc
import hashlib
import os
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.batch import Batch
from modernllm.config.errors import ConfigError

DAYS = timedelta(days=30)
LOOPBACK = ("lo", "lo0")
HERE = ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"))


class Lost(RuntimeError):
    """Another rank is gone, or its connection."""


class OneProcess:
    """The only rank: all there is, is here."""

    rank, size = 0, 1

    def share(self, batch: Batch) -> Batch:
        """The rows of a global batch that this rank computes."""
        return batch

    def deal(self, batches: list[Batch]) -> list[Batch]:
        """Those of a list that this rank evaluates."""
        return batches

    def join(
        self, parameters: Sequence[Tensor], loss: Float[Tensor, ""], tallies: Sequence[Callable[[], list[Tensor]]]
    ) -> None:
        """Add up over the ranks, in place: gradients, the loss, and what modules have counted."""

    def total(self, *values: float | int) -> tuple[float | int, ...]:
        """Each added up over the ranks, in float64."""
        return values

    def largest(self, value: int) -> int:
        """Of all ranks, below 256: what is decided by a clock or a signal is decided alike, at the same step."""
        return value

    def gather(self, value: Any) -> list[Any]:
        """The value of every rank, in their order, on all of them."""
        return [value]

    def same(self, what: str, value: Any) -> None:
        """RuntimeError, on all ranks, where one of them has another value."""

    def same_weights(self, model: nn.Module) -> None:
        """RuntimeError, naming the tensor, where a rank has drifted from the others."""


class Ranks(OneProcess):
    """One of several processes in torch's default group: gloo between CPUs, nccl between CUDA devices, and gloo beside
    it for what the host wants to know. Made with `joined(rank, size, meeting)`.
    """

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size

    def share(self, batch: Batch) -> Batch:
        return batch.share(self.rank, self.size)

    def deal(self, batches: list[Batch]) -> list[Batch]:
        return batches[self.rank :: self.size]

    def join(
        self, parameters: Sequence[Tensor], loss: Float[Tensor, ""], tallies: Sequence[Callable[[], list[Tensor]]]
    ) -> None:
        """A parameter that some rank has a gradient for has one of zeros elsewhere; one that no rank has used has none,
        as in one process.
        """
        used = self._largest([parameter.grad is not None for parameter in parameters])
        for parameter, somewhere in zip(parameters, used, strict=True):
            if somewhere and parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        with torch.no_grad():
            self._add_up([loss, *gradients, *(tensor for tally in tallies for tensor in tally())])

    def total(self, *values: float | int) -> tuple[float | int, ...]:
        kept = torch.tensor(values, dtype=torch.float64)
        self._add_up([kept])
        return tuple(kept.tolist())

    def largest(self, value: int) -> int:
        return self._largest([value])[0]

    def gather(self, value: Any) -> list[Any]:
        import torch.distributed as dist

        found: list[Any] = [None] * self.size
        with losing():
            dist.all_gather_object(found, value)
        return found

    def same(self, what: str, value: Any) -> None:
        for rank, other in enumerate(self.gather(value)):
            if other != value:
                raise RuntimeError(f"rank {rank} has another {what} than rank {self.rank}: {other} and not {value}")

    def same_weights(self, model: nn.Module) -> None:
        mine = fingerprints(model)
        for rank, other in enumerate(self.gather(mine)):
            if different := [name for name in mine if other.get(name) != mine[name]]:
                raise RuntimeError(
                    f"{different[0]} is not the same on ranks {min(rank, self.rank)} and {max(rank, self.rank)}: what "
                    "a module changes by itself should follow from the tallies of all ranks; trainer.ranks=1 needs none"
                )

    def _largest(self, values: Sequence[int]) -> list[int]:
        """Of each over the ranks, known to the host without waiting for a device."""
        import torch.distributed as dist

        kept = torch.tensor(values, dtype=torch.uint8)
        with losing():
            dist.all_reduce(kept, dist.ReduceOp.MAX)
        return kept.tolist()

    def _add_up(self, tensors: Sequence[Tensor]) -> None:
        """In place; those of one kind travel as one."""
        import torch.distributed as dist

        for kind in dict.fromkeys(tensor.dtype for tensor in tensors):
            alike = [tensor for tensor in tensors if tensor.dtype == kind]
            flat = torch.cat([tensor.reshape(-1) for tensor in alike])
            with losing():
                dist.all_reduce(flat)
            parts = flat.split([tensor.numel() for tensor in alike])
            torch._foreach_copy_(alike, [part.view_as(t) for part, t in zip(parts, alike, strict=True)])


def require_room(trainer: Mapping[str, Any], device: torch.device) -> None:
    """ConfigError where so many ranks have no rows, ValueError where no device to work on or no way to each other."""
    ranks, rows = trainer["ranks"], trainer["batch_size"]
    if ranks == 1:
        return
    if rows < ranks:
        raise ConfigError(
            f"trainer.ranks={ranks}: each takes a row of every batch at least, and trainer.batch_size={rows}; at most "
            f"trainer.ranks={rows}"
        )
    if device.type not in ("cpu", "cuda") or not torch.distributed.is_available():
        raise ValueError(
            f"trainer.ranks={ranks}: torch connects none on {device.type} here; trainer.device=cpu or one rank"
        )
    if device.type == "cuda" and torch.cuda.device_count() < ranks:
        raise ValueError(
            f"trainer.ranks={ranks}: each takes a GPU and there are {torch.cuda.device_count()}; fewer ranks, or "
            "trainer.device=cpu"
        )
    if not any(can_call(*place) for place in HERE):
        raise ValueError(
            f"trainer.ranks={ranks}: they talk over the loopback interface, which is down here; `ip link set lo up` or "
            "trainer.ranks=1"
        )


def can_call(family: socket.AddressFamily, address: str) -> bool:
    """Whether this process reaches itself there; an interface that is down still lets it bind."""
    try:
        with (
            socket.create_server((address, 0), family=family) as door,
            socket.create_connection(door.getsockname()[:2]),
        ):
            pass
    except OSError:
        return False
    return True


@contextmanager
def losing() -> Iterator[None]:
    """What a backend says when a connection breaks, as Lost."""
    try:
        yield
    except RuntimeError as error:
        raise Lost(str(error).partition("\n")[0]) from error


def fingerprints(model: nn.Module) -> dict[str, str]:
    """SHA-256 of every parameter and kept buffer."""
    tensors = {name: value for name, value in model.state_dict().items() if isinstance(value, Tensor)}
    return {
        name: hashlib.sha256(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data).hexdigest()
        for name, value in tensors.items()
    }


@contextmanager
def joined(rank: int, size: int, meeting: Path, device: torch.device) -> Iterator[Ranks]:
    """A member of the group whose ranks meet in this file; they leave together, or are left behind."""
    # has the group as a default argument of its functions if it is imported once there is one: nothing would end it
    import torch._dynamo  # noqa: F401
    import torch.distributed as dist

    names = [name for _, name in socket.if_nameindex()]
    if loopback := next((name for name in LOOPBACK if name in names), None):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)  # else it looks up the name of this machine
    with losing():
        dist.init_process_group(
            backend="cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=dist.FileStore(str(meeting), size),
            rank=rank,
            world_size=size,
            timeout=DAYS,
        )
    try:
        yield Ranks(rank, size)
    finally:
        gc.collect()  # the last reference to the group should be torch's own, which lets its threads end
        with suppress(RuntimeError):  # of a group that is broken
            dist.destroy_process_group()
