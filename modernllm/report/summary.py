"""What is said before and after a run."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from typing import Any

from modernllm import checkpoint
from modernllm.data.prepare import TokenizedCorpus
from modernllm.position.loudness import EVEN
from modernllm.report.table import sparkline
from modernllm.runs.record import Run

SHOWN = (
    "norm", "placement", "position", "activation", "attention", "init", "block", "embedding", "head", "readout",
)  # fmt: skip


def opening(identity: dict[str, Any], config: dict[str, Any], data: TokenizedCorpus) -> Iterator[str]:
    """The run in a few lines: what it is, on what text, and what was asked for in vain."""
    shape, trainer, choices = config["model"], config["trainer"], identity["choices"]
    ranks = f" in {trainer['ranks']} ranks" if trainer["ranks"] > 1 else ""
    yield (
        f"{choices['size']}: {identity['parameters']['total']:,} parameters, {shape['n_layers']} layers of width "
        f"{shape['dim']}, {trainer['steps']} steps of {trainer['batch_size']} x {shape['context_length']} tokens "
        f"on {identity['device']}{ranks}"
    )
    yield " ".join(f"{group}={choices[group]}" for group in SHOWN if group in choices)
    text = identity["text"]
    yield (
        f"data={choices['data']} tokenizer={choices['tokenizer']}: {text['train']['tokens']:,} training and "
        f"{text['validation']['tokens']:,} validation tokens"
    )
    if data.note:
        yield f"! {data.note}"
    for group, choice in identity["dead_switches"].items():
        yield f"! {group}={choice} is read by nothing here: any other choice gives the same run"
    yield from uneven_start(identity)


def uneven_start(identity: dict[str, Any]) -> Iterator[str]:
    """Positions that start much louder or quieter than tokens: whoever compares encodings compares that too."""
    ratio, choices = identity["position_loudness"], identity["choices"]
    if ratio is None or 1 / EVEN <= ratio <= EVEN:
        return
    size = f"{ratio:.1f} times as large as" if ratio > 1 else f"{1 / ratio:.1f} times smaller than"
    yield (
        f"! position={choices['position']} starts with vectors {size} those of the tokens (embedding="
        f"{choices['embedding']} head={choices['head']} init={choices['init']}): "
        f"embedding={'normed' if ratio > 1 else 'plain'} makes them alike"
    )


def result(run: Run) -> Iterator[str]:
    """How it ended and what it learned."""
    status, floors = run.status, run.identity["floors"]
    yield ""
    if status["status"] == "interrupted":
        without = " without overwrite=true" if run.config["overwrite"] else ""
        done, kept = max((row["step"] for row in run.metrics), default=0), _newest(run)
        place = "from there" if kept == done else f"from step {kept}" if kept else "from the start"
        yield f"interrupted after step {done}: the same command{without} goes on {place}"
        return
    yield f"outcome: {run.word}  ({status['reason']})"
    if math.isfinite(run.val_loss):
        yield (
            f"validation loss {run.val_loss:.3f} nats/token, {status['val_bits_per_byte']:.3f} bits/byte; floors of "
            f"this text: unigram {floors['unigram']:.3f}, bigram {floors['bigram']:.3f} nats/token"
        )
        if status["progress"] is not None:
            progress = round(status["progress"], 2) + 0.0  # no -0.00
            yield f"progress from the unigram floor (0) to the bigram floor (1): {progress:.2f}"
    yield from mishaps(run)
    finite = [loss for loss in run.losses if math.isfinite(loss)] or [0.0]
    yield f"loss  {sparkline(run.losses, min(finite), max(finite), 60)}"
    skipped = f"; {status['skipped_steps']} steps were skipped" if status["skipped_steps"] else ""
    yield (
        f"{status['tokens']:,} tokens at {status['tokens_per_s']:,.0f} tokens/s; gradients clipped in "
        f"{status['clipped_share']:.0%} of the steps{skipped}"
    )


def _newest(run: Run) -> int:
    """The step of the newest checkpoint, before which one that was killed may stand; 0 without one."""
    return next(map(checkpoint.step_of, checkpoint.complete(run.path / "checkpoints")), 0)


def mishaps(run: Run) -> Iterator[str]:
    """What was not finite, where that began, and how to see it again; of skipped steps the first."""
    for event in run.events:
        if event["kind"] == "nonfinite" or (event["kind"] == "skipped" and "where" in event):
            yield f"! {event['message']}"
            kept = event.get("bundle", {"file": None})
            if kept["file"]:
                yield f"  again, operator by operator: python scripts/replay.py {shlex.quote(str(run.path))}"
                yield f"  (from {kept['megabytes']} MB in {kept['file']})"
            elif "reason" in kept:
                yield f"  it cannot be replayed: {kept['reason']}"


def epilogue(run: Run) -> Iterator[str]:
    """What it writes, where it is, what to try next."""
    if run.status.get("sample"):
        yield ""
        yield "what it writes:"
        yield from ("  | " + line for line in run.status["sample"].strip("\n").splitlines()[:6])
    yield ""
    yield f"files: {run.path}  ({' '.join(sorted(path.name for path in run.path.glob('[!.]*')))})"
    if run.status["status"] == "finished":
        yield "next:"
        yield from (f"  {command}" for command in suggestions(run))


def suggestions(run: Run) -> list[str]:
    """Two commands that lead on from here: what was asked for, with one thing flipped."""
    deep = "python train.py -m size=deep placement=pre,post trainer.steps=200"
    asked = {key: value for key, value in run.identity["overrides"].items() if key not in ("overwrite", "resume")}
    if run.outcome == "nonfinite":
        kept = shlex.join(f"{key}={value}" for key, value in asked.items() if key not in ("placement", "init"))
        return [f"python train.py {kept} placement={placement}".replace("  ", " ") for placement in ("pre", "sandwich")]
    words = shlex.join(f"{key}={value}" for key, value in asked.items() if key not in ("placement", "seed"))
    if not words:
        return [deep, "python train.py -m size=nano position=rope,learned,none seed=0,1"]
    return [f"python train.py -m {words} placement=pre,post", f"python train.py -m {words} seed=0,1,2"]
