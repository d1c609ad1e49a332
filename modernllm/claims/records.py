"""A run's record held against its plan: what was made under another configuration, text or code is no evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from modernllm.claims.foreign import sources
from modernllm.runs.directory import RunDirectory
from modernllm.runs.identity import digest, scientific
from modernllm.runs.record import Run, load_result
from modernllm.sweep.plan import Planned

TEXTS = ("corpus", "tokenizer", "validation")
"""Hashes in run.json of what a run was trained and measured on."""
WAY_OUT = "delete that folder, and the same command makes the run again"


def finished(planned: Planned) -> Run | None:
    """The run if it finished, None while it did not. ValueError, naming folder and fault, where the record is damaged,
    contradicts itself, or is of another run than the planned one.
    """
    if RunDirectory(planned.path).status().get("status") != "finished":
        return None
    try:
        run = load_result(planned.path)
        fault = _foreign(run, planned) or _contradiction(run)
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{planned.path} is damaged ({str(error).partition(';')[0]}): {WAY_OUT}") from None
    if fault:
        raise ValueError(f"{planned.path} {fault}: {WAY_OUT}")
    return run


def _foreign(run: Run, planned: Planned) -> str | None:
    """The name of a run ends with a hash of all that decides its result: it is computed again from what it recorded."""
    found = digest(
        scientific(
            run.config,
            {name: run.identity[name] for name in TEXTS},
            run.identity["device"],
            list(run.identity["dead_switches"]),
        )
    )
    if run.identity["run_id"] != planned.run_id or not planned.run_id.endswith(found[:10]):
        return "holds another run: its configuration or its text is not the planned one"
    if run.identity.get("origin", {}).get("code") != planned.asked.origin.get("code"):
        return f"was made by other code of {', '.join(planned.config['allow_targets'] or ['other hands'])}"
    return None


def _contradiction(run: Run) -> str | None:
    """Numbers of metrics.jsonl that judge the run, against what status.json said of them when it ended."""
    evaluations = {row["step"]: row["val_loss"] for row in run.metrics if "val_loss" in row}
    if 0 not in evaluations:
        return "is damaged (metrics.jsonl has no loss before the first step)"
    said = run.status["val_loss"]
    if said != run.val_loss and not (math.isnan(said) and math.isnan(run.val_loss)):
        return f"is damaged (status.json says val_loss {said}, metrics.jsonl {run.val_loss})"
    if math.isnan(said) and run.outcome != "nonfinite":
        return f"is damaged (outcome {run.outcome}, but no loss at the last step)"
    return None


def code_of(config: Mapping[str, Any]) -> dict[str, str]:
    """`{"code": hash}` of the files in which the classes of `allow_targets` are written, {} where there are none: the
    name of a run follows from its configuration, which says nothing of code that is not ours.
    """
    files = {target: sources(target) for target in config["allow_targets"] or []}
    return {"code": digest(files)[:16]} if files else {}
