"""What a claim has said over time: every version of its file that was run, and every verdict, in one growing file."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modernllm.claims.claim import Claim
from modernllm.runs.directory import read_rows, writing


@dataclass(frozen=True)
class Ledger:
    """`path` is a JSON-lines file beside the verdict; nothing in it is ever changed."""

    path: Path

    def freeze(self, claim: Claim, looks: Sequence[int] = (), subject: Sequence[str] = ()) -> None:
        """Write down a version, and what is compared in it, before its first run; one that is there already stays as it
        is. ValueError for other looks than it was frozen with: each look's level pays for those that were planned, and
        for no more.
        """
        before = [row for row in self._rows("frozen") if row["hash"] == claim.hash]
        if not before:
            content = claim.model_dump(mode="json")
            self._append("frozen", claim, looks=list(looks), subject=list(subject), content=content)
        elif before[0].get("looks", []) != list(looks):
            first = ",".join(map(str, before[0].get("looks", [])))
            raise ValueError(
                f"looks={','.join(map(str, looks)) or 'none'}: this version of {claim.name} was begun with "
                f"looks={first or 'none'} ({self.path}), and the levels pay for those looks alone; go on with them, "
                "or name new evaluation seeds"
            )

    def record(self, claim: Claim, verdict: dict[str, Any]) -> None:
        kept = ("verdict", "reason", "line", "void")
        self._append("verdict", claim, **{key: verdict[key] for key in kept})

    def looked(self, claim: Claim, seeds: int) -> None:
        """At so many seeds, without a decision."""
        self._append("look", claim, seeds=seeds)

    def versions(self, claim: Claim) -> list[dict[str, Any]]:
        """Every version in the order in which it was frozen: its number, hash, whether it is this one, the last thing
        that it said (None if it never came to a verdict), and at how many seeds it was looked at without one.
        """
        said = {row["hash"]: row["verdict"] for row in self._rows("verdict")}
        looked = {row["hash"]: {"looked at": row["seeds"]} for row in self._rows("look")}
        return [
            {"version": number, "hash": row["hash"], "this": row["hash"] == claim.hash, "said": said.get(row["hash"])}
            | looked.get(row["hash"], {})
            for number, row in enumerate(self._rows("frozen"), 1)
        ]

    def said(self, claim: Claim) -> list[str]:
        """The words that this very version came to so far, in their order."""
        return [row["verdict"] for row in self._rows("verdict") if row["hash"] == claim.hash]

    def frozen(self) -> list[dict[str, Any]]:
        """The rows of all versions, whole."""
        return self._rows("frozen")

    def last_said(self, version: str) -> str | None:
        """By the hash of a version."""
        return next((row["verdict"] for row in reversed(self._rows("verdict")) if row["hash"] == version), None)

    def _rows(self, event: str) -> list[dict[str, Any]]:
        """ValueError where the file is damaged: what a claim said before is not to be guessed."""
        try:
            return [row for row in read_rows(self.path) if row["event"] == event]
        except (ValueError, KeyError) as error:
            place = str(error).partition(";")[0]
            raise ValueError(f"{self.path} is damaged, and with it the history of the claim: {place}") from None

    def _append(self, event: str, claim: Claim, **details: Any) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        row = {"event": event, "time": time.time(), "claim": claim.name, "hash": claim.hash, **details}
        with writing(self.path):
            self._drop_torn_line()
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row, allow_nan=False) + "\n")

    def _drop_torn_line(self) -> None:
        """Of a writer that was killed, or found the disk full: the next line would be torn with it."""
        if self.path.exists():
            text = self.path.read_bytes()
            os.truncate(self.path, text.rfind(b"\n") + 1)
