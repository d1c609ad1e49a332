"""Schedules: made with `schedule(steps)`, used as `step -> share of the peak learning rate`, steps from 1."""

from __future__ import annotations

import math

from modernllm.quantities import Count, Probability, Share


class Cosine:
    """Linear warm-up to the peak at step w, then final + (1 - final) (1 + cos(pi (s - w) / (n - w))) / 2

    (Loshchilov and Hutter, 2017). No step is at zero; step w (the first, without warm-up) is at the peak; the last
    step, and any later, is at `final`, so of two steps or more the warm-up leaves the last.
    """

    def __init__(self, steps: Count, warmup: Probability = 0.1, final: Share = 0.1):
        self.steps, self.final = steps, final
        self.peak = max(1, min(round(warmup * steps), steps - 1))

    def __call__(self, step: int) -> float:
        if step <= self.peak:
            return step / self.peak
        done = min(1.0, (step - self.peak) / max(1, self.steps - self.peak))
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * done)) / 2
