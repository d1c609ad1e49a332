"""What is found out and kept when a step of a run is not finite."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from torch import Tensor

from modernllm.batch import Batch
from modernllm.data.windows import Windows
from modernllm.linear import parameter_roles
from modernllm.nonfinite import bundle
from modernllm.nonfinite.examine import Moment, Step, after_update, examine, is_sound
from modernllm.nonfinite.magnitude import is_broken
from modernllm.nonfinite.place import Place, words
from modernllm.objective import Objective
from modernllm.precision import Precision
from modernllm.runs.directory import RunDirectory
from modernllm.update import Measured

PREVIOUS = 20
"""Steps of which the event repeats loss and gradient norm."""


class Inquest:
    """Made once for a run, used when a step went wrong: `(...) -> details` of the event. It never raises: a step that
    cannot be done again is told as it was measured, with the reason.
    """

    def __init__(
        self,
        objective: Objective,
        train: Callable[[int], Batch],
        rows: int,
        precision: Precision,
        optimizer: Any,
        names: tuple[str, ...],
        directory: RunDirectory,
    ):
        self.objective, self.train, self.rows = objective, train, rows
        self.precision: Precision = precision
        self.optimizer, self.names, self.directory = optimizer, names, directory
        self.broken: set[str] = set()

    def begin(self) -> None:
        """Before the first step of this process: what is not finite now is no update's doing."""
        model = self.objective.model
        if not is_sound(model):
            self.broken = {name for name, parameter, _ in parameter_roles(model) if is_broken(parameter)}

    def __call__(
        self, number: int, began: Moment, before: tuple[Measured, Tensor] | None, left_alone: bool
    ) -> dict[str, Any]:
        """`before` is the last update before the step, if this process did one, with the norms of its gradients;
        `left_alone` says that the weights are still those that the step began with.
        """
        device = next(self.objective.model.parameters()).device
        step = Step(self.objective, self.train(number - 1).to(device), self.rows, self.precision, began)
        details: dict[str, Any] = {"windows": self.windows(number), "previous": self.previous(number)}
        place, reason = self.place(step, before, left_alone)
        details["where"] = words(place, number) if place else f"unknown, {reason}"
        details["place"] = place and asdict(place)
        if place and place.rows and details["windows"]:
            details["windows_of_micro_batch"] = details["windows"][slice(*place.rows)]
        if not left_alone:
            return details
        try:
            path = bundle.save(self.directory, number, step, self.optimizer, place)
            file = path.relative_to(self.directory.path)
            details["bundle"] = {"file": str(file), "megabytes": round(path.stat().st_size / 1e6, 1)}
        except OSError as error:  # a full disk: what was found is worth more than what it is replayed from
            details["bundle"] = {"file": None, "reason": str(error)}
        return details

    def place(self, step: Step, before: tuple[Measured, Tensor] | None, left_alone: bool) -> tuple[Place | None, str]:
        """And why there is none. Weights that are not finite when a step begins are the doing of the update before."""
        if not left_alone:
            return None, (
                "later updates have changed the weights that this step began with; trainer.nonfinite=stop keeps them "
                "and finds the place"
            )
        try:
            found = examine(step).place
            updated = found is not None and found.phase == "start" and found.tensor not in self.broken
            if updated and before is not None:
                return after_update(step.model, self.optimizer, self.names, *before), ""
            return found, "" if found else "done again without a compiler, operator by operator, the step is finite"
        except Exception as error:  # a model that cannot be watched, no memory: the run's result stands anyway
            return None, f"the step could not be examined: {type(error).__name__}: {error}"

    def windows(self, number: int) -> list[int] | None:
        """Where in the training text the rows of the batch begin."""
        return self.train.starts(number - 1).tolist() if isinstance(self.train, Windows) else None

    def previous(self, number: int) -> list[dict[str, Any]]:
        """Loss and gradient norm of the steps before, from the record."""
        rows = [row for row in self.directory.rows()[0] if "grad_norm" in row and row["step"] < number]
        return [{key: row[key] for key in ("step", "loss", "grad_norm")} for row in rows[-PREVIOUS:]]


class NoInquest:
    """On every rank but the first, which examines and keeps the step of all of them."""

    def begin(self) -> None: ...

    def __call__(
        self, number: int, began: Moment, before: tuple[Measured, Tensor] | None, left_alone: bool
    ) -> dict[str, Any]:
        return {"where": ""}
