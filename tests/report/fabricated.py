"""Run folders as a trainer leaves them, written down instead of trained."""

from __future__ import annotations

import copy
import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from models import config

from modernllm.claims.claim import Claim
from modernllm.claims.ledger import Ledger
from modernllm.claims.rules import Superiority
from modernllm.runs.directory import to_json
from modernllm.runs.identity import digest
from modernllm.runs.plans import KNOWN, Intended, write_intent

STEPS = 40
UNIGRAM, INITIAL = 3.3, 6.0


@cache
def _base() -> dict[str, Any]:
    return config("size=nano", "logger=local")


def fabricate(
    study: Path,
    *,
    loss: float,
    placement: str = "pre",
    lr: float = 3e-3,
    seed: int = 0,
    outcome: str | None = "ok",
    status: str = "finished",
    steps: int = STEPS,
    changed: dict[str, Any] | None = None,
    identity: dict[str, Any] | None = None,
    bits: float | None = None,
    spike: tuple[int, float] | None = None,
    nonfinite_at: int | None = None,
    layers: int = 0,
    origin: dict[str, str] | None = None,
) -> Path:
    """A run of `placement` that ends at `loss`; `changed` are keys of the configuration, `spike` a step and its loss,
    `layers` that many in telemetry, `status` another than finished for one that has no result.
    """
    made = copy.deepcopy(_base()) | {"seed": seed}
    made["optimizer"]["lr"], made["trainer"]["steps"] = lr, steps
    made["model"]["placement"]["_target_"] = f"modernllm.placement.{placement}.{placement.title()}Norm"
    for key, value in (changed or {}).items():
        section, _, name = key.partition(".")
        made[section][name] = value
    asked = {"placement": placement, "optimizer.lr": f"{lr:g}", "seed": str(seed), **(changed or {})}
    known_by = digest([placement, lr, seed, steps, changed or {}, identity or {}, origin or {}])
    name = f"nano-{placement}-s{seed}-{known_by[:10]}"
    folder = study / name
    folder.mkdir(parents=True)
    tokens = made["trainer"]["batch_size"] * made["model"]["context_length"]
    told = {
        "run_id": name,
        "config_hash": known_by,
        "choices": {"size": "nano", "placement": placement, "norm": "rmsnorm", "init": "fanin", "telemetry": "default"},
        "overrides": {key: str(value) for key, value in asked.items()},
        "dead_switches": {},
        "floors": {"unigram": UNIGRAM, "bigram": 2.4},
        "corpus": "c" * 16,
        "tokenizer": "t" * 16,
        "validation": "v" * 16,
        "parameters": {"total": 228_288, "active": 228_288},
        "flops_per_token": {"training": 1.4e6},
        "cache_bytes_per_token": 2048.0,
        "numerics": {"precision": "fp32"},
        "device": "cpu",
        "code": {"commit": "a" * 40, "dirty": False},
        "versions": {"torch": "2.13.0"},
        "origin": origin or {},
        **(identity or {}),
    }
    rows, last = _rows(loss, lr, seed, steps, tokens, bits, spike, nonfinite_at)
    ended = {
        "status": status,
        "outcome": outcome if status == "finished" else None,
        "reason": "told",
        "step": last,
        "tokens": last * tokens,
        "tokens_per_s": 10_000.0,
        "clipped_share": 0.5,
        "skipped_steps": 0,
        "progress": 0.1,
        "val_loss": loss,
        "time": 1.0,
    }
    (folder / "config.yaml").write_text(yaml.safe_dump(made), encoding="utf-8")
    (folder / "run.json").write_text(json.dumps(told), encoding="utf-8")
    (folder / "status.json").write_text(json.dumps(to_json(ended)), encoding="utf-8")
    write_rows(folder / "metrics.jsonl", rows)
    if layers:
        write_rows(folder / "telemetry.jsonl", _telemetry(steps, layers))
    if nonfinite_at:
        message = f"non-finite at step {nonfinite_at}: loss nan; first non-finite: forward of blocks.2, operation bmm"
        write_rows(folder / "events.jsonl", [{"step": nonfinite_at, "kind": "nonfinite", "message": message}])
    return folder


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(to_json(row)) + "\n" for row in rows), encoding="utf-8")


