"""Run folders, and runs that were planned, as records: each is usable, or it is said why not. None is dropped."""

from __future__ import annotations

import glob
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from modernllm.claims.stability import capped
from modernllm.claims.table import FAILED
from modernllm.report.page.curve import Curve
from modernllm.runs.directory import RunDirectory
from modernllm.runs.plans import Intent, folder_of, intents_in
from modernllm.runs.record import read_config, read_identity
from modernllm.runs.studies import Entry, damage, is_run, others_in, runs_in
from modernllm.telemetry.derived import clip_share, skipped_steps

MISSING, UNREADABLE = "missing", "unreadable"
"""As the word of a run: one that was to be there and is not, and one whose record cannot be read."""


@dataclass(frozen=True)
class Unreadable:
    """What stands where a run is expected and cannot be placed in an arm."""

    path: Path
    reason: str


@dataclass(frozen=True, kw_only=True)
class Record:
    """A run whose configuration can be read. `problem` says why its result does not count; "" where it does.

    Losses are nats per token: `loss` at the last step that the configuration names (NaN if it did not get there),
    `initial` before the first.
    """

    path: Path
    config: Mapping[str, Any]
    identity: Mapping[str, Any]
    status: Mapping[str, Any]
    events: Sequence[Mapping[str, Any]]
    word: str
    problem: str
    curve: Curve
    loss: float
    bits: float
    initial: float
    clipped: float
    skipped: int
    lent: bool = False
    """Made for another cell of a claim, and counted there."""

    @classmethod
    def absent(
        cls, path: Path, config: Mapping[str, Any], identity: Mapping[str, Any], problem: str, word: str = MISSING
    ) -> Record:
        """Of a run that should be there, so that it counts where it belongs."""
        nothing = {"loss": math.nan, "bits": math.nan, "initial": math.nan, "clipped": math.nan, "skipped": 0}
        return cls(path=path, config=config, identity=identity, status={}, events=(), word=word, problem=problem,
                   curve=Curve.of([]), **nothing)  # fmt: skip

    def lent_to(self, origin: Mapping[str, Any]) -> Record:
        """The same run, where another cell of its claim needs it."""
        return replace(self, identity={**self.identity, "origin": origin}, lent=True)

    def other(self, lr: float, seed: int) -> Record:
        """The run that would stand beside this one, and does not."""
        optimizer = {**self.config["optimizer"], "lr": lr}
        config = {**self.config, "optimizer": optimizer, "seed": seed}
        return Record.absent(Path(""), config, self.identity, "no run")

    @property
    def usable(self) -> bool:
        return not self.problem

    @property
    def missing(self) -> bool:
        """Whether there is no folder of it at all."""
        return self.word == MISSING

    @property
    def unreadable(self) -> bool:
        return self.word == UNREADABLE

    @property
    def lr(self) -> float:
        return float(self.config["optimizer"].get("lr") or math.nan)

    @property
    def seed(self) -> int:
        return self.config["seed"]

    @property
    def held_out(self) -> str:
        """Which windows it was measured on: those that judge, or those that choose learning rates."""
        return self.config["trainer"].get("held_out") or "evaluation"

    @property
    def tokens_per_step(self) -> int:
        return self.config["trainer"]["batch_size"] * self.config["model"]["context_length"]

    @property
    def planned_tokens(self) -> int:
        return self.config["trainer"]["steps"] * self.tokens_per_step

    @property
    def starts(self) -> bool:
        """Whether its loss was finite before the first step: otherwise nothing caps it."""
        return math.isfinite(self.initial)

    @property
    def counted(self) -> float:
        """The loss as the referee counts it: what is not finite or above the start is the start."""
        loss = math.nan if self.word == "nonfinite" else self.loss
        return float(capped(np.array([loss]), np.array([self.initial]))[0])

    @property
    def failed(self) -> bool:
        """Stalled, diverged or nonfinite, or no better than at the start."""
        return self.word in FAILED or not self.counted < self.initial


@dataclass(frozen=True)
class Found:
    """What words of a command line lead to: runs, what stands among them and is none, and plans of whole studies."""

    entries: list[Entry]
    strangers: list[Unreadable]
    intents: list[Intent]


def found_at(words: Sequence[str], out: Path) -> Found:
    """In studies (by path, or by name in `out`), run folders and globs.

    FileNotFoundError names a word that leads nowhere.
    """
    entries: dict[Path, Entry] = {}
    strangers, intents = [], []
    for path in (path for word in words for path in _paths(word, out)):
        if is_run(path):
            entries.setdefault(path.resolve(), Entry(path, RunDirectory(path).status()))
            continue
        plans, damaged = intents_in(path)
        found = runs_in(path) if path.is_dir() else []
        entries |= {entry.path.resolve(): entry for entry in found if entry.path.resolve() not in entries}
        others = others_in(path) if path.is_dir() else [path] if path.exists() else []
        strangers += [Unreadable(other, "no run: it has neither config.yaml nor status.json") for other in others]
        intents += plans
        strangers += [Unreadable(folder_of(path), why) for why in damaged]
    if not entries and not strangers and not intents:
        raise FileNotFoundError(f"{' '.join(words)}: no runs there")
    return Found(list(entries.values()), strangers, intents)


