"""One run, from its composed configuration to its record: compose -> build -> fit -> result."""

from __future__ import annotations

import math
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig

from modernllm.config.build import build, resolve
from modernllm.crew import Killed, Seat, together
from modernllm.distributed import OneProcess, joined
from modernllm.generate import generate
from modernllm.logger import mirrored
from modernllm.precision import pick_device
from modernllm.preparation import Asked, Prepared, prepare_run
from modernllm.report.console import Console
from modernllm.report.summary import opening
from modernllm.runs.changes import changes
from modernllm.runs.directory import RunDirectory
from modernllm.runs.extension import Extension, extend
from modernllm.runs.outcome import judge
from modernllm.runs.record import Run, load_run
from modernllm.runs.recorder import Recorder, Unrecorded
from modernllm.telemetry import Elsewhere
from modernllm.trainer import Ending, Trainer

Composed = DictConfig | Mapping[str, Any]

FINISHED, FAILED, NONFINITE, SIGNALLED = 0, 1, 4, 128
"""Exit codes of one run; to the last the signal's number is added, as a shell does: 130 is Ctrl-C, 143 SIGTERM."""


def run(cfg: Composed, asked: Asked) -> tuple[int, Run]:
    """Do the run that `cfg` describes, or go on with it, or leave it if it is done; its exit code and its record."""
    config, asked, extension = intend(cfg, asked)
    prepared = prepare_run(config, asked)
    if extension:
        compare(prepared, extension.origin)
    directory = RunDirectory(Path(config["out"]) / config["study"] / prepared.run_id)
    console = Console(config["trainer"]["steps"])
    with held(directory):
        if config["overwrite"]:
            directory.clear()
        if directory.status().get("status") == "finished":
            console.print(f"{prepared.run_id} is finished already (overwrite=true runs it again)")
        else:
            for line in opening(prepared.identity, config, prepared.data):
                console.print(line)
            if extension and not directory.status():
                extension.seed(directory)
            perform(prepared, asked, directory, console)
        done = load_run(directory.path)
    # a finished run may have been asked for in other words; a table of this command's runs names them by its own
    done = replace(done, identity=done.identity | {"choices": asked.choices, "overrides": asked.overrides})
    if done.status["status"] == "interrupted":
        return SIGNALLED + done.status["signal"], done
    return NONFINITE if done.outcome == "nonfinite" else FINISHED, done


def intend(cfg: Composed, asked: Asked) -> tuple[dict[str, Any], Asked, Extension | None]:
    """The configuration to run: the composed one, or with `resume` that of the run in that folder with more steps."""
    config = resolve(cfg)
    if not config["resume"]:
        return config, asked, None
    extension = extend(config["resume"], config, asked.overrides)
    origin = extension.origin.identity
    # what was asked for there is asked for here
    asked = replace(asked, choices=origin["choices"], overrides=origin["overrides"] | asked.overrides)
    return extension.config, asked, extension


def compare(prepared: Prepared, origin: Run) -> None:
    """ValueError if what a run goes on with is not what it began with."""
    for name in ("corpus", "tokenizer", "validation", "device"):
        if prepared.identity[name] != origin.identity[name]:
            raise ValueError(f"resume={origin.path}: its {name} was another one, so this would be another run")


@contextmanager
def held(directory: RunDirectory):
    directory.acquire()
    try:
        yield
    finally:
        directory.release()


def perform(prepared: Prepared, asked: Asked, directory: RunDirectory, console: Console) -> None:
    """Train and record; the status says how it ended, whatever happens."""

    def give_up(why: ChildProcessError) -> None:
        with suppress(OSError):
            directory.mark(**as_status(why))
        print(f"error: {why}", file=sys.stderr, flush=True)
        os._exit(FAILED)

    config, identity = prepared.config, prepared.identity
    changed = changes(directory, config, identity)
    directory.open(config, identity)
    directory.mark("running", step=0)
    recorder = Recorder(directory, prepared.logger, console, changed)
    started = time.time()
    try:
        prepared.logger.start(
            directory=directory.path,
            run_id=prepared.run_id,
            study=config["study"],
            arm=arm(identity),
            tags=[f"{group}={choice}" for group, choice in identity["choices"].items()],
            config=mirrored.configuration(config, identity),
        )
        with console, together(config, asked, directory.path, give_up) as group:
            ending = make_trainer(prepared, recorder, group).fit()
        results = conclude(prepared, directory, ending) | {"seconds": time.time() - started}
    except BaseException as error:
        with suppress(OSError):  # where the disk is full the error itself is what counts
            directory.mark(**as_status(error), traceback=traceback.format_exc())
        recorder.finish({"outcome": None, "reason": str(error)}, failed=True)
        raise
    recorder.finish(mirrored.summary(results), failed=results["status"] != "finished")
    directory.mark(str(results.pop("status")), **results)


