"""The text column of a Hugging Face dataset, whole or streamed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, runtime_checkable

BATCH = 1000


@runtime_checkable
class Rows(Protocol):
    """What `Dataset` and `IterableDataset` have in common: batches of rows, a list for each field."""

    def iter(self, batch_size: int) -> Iterator[Any]: ...


def column(dataset: Rows, field: str, source: str, limit: int | None = None) -> Iterator[str]:
    """The texts of the first `limit` rows; rows without one (null) are dropped."""
    left = limit
    for batch in dataset.iter(batch_size=BATCH):
        if field not in batch:
            there = ", ".join(sorted(batch))
            raise ValueError(f"data.field={field}: {source} has no such field; it has {there}")
        for value in batch[field][:left]:
            if value is not None and not isinstance(value, str):
                there = f"{type(value).__name__} {value!r:.60}"
                raise ValueError(f"data.field={field}: {source} holds the {there} there, text is needed")
            if value:
                yield value
        if left is not None and (left := left - len(batch[field])) <= 0:
            return
