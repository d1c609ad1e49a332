"""What a preflight found, check by check, and of what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from modernllm.runs.directory import to_json
from modernllm.runs.identity import digest


@dataclass(frozen=True)
class Check:
    """`details` are the numbers behind the sentence."""

    name: str
    passed: bool
    sentence: str
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def line(self) -> str:
        return f"{'ok     ' if self.passed else 'REFUSED'} {self.name}: {self.sentence}"


@dataclass(frozen=True)
class Certificate:
    """Arms may be trained and compared if it `passed`; `warnings` are what may explain a difference beside the claim.

    `arms` has the hash of every arm's scientific configuration, data included.
    """

    arms: Mapping[str, str]
    unlike: tuple[str, ...]
    checks: tuple[Check, ...]
    warnings: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return all(check.passed for check in self.checks)

    @property
    def refusals(self) -> list[Check]:
        return [check for check in self.checks if not check.passed]

    @property
    def hash(self) -> str:
        """Of what is certified: the arms by name, and what they were allowed to differ in."""
        return digest([dict(self.arms), sorted(self.unlike)])[:16]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; non-finite numbers as the strings that run records have."""
        return to_json(
            {
                "passed": self.passed,
                "hash": self.hash,
                "arms": dict(self.arms),
                "unlike": list(self.unlike),
                "checks": [asdict(check) for check in self.checks],
                "warnings": list(self.warnings),
            }
        )

    def lines(self) -> list[str]:
        """One for each check, then those of `summary`."""
        return [*(check.line for check in self.checks if check.passed), *self.summary()]

    def summary(self) -> list[str]:
        """What was refused, then the warnings, then the word."""
        word = f"passed, {len(self.checks)} checks"
        if self.refusals:
            names = ", ".join(check.name for check in self.refusals)
            word = f"refused, {len(self.refusals)} of {len(self.checks)} checks: {names}"
        warnings = [f"note    {warning}" for warning in self.warnings]
        return [*(check.line for check in self.refusals), *warnings, f"preflight {word} ({self.hash})"]
