"""Schedules: made with `schedule(steps)`, used as `step -> share of the peak learning rate`, steps from 1.

All warm up alike: linearly, so that no step is at zero and step w (the first, without warm-up) is the peak. `warmup`
is a number of steps, or as a fraction below 1 a share of them, which of two steps or more leaves the last. A step
beyond the last has the last one's rate.
"""

from __future__ import annotations

import math
from typing import Annotated

from annotated_types import Gt, Le

from modernllm.quantities import Count, Natural, Probability, Share


class Schedule:
    """Peak from step w on; subclasses say what follows."""

    def __init__(self, steps: Count, warmup: Natural | Probability):
        if isinstance(warmup, int) and warmup >= max(steps, 2):
            raise ValueError(f"schedule.warmup={warmup}: the run has {steps} steps; warm up for fewer")
        warmup = warmup if isinstance(warmup, int) else min(round(warmup * steps), steps - 1)
        self.steps, self.peak = steps, max(1, warmup)

    def __call__(self, step: int) -> float:
        return step / self.peak if step < self.peak else self.after(min(step, self.steps))

    def after(self, step: int) -> float:
        """Share at `step`, from the peak (1) to the last step."""
        raise NotImplementedError

    def done(self, step: int, start: int) -> float:
        """How much of the way from step `start` to the last lies behind `step`."""
        return (step - start) / max(1, self.steps - start)


class Constant(Schedule):
    """1"""

    def __init__(self, steps: Count, warmup: Natural | Probability = 0.1):
        super().__init__(steps, warmup)

    def after(self, step: int) -> float:
        return 1.0


class Linear(Schedule):
    """1 - (1 - final) (s - w) / (n - w)"""

    def __init__(self, steps: Count, warmup: Natural | Probability = 0.1, final: Share = 0.0):
        super().__init__(steps, warmup)
        self.final = final

    def after(self, step: int) -> float:
        return 1 - (1 - self.final) * self.done(step, self.peak)


class Cosine(Schedule):
    """final + (1 - final) (1 + cos(pi (s - w) / (n - w))) / 2  (Loshchilov and Hutter, 2017)"""

    def __init__(self, steps: Count, warmup: Natural | Probability = 0.1, final: Share = 0.1):
        super().__init__(steps, warmup)
        self.final = final

    def after(self, step: int) -> float:
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * self.done(step, self.peak))) / 2


class WarmupStableDecay(Schedule):
    """1, then over the last `decay` of the steps, at least one, linearly to `final`

    (Hu et al., 2024; Haegele et al., 2024)
    """

    def __init__(
        self,
        steps: Count,
        warmup: Natural | Probability = 0.1,
        decay: Annotated[float, Gt(0), Le(1)] = 0.2,
        final: Share = 0.0,
    ):
        super().__init__(steps, warmup)
        self.final = final
        self.start = max(self.peak, steps - max(1, round(decay * steps)))

    def after(self, step: int) -> float:
        return 1.0 if step <= self.start else 1 - (1 - self.final) * self.done(step, self.start)


class InverseSqrt(Schedule):
    """sqrt(w / s): the 2017 schedule d^-0.5 min(s^-0.5, s w^-1.5) with its peak as the learning rate

    (Vaswani et al., 2017)
    """

    def __init__(self, steps: Count, warmup: Natural | Probability = 0.1):
        super().__init__(steps, warmup)

    def after(self, step: int) -> float:
        return (self.peak / step) ** 0.5