def _rows(loss, lr, seed, steps, tokens, bits, spike, nonfinite_at) -> tuple[list[dict[str, Any]], int]:
    last = nonfinite_at or steps
    curve = loss + (INITIAL - loss) * np.exp(-np.arange(1, last + 1) / (steps / 6))
    curve += np.random.default_rng(seed).normal(0, 0.02, last)
    if spike and spike[0] < last:
        curve[spike[0] - 1] = spike[1]
    if nonfinite_at:
        curve[-1] = math.nan
    per_byte = bits if bits is not None else loss / math.log(2)
    first = {"step": 0, "tokens": 0, "val_loss": INITIAL, "val_bits_per_byte": INITIAL / math.log(2)}
    rows = [
        {"step": step, "tokens": step * tokens, "loss": float(value), "grad_norm": 1 + 1 / step, "lr": lr,
         "clipped": step % 2 == 0, "tokens_per_s": 10_000.0}
        for step, value in enumerate(curve, 1)
    ]  # fmt: skip
    final = {"step": steps, "tokens": steps * tokens, "val_loss": loss, "val_bits_per_byte": per_byte}
    return [first, *rows, *([] if nonfinite_at else [final])], last


def _telemetry(steps: int, layers: int) -> list[dict[str, Any]]:
    """As often as by default; a probe at the end."""
    names = [f"layer.{number:02}" for number in range(layers)]
    every = max(1, steps // 100)
    gradients = {name: 10.0**-number for number, name in enumerate(names)}
    tensors = {"grad_norm": {f"blocks.{n}.sublayers.attention.{p}.weight": 0.1 for n in range(layers) for p in "qkvo"}}
    rows = [{"step": step, "grad_norm": gradients, "tensors": tensors} for step in range(every, steps + 1, every)]
    heads = {f"{name}.head.{head:02}": 0.5 for name in names for head in range(4)}
    stream = {"start": 1.0, **{name: 1.0 + number for number, name in enumerate(names)}}
    probe = {"step": steps, "stream_rms": stream, "attention_entropy": heads, "attention_max_logit": heads}
    return [*rows, probe]


def plan(study: Path, *runs: Path, command: tuple[str, ...] = ("placement=pre,post",)) -> Path:
    """The file that the sweep of these runs leaves."""
    intended = []
    for run in runs:
        made = yaml.safe_load((run / "config.yaml").read_text(encoding="utf-8"))
        identity = json.loads((run / "run.json").read_text(encoding="utf-8"))
        known = {key: identity[key] for key in (*KNOWN, "origin")}
        intended.append(Intended(run.name, made, known))
    return write_intent(study, command, intended).path


CLAIM: dict[str, Any] = {
    "name": "norms", "claim": "Pre-Norm <b>beats</b> Post-Norm", "source": "nobody, 2026", "kind": "superiority",
    "tier": "cpu", "minutes": 1, "base": ["size=nano"], "arms": {"pre": ["placement=pre"], "post": ["placement=post"]},
    "contrasts": {"pre against post": {"variant": "pre", "reference": "post"}}, "lrs": [1e-3, 3e-3, 1e-2],
    "seeds": {"tuning": [100], "evaluation": [0, 1, 2]}, "margin": 0.02,
}  # fmt: skip


def heard(out: Path) -> Path:
    """The folder of a claim with all its runs but one, and its verdict."""
    studied, folder = out / "claim-norms", out / "verdicts" / "claim-norms"
    for arm, loss in (("pre", 2.0), ("post", 2.2)):
        origin = {"claim": "norms", "cell": "main", "arm": arm}
        for lr in CLAIM["lrs"]:
            fabricate(studied, placement=arm, lr=lr, seed=100, loss=loss + abs(lr - 3e-3), origin=origin)
        for seed in range(3 if arm == "pre" else 2):
            fabricate(studied, placement=arm, lr=3e-3, seed=seed, loss=loss + seed / 100, origin=origin)
    Ledger(folder / "ledger.jsonl").freeze(Claim(**CLAIM))
    judged = Superiority(0.02).judge(np.array([-0.2, -0.21, -0.19]), level=0.95).to_json()
    choice = {"lr": 3e-3, "interior": True, "grid": CLAIM["lrs"], "losses": [2.1, 2.0, 2.1]}
    finding = {"contrast": "pre against post", "seeds": [0, 1, 2], "judgement": judged, "p_holm": 0.01,
               "choices": {"pre": choice, "post": choice}, "outcomes": {}, "mcnemar_p": None, "beside": {}}  # fmt: skip
    cell = {"name": "main", "main": True, "verdict": "supported", "scope": {}, "capped": [], "findings": [finding]}
    verdict = {"verdict": "supported", "statement": CLAIM["claim"], "reason": "supported in main", "void": None,
               "scope": {"width": "64"}, "second_init": "not run", "cells": [cell]}  # fmt: skip
    (folder / "verdict.json").write_text(json.dumps(verdict), encoding="utf-8")
    check = {"name": "future", "passed": True, "sentence": "no arm sees it", "details": {}}
    passed = {"main": {"passed": True, "hash": "abc", "checks": [check], "warnings": ["clipped <often>"]}}
    (folder / "certificate.json").write_text(json.dumps(passed), encoding="utf-8")
    return folder
