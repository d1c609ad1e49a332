"""Every gradient arrives, and every seed counts."""

from __future__ import annotations

from collections.abc import Sequence

from modernllm.claims.preflight.arm import STEPS, Arm
from modernllm.claims.preflight.certificate import Check

SEED_STEPS = 3
"""Steps whose batches two seeds must draw otherwise."""
FAINT = 1e-6
"""Of the largest: a gradient that is nothing but rounding."""


def check_gradients(arms: Sequence[Arm]) -> tuple[Check, list[str]]:
    """Each trainable parameter has a gradient that is not zero in one of the first steps; experts that no token chose
    in them are told apart, and so are parameters that are not trained.
    """
    missing, warnings, counts = [], [], {}
    for arm in arms:
        norms, trained = arm.rehearsal.norms, trainable(arm)
        unvisited = tuple(f"{name}." for name in arm.rehearsal.unvisited)
        still = [name for name in trained if not any(norms[name])]
        idle = [name for name in still if unvisited and name.startswith(unvisited)]
        missing += [f"{arm.name}: {name}" for name in still if name not in idle]
        counts[arm.name] = len(trained)
        if idle:
            warnings.append(f"{arm.name}: no token of the first steps visits what owns {_few(idle)}")
        if frozen := [name for name in norms if name not in trained]:
            warnings.append(f"{arm.name}: not trained at all: {_few(frozen)}")
        largest = max(max(each) for each in norms.values())
        if faint := [name for name in trained if 0 < max(norms[name]) < FAINT * largest]:
            warnings.append(f"{arm.name}: gradients of nothing but rounding: {_few(faint)}")
    if missing:
        sentence = f"no gradient in {STEPS} steps: {_few(missing)}"
        return Check("gradients", False, sentence, {"missing": missing}), warnings
    words = ", ".join(f"{name} {count}" for name, count in counts.items())
    return Check("gradients", True, f"all parameters have one ({words})", {"parameters": counts}), warnings


def trainable(arm: Arm) -> list[str]:
    parameters = dict(arm.prepared.model.named_parameters())
    return [name for name in arm.rehearsal.norms if parameters[name].requires_grad]


def check_seeds(arms: Sequence[Arm]) -> Check:
    """Another seed gives other initial values and other batches (F-89)."""
    failures, counts = [], {}
    for arm in arms:
        other = Arm(arm.name, arm.config | {"seed": arm.config["seed"] + 1}, arm.asked)
        drawn = [name for name, start in arm.starts.items() if start.drawn]
        moved = [name for name in drawn if other.starts[name].hash != arm.starts[name].hash]
        counts[arm.name] = {"drawn": len(drawn), "moved": len(moved)}
        if len(moved) < len(drawn) or not drawn:
            left = [name for name in drawn if name not in moved]
            failures.append(f"{arm.name}: the next seed draws the same initial values of {_few(left) or 'everything'}")
        if set(arm.batches(SEED_STEPS)) & set(other.batches(SEED_STEPS)):
            failures.append(f"{arm.name}: the next seed draws the same batches")
    sentence = "; ".join(failures) or "another one draws other initial values and other batches"
    return Check("seeds count", not failures, sentence, counts)


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