def as_status(error: BaseException) -> dict[str, str]:
    """Nothing was wrong with a run that somebody ended."""
    ended = isinstance(error, KeyboardInterrupt | Killed)
    return {"status": "interrupted" if ended else "failed", "reason": f"{type(error).__name__}: {error}"}


def accompany(config: dict[str, Any], asked: Asked, seat: Seat, ready: Callable[[], None]) -> None:
    """What every rank but the first does of a run: the same training on its share, and no record."""
    prepared = prepare_run(config | {"trainer": config["trainer"] | {"profile": False}}, asked)
    telemetry = Elsewhere(prepared.parts["telemetry"])
    prepared = replace(prepared, parts=prepared.parts | {"telemetry": telemetry})
    ready()
    with joined(seat.rank, seat.size, seat.meeting, pick_device(config["trainer"]["device"])) as group:
        make_trainer(prepared, Unrecorded(RunDirectory(seat.directory)), group).fit()


def arm(identity: dict[str, Any]) -> str:
    """What a run shares with its siblings of other seeds: everything that was asked for but the seed."""
    asked = [f"{key}={value}" for key, value in identity["overrides"].items() if key != "seed"]
    return " ".join(asked) or "default"


def make_trainer(prepared: Prepared, recorder: Recorder, group: OneProcess | None = None) -> Trainer:
    config, group = prepared.config, group or OneProcess()
    group.same("configuration", prepared.identity["config_hash"])
    rows = config["trainer"]["micro_batch"] or config["trainer"]["batch_size"]
    return build(
        config["trainer"],
        "trainer",
        model=prepared.model,
        train=prepared.windows,
        validation=list(prepared.validation.split(rows)),
        token_bytes=torch.from_numpy(np.asarray(prepared.data.tokenizer.token_bytes, dtype=np.int64)),
        recorder=recorder,
        seed=config["seed"],
        group=group,
        **prepared.parts,
    )


def conclude(prepared: Prepared, directory: RunDirectory, ending: Ending) -> dict[str, Any]:
    """What status.json says of a run that ended by itself: its outcome, from what was recorded, and a sample."""
    if ending.interrupted_by is not None:
        return {"status": "interrupted", "step": ending.step, "outcome": None, "signal": ending.interrupted_by}
    rows = Run(directory.path, prepared.config, prepared.identity, *directory.rows(), {})
    evaluations = [row for row in rows.metrics if "val_loss" in row]
    best = min(evaluations, key=lambda row: math.inf if math.isnan(row["val_loss"]) else row["val_loss"])
    floors = prepared.identity["floors"]
    steps = [row for row in rows.metrics if "grad_norm" in row]
    skipped = sum(row.get("skipped", False) for row in steps)
    verdict = judge(
        val_loss=rows.val_loss,
        initial_loss=evaluations[0]["val_loss"],
        losses=rows.losses,
        first_nonfinite_step=ending.first_nonfinite_step,
        skipped_steps=skipped,
        **floors,
    )
    return {
        "status": "finished",
        "outcome": verdict.outcome,
        "reason": verdict.reason,
        "step": ending.step,
        "first_nonfinite_step": ending.first_nonfinite_step,
        "val_loss": rows.val_loss,
        "val_bits_per_byte": next(
            (r["val_bits_per_byte"] for r in evaluations[::-1] if r["step"] == ending.step), None
        ),
        "progress": verdict.progress,
        **{f"{name}_floor": floor for name, floor in floors.items()},
        "best": {"step": best["step"], "val_loss": best["val_loss"]},
        "skipped_steps": skipped,
        "clipped_share": sum(row["clipped"] for row in steps) / len(steps),
        "tokens": steps[-1]["tokens"],
        "tokens_per_s": float(np.median([row["tokens_per_s"] for row in steps])),
        "sample": sample(prepared) if ending.first_nonfinite_step is None else None,
    }


def sample(prepared: Prepared) -> str:
    """A few lines of generated text."""
    tokenizer, model = prepared.data.tokenizer, prepared.model
    device = next(model.parameters()).device
    prompt = torch.tensor([[tokenizer.eot]], device=device)
    longest = prepared.config["model"]["context_length"] - 1
    tokens = generate(model, prompt, min(240, longest), temperature=0.8)
    return tokenizer.decode(tokens[0].tolist())