def _paths(word: str, out: Path) -> list[Path]:
    path = Path(word).expanduser()
    for candidate in (path, out / word):
        if candidate.exists() or folder_of(candidate).is_dir():
            return [candidate]
    found = sorted(Path(name) for name in glob.glob(str(path), recursive=True))
    if not found:
        raise FileNotFoundError(f"{word}: no such study, run folder or glob; studies are looked for in root={out}")
    return found


def read(found: Found) -> tuple[list[Record], list[Unreadable]]:
    """Every run that is there is in one of the two lists, and every run that was planned in the first. A run that is
    there twice counts once, and its copies are named.
    """
    records: dict[str, Record] = {}
    unreadable = []
    for entry in found.entries:
        try:
            record = _record(entry)
        except (OSError, ValueError, KeyError, TypeError) as error:
            unreadable.append(Unreadable(entry.path, f"damaged: {_one_line(error)}"))
            continue
        name = record.identity["run_id"]
        if name in records:
            unreadable.append(Unreadable(entry.path, f"a copy of {records[name].path}"))
        else:
            records[name] = record
    return _planned(found.intents, records, [*found.strangers, *unreadable])


def _planned(
    intents: Sequence[Intent], records: Mapping[str, Record], unreadable: Sequence[Unreadable]
) -> tuple[list[Record], list[Unreadable]]:
    """With what was planned and is not among the records: it is missing, or there and cannot be read."""
    every, rest = dict(records), {each.path: each for each in unreadable}
    for intent in intents:
        for run in intent.runs:
            path = intent.study / run.run_id
            if run.run_id in every:
                continue
            known = rest.pop(path, None)
            word, why = (UNREADABLE, known.reason) if known else (MISSING, "planned, no run")
            every[run.run_id] = Record.absent(path, run.config, run.identity, why, word)
    return list(every.values()), list(rest.values())


def _one_line(error: Exception) -> str:
    words = f"no {error}" if isinstance(error, KeyError) else str(error)
    return " ".join(words.split())


def _record(entry: Entry) -> Record:
    if wrong := damage(entry):
        raise ValueError(wrong)
    identity = read_identity(entry.path / "run.json")
    if not identity["run_id"].endswith(str(identity["config_hash"])[:10]):
        raise ValueError(f"its config_hash {identity['config_hash'][:10]} is that of another run")
    rows, events = RunDirectory(entry.path).rows()
    config = read_config(entry.path / "config.yaml")
    last = config["trainer"]["steps"]
    final = next((row for row in rows if row.get("step") == last and "val_loss" in row), {})
    return Record(
        path=entry.path,
        config=config,
        identity=identity,
        status=entry.status,
        events=events,
        word=entry.word,
        problem=_problem(entry, rows, final, last),
        curve=Curve.of(rows),
        loss=final.get("val_loss", math.nan),
        bits=final.get("val_bits_per_byte", math.nan),
        initial=next((row["val_loss"] for row in rows if row["step"] == 0 and "val_loss" in row), math.nan),
        clipped=clip_share(rows),
        skipped=skipped_steps(rows),
    )


def _problem(entry: Entry, rows: Sequence[Mapping[str, Any]], final: Mapping[str, Any], last: int) -> str:
    """Why the result of a run does not count."""
    if entry.status.get("status") != "finished":
        reason = str(entry.status.get("reason") or "").partition("\n")[0]
        reached = max((row["step"] for row in rows if "grad_norm" in row), default=0)
        return f"{entry.word} at step {reached} of {last}{f': {reason}' if reason else ''}"
    if _torn(entry.path / "metrics.jsonl"):
        return "the last line of metrics.jsonl is half written"
    steps = [row["step"] for row in rows if "grad_norm" in row]
    if doubled := len(steps) - len(set(steps)):
        return f"{doubled} steps stand twice in metrics.jsonl"
    reached = entry.status.get("step", last)
    if missing := reached - len(set(steps)):
        return f"{missing} of {reached} steps are missing in metrics.jsonl"
    if not final and entry.word != "nonfinite":
        return f"finished without a validation loss at step {last}"
    return ""


def _torn(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(0, 2)
        if not file.tell():
            return False
        file.seek(-1, 2)
        return file.read(1) != b"\n"
