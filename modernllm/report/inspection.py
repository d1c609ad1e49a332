"""The story of one run: how it ended, its curve, what it looks like by depth, what happened, and what to try."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from modernllm.report.summary import result
from modernllm.report.symptoms import Finding, findings
from modernllm.report.table import sparkline
from modernllm.runs.record import Run
from modernllm.telemetry.derived import loss_ratio, noise_scale, spike_score

BY_DEPTH = (
    ("gradient norm", "grad_norm"),
    ("weight norm", "weight_norm"),
    ("update / weight", "update_ratio"),
    ("stream RMS", "stream_rms"),
    ("cosine of two tokens", "token_cosine"),
    ("effective rank", "effective_rank"),
    ("attention entropy", "attention_entropy"),
    ("largest attention logit", "attention_max_logit"),
    ("dead units", "units_dead"),
    ("idle experts", "router_idle"),
)
EVENTS = 12


def story(run: Run) -> Iterator[str]:
    """Line by line."""
    yield run.run_id
    ended = run.status.get("status") in ("finished", "interrupted")
    told = list(result(run)) if ended else [f"status: {run.word}"]
    yield from told
    yield from curve(run)
    yield from profile(run)
    yield from happened([event for event in run.events if f"! {event['message']}" not in told])
    yield from advice(list(findings(run)), told)
    yield from speed(run)


def curve(run: Run) -> Iterator[str]:
    if not run.losses:
        return
    ratio, score = loss_ratio(run.losses), spike_score(run.losses)
    spikes = "too short for a spike score" if score is None else f"{score.percent:.2g} % spikes ({score.label})"
    if math.isfinite(ratio.largest):
        yield f"largest loss over the lowest before: {ratio.largest:.2f} at step {ratio.step}; {spikes}"
    scale = noise_scale(run.telemetry)
    if math.isfinite(scale):
        yield f"gradient noise scale: about {scale:,.0f} tokens"


def profile(run: Run) -> Iterator[str]:
    """The last row of each series from the first layer to the last, on a log scale."""
    lines = [(name, values) for name, series in BY_DEPTH if (values := by_layer(run, series))]
    n_layers = max((len(values) for _, values in lines), default=0)
    if lines:
        yield ""
        yield "by depth, from the first layer to the last, at the end:"
    for name, values in lines:
        finite = [value for value in values if math.isfinite(value)]
        some = f"  (of {len(values)} of {n_layers} layers)" if len(values) < n_layers else ""
        ends = f"{values[0]:.3g} → {values[-1]:.3g}{some}"
        positive = [value for value in finite if value > 0]
        if not positive:
            yield f"  {name:<24} {ends}"
            continue
        low, high = math.log10(min(positive)), math.log10(max(positive))
        middle, half = (low + high) / 2, max((high - low) / 2, 0.5)  # a decade at least, so that noise stays flat
        logs = [math.log10(value) if value > 0 else middle - half if value == 0 else math.nan for value in values]
        yield f"  {name:<24} {sparkline(logs, middle - half, middle + half, len(logs))} {ends}"


def by_layer(run: Run, series: str) -> list[float]:
    """Of the last row that has it; the mean over a layer's heads or experts."""
    row = next((row[series] for row in reversed(run.telemetry) if series in row), {})
    layers: dict[str, list[float]] = {}
    for place, value in row.items():
        if place.startswith("layer."):
            layers.setdefault(".".join(place.split(".")[:2]), []).append(value)
    return [sum(values) / len(values) for values in layers.values()]


def happened(events: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if events:
        yield ""
        yield "events:"
    for event in events[:EVENTS]:
        yield f"  step {event['step']:>5}  {event['kind']}: {event['message']}"
    if len(events) > EVENTS:
        yield f"  and {len(events) - EVENTS} more in events.jsonl"


def advice(found: Sequence[Finding], told: Sequence[str]) -> Iterator[str]:
    """Evidence that stands among the lines `told` is not said again."""
    yield ""
    if not found:
        yield "no symptom was found"
    for finding in found:
        yield f"symptom: {finding.symptom}"
        yield f"  measured: {'as said above' if f'! {finding.evidence}' in told else finding.evidence}"
        yield from (f"  try {what}: {why}" for what, why in finding.advice)
        yield from (f"  does not help: {what}" for what in finding.useless)


def speed(run: Run) -> Iterator[str]:
    speeds = [row["tokens_per_s"] for row in run.metrics if "tokens_per_s" in row]
    peaks = [row["memory"]["peak_mb"] for row in run.telemetry if "memory" in row]
    if speeds and peaks:
        yield ""
        yield f"{median(speeds):,.0f} tokens/s, peak memory {peaks[-1]:,.0f} MB"
    if (hottest := run.path / "profile.txt").exists():
        yield "hottest operations (trainer.profile=true):"
        yield from (f"  {line}" for line in hottest.read_text(encoding="utf-8").splitlines())
