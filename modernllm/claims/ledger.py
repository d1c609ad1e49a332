"""What a claim has said over time: every version of its file that was run, and every verdict, in one growing file."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modernllm.claims.claim import Claim
from modernllm.runs.directory import read_rows


@dataclass(frozen=True)
class Ledger:
    """`path` is a JSON-lines file beside the verdict; nothing in it is ever changed."""

    path: Path

    def freeze(self, claim: Claim) -> None:
        """Write down a version before its first run; a version that is there already stays as it is."""
        if claim.hash not in {row["hash"] for row in self._rows("frozen")}:
            self._append("frozen", claim, content=claim.model_dump(mode="json"))

    def record(self, claim: Claim, verdict: dict[str, Any]) -> None:
        kept = ("verdict", "reason", "line", "void")
        self._append("verdict", claim, **{key: verdict[key] for key in kept})

    def versions(self, claim: Claim) -> list[dict[str, Any]]:
        """Every version in the order in which it was frozen: its number, hash, whether it is this one, and the last
        thing that it said (None if it never came to a verdict).
        """
        said = {row["hash"]: row["verdict"] for row in self._rows("verdict")}
        return [
            {"version": number, "hash": row["hash"], "this": row["hash"] == claim.hash, "said": said.get(row["hash"])}
            for number, row in enumerate(self._rows("frozen"), 1)
        ]

    def _rows(self, event: str) -> list[dict[str, Any]]:
        return [row for row in read_rows(self.path) if row["event"] == event]

    def _append(self, event: str, claim: Claim, **details: Any) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        row = {"event": event, "time": time.time(), "claim": claim.name, "hash": claim.hash, **details}
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, allow_nan=False) + "\n")


def earlier(versions: list[dict[str, Any]]) -> list[str]:
    """A sentence for every other version of the claim: what is read now was not the first attempt."""
    others = [version for version in versions if not version["this"]]
    return [
        f"version {version['version']} ({version['hash']}) "
        + (f"said {version['said']}" if version["said"] else "came to no verdict")
        for version in others
    ]
