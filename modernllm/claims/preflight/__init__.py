"""Before any training: what must differ between arms does, what must be equal is, and no arm cheats or is broken."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from modernllm.claims.apart import Apart
from modernllm.claims.preflight.apart import check_apart
from modernllm.claims.preflight.arm import Arm, undisturbed
from modernllm.claims.preflight.certificate import Certificate, Check
from modernllm.claims.preflight.confounders import confounders
from modernllm.claims.preflight.differ import check_alive, check_configurations, check_switches
from modernllm.claims.preflight.equal import check_facts, check_shared_starts
from modernllm.claims.preflight.future import check_future
from modernllm.claims.preflight.reach import check_gradients, check_seeds
from modernllm.sweep.plan import Planned

__all__ = ["Certificate", "Check", "preflight"]


def preflight(
    arms: Mapping[str, Planned],
    unlike: Collection[str] = (),
    grids: Mapping[str, Sequence[float]] | None = None,
    held_out: Mapping[str, Apart] | None = None,
) -> Certificate:
    """Hold every arm against the first one. `unlike` are keys that may differ although no arm sets them itself;
    `grids` the learning rates that each arm is run at, `held_out` the windows that choose one of them and that judge
    it. ValueError for fewer than two arms, or one that cannot be built. The caller's random state stays as it is.
    """
    if len(arms) < 2:
        raise ValueError(f"{len(arms)} arm: a comparison has two or more")
    with undisturbed():
        made = [Arm(name, planned.config, planned.asked) for name, planned in arms.items()]
        return _certificate(made, tuple(unlike), grids or {}, held_out or {})


def _certificate(
    arms: list[Arm],
    unlike: tuple[str, ...],
    grids: Mapping[str, Sequence[float]],
    held_out: Mapping[str, Apart],
) -> Certificate:
    alive, rounding = check_alive(arms)
    switches, idle = check_switches(arms)
    gradients, faint = check_gradients(arms)
    checks = [
        check_configurations(arms),
        alive,
        switches,
        *check_facts(arms, unlike),
        check_shared_starts(arms),
        check_future(arms),
        gradients,
        check_seeds(arms),
        *([check_apart(held_out)] if held_out else []),
    ]
    warnings = [*rounding, *idle, *faint, *confounders(arms, grids)]
    return Certificate({arm.name: arm.hash for arm in arms}, unlike, tuple(checks), tuple(warnings))
