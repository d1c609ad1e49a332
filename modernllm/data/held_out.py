"""Two lists of windows of the held-out text that share no token: one judges, the other chooses.

A learning rate looks better on what chose it than it is (selection bias): runs that choose are measured on `tuning`,
runs that are compared on `evaluation`. The latter is spread over the whole text, the former lies midway between its
windows, so both are of the same documents.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from modernllm.batch import Batch
from modernllm.data.windows import gather, n_starts

HeldOut = Literal["evaluation", "tuning"]


@dataclass(frozen=True, eq=False)
class HeldOutWindows:
    """`starts` are first positions in `tokens`, the held-out text, of windows of `length` tokens and their targets."""

    tokens: np.ndarray
    starts: np.ndarray
    length: int

    @property
    def batch(self) -> Batch:
        return gather(self.tokens, self.starts, self.length)

    @property
    def positions(self) -> np.ndarray:
        """Of every token that is input or target in one of them."""
        return np.unique(self.starts[:, None] + np.arange(self.length + 1))

    @property
    def hash(self) -> str:
        """Of where they are and what they hold."""
        digest = hashlib.sha256(f"{self.length} {self.starts.tolist()}".encode())
        for start in self.starts:
            digest.update(self.tokens[start : start + self.length + 1].astype("<u4").tobytes())
        return digest.hexdigest()


def windows_of(tokens: np.ndarray, config: Mapping[str, Any]) -> HeldOutWindows:
    """What the run of a configuration is measured on. ValueError where the held-out text is too short for it."""
    trainer, length = config["trainer"], config["model"]["context_length"]
    starts = STARTS[trainer["held_out"]](tokens, length, trainer["validation_tokens"])
    return HeldOutWindows(tokens, starts, length)


def evaluation_starts(tokens: np.ndarray, length: int, n_tokens: int) -> np.ndarray:
    """Of windows with about `n_tokens` targets, spread evenly.

    No target counts twice: starts are at least `length` apart. Fewer windows where the text is short.
    """
    last = n_starts(tokens, length, "validation") - 1
    most = last // length + 1
    count = min(most, max(1, round(n_tokens / length)))
    return np.arange(count, dtype=np.int64) * last // max(1, count - 1)


def tuning_starts(tokens: np.ndarray, length: int, n_tokens: int) -> np.ndarray:
    """Midway between the windows of evaluation, hence one fewer. ValueError, with the most `n_tokens` that leaves room,
    where those lie too close.
    """
    evaluation = evaluation_starts(tokens, length, n_tokens)
    gaps = np.diff(evaluation)
    if not len(gaps) or gaps.min() < 2 * (length + 1):
        raise ValueError(_no_room(tokens, length, n_tokens))
    return evaluation[:-1] + gaps // 2


STARTS: dict[HeldOut, Callable[[np.ndarray, int, int], np.ndarray]] = {
    "evaluation": evaluation_starts,
    "tuning": tuning_starts,
}


def _no_room(tokens: np.ndarray, length: int, n_tokens: int) -> str:
    """From one window of evaluation to the next it takes 2 (length + 1) tokens to hold one of tuning between them."""
    most = (n_starts(tokens, length, "validation") - 1) // (2 * (length + 1)) + 1
    fault = (
        f"trainer.held_out=tuning: the validation split of {len(tokens):,} tokens has no room for windows that choose "
        f"learning rates between those that judge (trainer.validation_tokens={n_tokens}, model.context_length={length})"
    )
    larger = "choose a larger text with data"
    if most < 2:
        return f"{fault}; shorten model.context_length, or {larger}"
    if n_tokens < 2 * length:
        return f"{fault}, of which there is one; trainer.validation_tokens={2 * length} makes them two"
    return f"{fault}; trainer.validation_tokens={most * length} leaves it, or {larger}"
