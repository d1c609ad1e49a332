"""Who made the runs that a claim rests on: which version of it, which code, which machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from modernllm.runs.record import Run


@dataclass(frozen=True)
class Provenance:
    """Of so many runs: how many were made for another version of the claim, and how many by each maker."""

    number: int
    others: int
    makers: Mapping[str, int]

    @classmethod
    def of(cls, runs: Sequence[Run], version: str) -> Provenance:
        others = sum(run.identity.get("origin", {}).get("hash") != version for run in runs)
        return cls(len(runs), others, Counter(maker(run.identity) for run in runs))

    @property
    def lines(self) -> list[str]:
        """What a reader should know; nothing where all is as it should be."""
        lines = []
        if self.others:
            lines.append(
                f"{self.others} of {self.number} runs were not made for this version of the claim, but before it"
            )
        if len(self.makers) > 1:
            lines.append(f"! the runs were made by {len(self.makers)} states of the code: {'; '.join(self.makers)}")
        return lines

    def to_json(self) -> dict[str, Any]:
        return {"number": self.number, "not made for this version": self.others, "code": dict(self.makers)}


def maker(identity: Mapping[str, Any]) -> str:
    """Commit, the hash of the source where it was another than the commit's, torch, and the kind of processor."""
    code, versions = identity.get("code") or {}, identity.get("versions") or {}
    clean = code.get("commit") and not code.get("dirty")
    source = f" with changes {identity['source'][:8]}" if identity.get("source") and not clean else ""
    torch = f", torch {versions['torch']}" if versions.get("torch") else ""
    machine = (identity.get("machine") or {}).get("processor")
    return f"{str(code.get('commit'))[:10]}{source}{torch}{f', {machine}' if machine else ''}"


def require_common_makers(cell: str, runs: Mapping[str, Sequence[Run]]) -> None:
    """`runs` by arm. ValueError where two arms were made by makers that have nothing in common: what differs between
    them may be the code.
    """
    makers = {arm: {maker(run.identity) for run in made} for arm, made in runs.items()}
    for one, other in combinations(makers, 2):
        if not makers[one] & makers[other]:
            words = " and ".join(f"{arm} ({'; '.join(sorted(makers[arm]))})" for arm in (one, other))
            raise ValueError(
                f"{cell}: all runs of {words} were made by other code, which may be what differs; delete those of one "
                "arm, and the same command makes them again"
            )
