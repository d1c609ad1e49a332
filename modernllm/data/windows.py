"""Batches as a pure function of seed and step: no loader, no state, nothing to restore."""

from __future__ import annotations

import hashlib

import numpy as np
import torch

from modernllm.batch import Batch


class Windows:
    """`windows(step)`: `batch_size` windows of `length` + 1 tokens, their starts drawn uniformly.

    The draw depends on (seed, step) and the number of tokens alone, so every arm of a comparison sees the
    same batches, however they are cut into micro-batches and ranks, and a resumed run goes on where it was.

    There are no epochs, so none has a tail to drop: of n tokens the one at p > 0 is a target in min(p, n - p, `length`,
    n - `length`) of the n - `length` windows, as often as every other that is not near an end.
    """

    def __init__(self, tokens: np.ndarray, length: int, batch_size: int, seed: int, split: str = "train"):
        self.tokens = np.asarray(tokens)  # what is cut from a memory map by itself becomes one, at some cost
        self.length = length
        self.batch_size = batch_size
        self.seed = seed
        self.n_starts = n_starts(tokens, length, split)
        self.generator = np.random.Philox(key=0)
        self.fresh = self.generator.state

    def starts(self, step: int) -> np.ndarray:
        """First positions of the windows of this step, int64."""
        key = hashlib.sha256(f"data {self.seed} {step}".encode()).digest()
        # the raw output of a counter-based generator is the same in every numpy; its distributions may change. A new
        # generator would be Philox(key=...), and asks the system for entropy that it does not use
        self.fresh["state"]["key"] = np.frombuffer(key[:16], "<u8").astype(np.uint64)
        self.generator.state = self.fresh
        raw = self.generator.random_raw(self.batch_size)
        return (raw % np.uint64(self.n_starts)).astype(np.int64)

    def __call__(self, step: int) -> Batch:
        return gather(self.tokens, self.starts(step), self.length)


def n_starts(tokens: np.ndarray, length: int, split: str) -> int:
    """How many windows of `length` tokens and their targets there are: one token is only ever a target."""
    n = len(tokens) - length
    if n < 1:
        raise ValueError(
            f"the {split} split has {len(tokens)} tokens and a window needs {length + 1} "
            f"(model.context_length={length} and one target); "
            f"shorten model.context_length or choose a larger text with data"
        )
    return n


def gather(tokens: np.ndarray, starts: np.ndarray, length: int) -> Batch:
    """The windows that begin at `starts`."""
    rows = tokens[starts[:, None] + np.arange(length + 1)]
    return Batch.from_windows(torch.from_numpy(rows.astype(np.int64)))
