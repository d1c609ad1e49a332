"""A suite: claims that are put to the test together, and the known effects that its rig has to see first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from modernllm.claims.claim import Claim, Part, load_claim
from modernllm.config.nearest import did_you_mean
from modernllm.config.tree import CONFIG_DIR


class Suite(Part):
    """One file of `configs/suite/`. Every one of `controls` is a claim that has to come out supported, or none of
    `claims` is believed.
    """

    name: str
    controls: list[str]
    claims: list[str]

    def load_controls(self) -> list[Claim]:
        return [load_claim(name) for name in self.controls]

    def load(self) -> list[Claim]:
        return [load_claim(name) for name in self.claims]


def suites() -> list[str]:
    return sorted(path.stem for path in (CONFIG_DIR / "suite").glob("*.yaml"))


def load_suite(name: str) -> Suite:
    """ValueError names the suites that there are."""
    path = Path(CONFIG_DIR) / "suite" / f"{name}.yaml"
    if name not in suites():
        raise ValueError(f"suite={name}: no such suite{did_you_mean(name, suites())}; there are {', '.join(suites())}")
    content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return Suite(name=name, **content)
