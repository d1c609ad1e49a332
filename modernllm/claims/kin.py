"""Claims of other names that test the same: a claim file that is renamed does not lose its history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from modernllm.claims.ledger import Ledger
from modernllm.claims.power import floor_key
from modernllm.claims.study import Study
from modernllm.runs.identity import digest


def subject(study: Study) -> list[str]:
    """What is compared, in the main cells, whatever it is called and however its overrides are spelled: a hash for each
    contrast, of its arms without seed and learning rate. None where nothing is trained.
    """
    claim, found = study.claim, set()
    for cell in [name for name, of in claim.cells.items() if of.main and not claim.untrained]:
        arms = {arm: floor_key(study.planned(cell, arm).config) for arm in claim.arms}
        found |= {_of(arms, contrast.arms) for contrast in claim.contrasts.values()}
    return sorted(found)


def _of(arms: Mapping[str, Any], names: Sequence[str]) -> str:
    return digest(sorted(str(arms[name]) for name in names))[:16]


def kin(folder: Path, study: Study) -> list[dict[str, Any]]:
    """Versions of other claims, in the folders beside this one, with the same sentence or the same arms: name, hash,
    what is the same, and the last thing that was said. ValueError where a ledger is damaged.
    """
    ours, found = subject(study), []
    kind = study.name.removesuffix(study.claim.name)  # toys and claims are apart
    for path in sorted(folder.parent.glob(f"{kind}*/ledger.jsonl")):
        if path.parent.name != folder.name:
            found += _like(Ledger(path), study.claim.claim, set(ours))
    return found


def _like(ledger: Ledger, sentence: str, ours: set[str]) -> list[dict[str, Any]]:
    found = []
    for row in ledger.frozen():
        shared = [
            word
            for word, same in (
                ("sentence", _plain(row["content"]["claim"]) == _plain(sentence)),
                ("arms", bool(ours & set(row.get("subject", [])))),
            )
            if same
        ]
        if shared:
            said = ledger.last_said(row["hash"])
            found.append({"claim": row["claim"], "hash": row["hash"], "same": " and ".join(shared), "said": said})
    return found


def _plain(sentence: str) -> str:
    return " ".join(sentence.lower().split()).rstrip(".")
