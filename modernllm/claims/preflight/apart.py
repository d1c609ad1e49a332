"""What chooses a learning rate is not what judges it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict

from modernllm.claims.apart import Apart
from modernllm.claims.preflight.certificate import Check


def check_apart(held_out: Mapping[str, Apart]) -> Check:
    """For every arm there are windows for both, and no token is in both."""
    details = {name: asdict(apart) for name, apart in held_out.items()}
    faults = [f"{name}: {apart.sentence}" for name, apart in held_out.items() if not apart.holds]
    if faults:
        way = "leave trainer.held_out to the claim: tuning for runs that choose, evaluation for those that are judged"
        return Check("held out", False, f"{'; '.join(faults)}; {way}", details)
    sentences = dict.fromkeys(apart.sentence for apart in held_out.values())
    return Check("held out", True, "; ".join(sentences), details)
