"""The usual symptoms of a run, each with what was measured, what to try, and what does not help."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median

from modernllm.runs.outcome import STALL_PROGRESS
from modernllm.runs.record import Run
from modernllm.telemetry.alarms import SIGNS
from modernllm.telemetry.derived import JUMP, loss_ratio, spike_score, time_to_divergence

CLIPPING = "trainer.clip: an infinite norm makes the factor 0, and 0 times infinity is NaN"
SOFTMAX = "subtracting the maximum before softmax: every softmax here does that already, and it changes no weight"
GROWN, SLOWED = 1.2, 0.7
"""Peak memory over that of a tenth of the run; tokens per second of the last quarter over those of the first."""
BRIEF = 1.0
"""Seconds: a quarter of a run that takes less is slow or fast by what else the machine does."""
LEAP = 1.5
"""Loss over the lowest before that noise does not reach: a healthy run of batches of 512 tokens has 1.3."""
PARTS = ("norm", "placement", "branch", "init", "qk_norm", "activation", "head", "moe")
"""Groups that only a model of our own parts has."""


@dataclass(frozen=True)
class Finding:
    """`advice` are overrides to try with the reason for each, `useless` what people try in vain."""

    symptom: str
    evidence: str
    advice: tuple[tuple[str, str], ...]
    useless: tuple[str, ...] = ()


def findings(run: Run) -> Iterator[Finding]:
    """What this run shows, the worst first; without the advice that it has followed already."""
    for symptom in SYMPTOMS:
        found = symptom(run)
        if found is not None:
            yield replace(found, advice=tuple(entry for entry in found.advice if _is_news(run, entry[0])))


def _is_news(run: Run, override: str) -> bool:
    key, _, value = override.partition("=")
    choices = run.identity["choices"]
    if key in PARTS or key.startswith("model."):
        return choices.get("family") == "decoder" and choices.get(key) != value
    section, _, name = key.partition(".")
    if key == "schedule.warmup":
        return (run.config["schedule"].get("warmup") or 0) < float(value)
    return not _equal(run.config.get(section, {}).get(name), value)


def _equal(now: object, written: str) -> bool:
    try:
        return float(str(now)) == float(written)
    except ValueError:
        return str(now).lower() == written


def non_finite(run: Run) -> Finding | None:
    event = next((event for event in run.events if event["kind"] in ("nonfinite", "skipped")), None)
    if event is None:
        return None
    step, steps = event["step"], run.config["trainer"]["steps"]
    early = step <= max(10, steps // 10)
    finite = [row for row in run.metrics if "grad_norm" in row and row["step"] < step][-3:]
    norms = ", ".join(f"{row['grad_norm']:.3g}" for row in finite)
    advice = [(f"python scripts/replay.py {run.path}", "prints the chain from the first bad operation to the loss")]
    if run.config["trainer"]["precision"] == "fp16":
        advice.append(("trainer.precision=bf16", "fp16 ends at 65504"))
    if step > 1:  # at the first the weights are those of the start, whatever the rate
        advice.append((_rate(run, 1 / 3), "a smaller rate"))
        advice += [("schedule.warmup=0.1", "the first steps are the riskiest")] * early
    else:
        advice += _smaller_init(run)
    return Finding(
        "NaN or infinity early on" if early else "NaN or infinity",
        event["message"] + (f"; gradient norms of the steps before: {norms}" if norms else ""),
        (*advice, *_steadier(run)),
        (CLIPPING, SOFTMAX),
    )


def diverged(run: Run) -> Finding | None:
    if run.outcome != "diverged":
        return None
    initial = next(row["val_loss"] for row in run.metrics if "val_loss" in row)
    since = time_to_divergence(run.losses, initial)
    when = f"; above it for good from step {since} of {len(run.losses)}" if since else ""
    advice = (*_steadier(run), (_rate(run, 1 / 3), "a smaller rate"))
    return Finding("diverged", f"{run.status['reason']}{when}", advice)


def stalled(run: Run) -> Finding | None:
    if run.outcome != "stalled":
        return None
    floors = run.identity["floors"]
    evidence = (
        f"validation loss {run.val_loss:.3f} after {run.status['step']} steps, unigram floor {floors['unigram']:.3f}: "
        f"{round(run.status['progress'], 2) + 0.0:.0%} of the way to the bigram floor, below "
        f"{STALL_PROGRESS:.0%}; little but how often each token occurs was learnt"
    )
    cosines = _last(run, "token_cosine")
    deep = [place for place in cosines if place != "start"]
    if deep and cosines[deep[-1]] > 0.9:
        evidence += f"; the tokens of a text are alike after the last layer (mean cosine {cosines[deep[-1]]:.3f})"
    useless = (
        "more steps alone: what cannot pass through the layers at the start does not pass later",
        "a smaller rate or a slower start: at no rate does it pass",
    )
    advice = (*_steadier(run), *_slower(run))
    return Finding("stuck at the unigram floor", evidence, advice, useless if _carries_nothing(run) else ())


def spikes(run: Run) -> Finding | None:
    score, ratio = spike_score(run.losses), loss_ratio(run.losses)
    if score is not None and score.steps:
        evidence = f"{len(score.steps)} loss spikes ({score.percent:.2g} % of the steps, {score.label}), first at step "
        evidence += f"{score.steps[0]}"
    elif score is None and ratio.largest > LEAP and run.outcome not in ("diverged", "nonfinite"):
        evidence = f"{ratio.jumps} loss{'es' * (ratio.jumps > 1)} above {JUMP:g} times the lowest before"
    else:
        return None
    evidence += f"; at step {ratio.step} it was {ratio.largest:.2f} times the lowest before"
    return Finding(
        "loss spikes",
        evidence,
        (
            *_steadier(run),
            (_rate(run, 1 / 3), "a smaller rate"),
            ("init=depth_scaled", "small sublayers beside a large stream (Takase et al., 2024)"),
        ),
        ("a lower trainer.clip alone: Adam divides by the size of gradients, so their scale matters little",),
    )


def gradients_by_depth(run: Run) -> Finding | None:
    rows = [row["grad_norm"] for row in run.telemetry if "grad_norm" in row][-3:]
    _, patience, sign = SIGNS["gradients_by_depth"]
    told = [sign(row, {}) for row in rows]
    if len(told) < patience or not all(told):
        return None
    deep = {place: norm for place, norm in rows[-1].items() if place.startswith("layer.") and math.isfinite(norm)}
    first, last = deep[min(deep)], deep[max(deep)]
    how = "vanish towards the input" if first < last else "explode towards the input"
    return Finding(
        f"gradients {how}",
        f"{told[-1]} in the last rows; {first:.2g} at the first layer, {last:.2g} at the last",
        (*_steadier(run), *_slower(run)),
        ("trainer.clip: it makes all layers smaller by one factor, so the ratio stays",),
    )


def attention_collapse(run: Run) -> Finding | None:
    sentence = _sign(run, "attention_collapse")
    if sentence is None:
        return None
    largest = max(_last(run, "attention_max_logit").values(), default=math.nan)
    has_norms = run.identity["choices"].get("norm") != "none"
    return Finding(
        "attention collapses",
        f"{sentence}; largest attention logit {largest:.3g}",
        (
            *_smaller_init(run),
            *[("qk_norm=head", "leaves it to the gains of a norm how large the logits are")] * has_norms,
            (_rate(run, 1 / 3), "a smaller rate"),
            ("model.attention.softcap=50", "caps them"),
        ),
        (SOFTMAX,),
    )


def dead_units(run: Run) -> Finding | None:
    sentence = _sign(run, "dead_units")
    if sentence is None:
        return None
    return Finding(
        "dead units",
        sentence,
        (
            ("activation=leaky_relu", "has a gradient below zero"),
            ("activation=gelu", "has one nearly everywhere"),
            (_rate(run, 1 / 3), "units die of large steps"),
        ),
        ("more steps: a unit that no token turns on has no gradient to come back by",),
    )


def logit_drift(run: Run) -> Finding | None:
    rows = [row["logits"] for row in run.telemetry if "logits" in row]
    sentence = SIGNS["logit_drift"][2](rows[-1], rows[0]) if rows else None
    if sentence is None:
        return None
    lost = run.outcome == "diverged"
    slow = ("trainer.z_loss=1e-4", "holds log Z near 0")
    return Finding(
        "output logits drift",
        sentence,
        (
            *[slow] * (not lost),
            ("optimizer.weight_decay=0.1", "shrinks the head"),
            ("head=softcapped", "bounds the logits"),
            (_rate(run, 1 / 3), "a smaller rate"),
        ),
        ("trainer.z_loss alone: it is made for a slow drift, and is too weak once the loss is lost",)
        if lost
        else ("trainer.clip: the drift is slow, and no step of it is large",),
    )


def idle_experts(run: Run) -> Finding | None:
    sentence = _sign(run, "idle_experts")
    if sentence is None:
        return None
    return Finding(
        "idle experts",
        sentence,
        (
            ("model.moe.balance=0.1", "a stronger balance loss"),
            ("moe=topk_lossfree", "balances by a bias after each step"),
        ),
    )


def memory_grows(run: Run) -> Finding | None:
    peaks = [(row["step"], row["memory"]["peak_mb"]) for row in run.telemetry if "memory" in row]
    begun = [(step, peak) for step, peak in peaks if step >= len(run.losses) // 10]
    if len(begun) < 4:
        return None
    (first, low), (half, middle), (last, high) = begun[0], begun[len(begun) // 2], begun[-1]
    if not (high > GROWN * low and high > middle):
        return None
    return Finding(
        "memory grows",
        f"peak memory {low:.0f} MB at step {first}, {middle:.0f} MB at step {half}, {high:.0f} MB at step {last}",
        (
            (
                "trainer.profile=true",
                "shows what is taken; a module that keeps tensors of each step should detach or drop them",
            ),
        ),
        ("a smaller trainer.micro_batch: it puts the end off, and what grows still grows",),
    )


def slows_down(run: Run) -> Finding | None:
    rows = [row for row in run.metrics if row.get("tokens_per_s", 0) > 0]
    speeds, quarter = [row["tokens_per_s"] for row in rows], len(rows) // 4
    if quarter < 5 or (rows[-1]["tokens"] - rows[-quarter]["tokens"]) / speeds[-1] < BRIEF:
        return None
    before, after = median(speeds[:quarter]), median(speeds[-quarter:])
    if after > SLOWED * before:
        return None
    return Finding(
        "steps get slower",
        f"{before:,.0f} tokens/s in the first quarter, {after:,.0f} in the last",
        (
            ("trainer.profile=true", "names the ten hottest operations"),
            ("trainer.threads=1", "where other jobs share the cores"),
        ),
    )


SYMPTOMS: tuple[Callable[[Run], Finding | None], ...] = (
    non_finite, diverged, stalled, gradients_by_depth, attention_collapse, spikes, logit_drift, dead_units,
    idle_experts, memory_grows, slows_down,
)  # fmt: skip


def _last(run: Run, series: str) -> dict[str, float]:
    return next((row[series] for row in reversed(run.telemetry) if series in row), {})


def _sign(run: Run, about: str) -> str | None:
    """The sentence that the last rows deserve, if enough of them agree."""
    series, patience, sign = SIGNS[about]
    rows = [row[series] for row in run.telemetry if series in row][-patience:]
    told = [sign(row, {}) for row in rows]
    return told[-1] if len(told) == patience and all(told) else None


def _rate(run: Run, factor: float) -> str:
    return f"optimizer.lr={run.config['optimizer']['lr'] * factor:.2g}"


def _steadier(run: Run) -> tuple[tuple[str, str], ...]:
    """What carries the stream from layer to layer, by what is wrong with that of this run."""
    reasons = {
        "no_residual": "nothing is carried past a sublayer: every layer loses what the one before knew",
        "none": "without norms the stream grows from layer to layer",
        "post": "the gradient has to pass every norm; it needs a warm-up and a small rate, deep ones more so",
    }
    choices = run.identity["choices"]
    placement, found = choices.get("placement"), []
    if placement in reasons:
        found.append(("placement=pre", reasons[placement]))
    elif choices.get("norm") == "none":
        found.append(("norm=rmsnorm", reasons["none"]))
    if placement == "none" or choices.get("norm") == "none":
        found.append(("branch=rezero", "every layer starts as the identity: made to do without norms"))
    return tuple(found)


def _carries_nothing(run: Run) -> bool:
    return run.identity["choices"].get("placement") == "no_residual"


def _slower(run: Run) -> tuple[tuple[str, str], ...]:
    """Of no use where nothing passes at any rate."""
    if _carries_nothing(run):
        return ()
    return ("schedule.warmup=0.3", "a slower start"), (_rate(run, 1 / 3), "a smaller rate")


def _smaller_init(run: Run) -> tuple[tuple[str, str], ...]:
    """Where one standard deviation for layers of any width is too large for those of this run."""
    if run.identity["choices"].get("init") != "normal":
        return ()
    times = run.config["init"]["base"] * math.sqrt(run.config["model"]["dim"])
    why = f"now the weights are {times:.0f} times as large as keeps a layer's output the size of its input"
    return (("init=fanin", why),) if times > 2 else ()
