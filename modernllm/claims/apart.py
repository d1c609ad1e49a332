"""What chose a learning rate does not judge it: the windows of both, and whether they have a token in common."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from modernllm.data.held_out import windows_of
from modernllm.sweep.plan import Planned


@dataclass(frozen=True)
class Apart:
    """Of one arm: `tuning` windows choose its learning rate, `evaluation` windows judge it, `shared` tokens are in
    both.
    """

    tuning: int
    evaluation: int
    shared: int

    @classmethod
    def of(cls, tokens: np.ndarray, chooses: Planned, judged: Planned) -> Apart:
        """`tokens` are the held-out text of both runs. ValueError where it is too short for their windows."""
        tuning, evaluation = (windows_of(tokens, run.config) for run in (chooses, judged))
        shared = np.intersect1d(tuning.positions, evaluation.positions)
        return cls(len(tuning.starts), len(evaluation.starts), len(shared))

    @property
    def holds(self) -> bool:
        """Whether there are windows for both, and no token is in both."""
        return bool(self.tuning and self.evaluation) and not self.shared

    @property
    def sentence(self) -> str:
        both = f"{self.shared:,} tokens" if self.shared else "no token"
        return f"{self.tuning:,} windows choose learning rates, {self.evaluation:,} judge, {both} in both"
