"""What is known of a claim's cells before any run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from test_flow import BASE, claim

from modernllm.claims.study import Study


def test_a_scope_says_what_sets_the_cells_apart(tmp_path: Path) -> None:
    """In every cell: a cell with another start and another QK norm is no second initialisation of the main one."""
    cells: dict[str, Any] = {
        "main": {"main": True},
        "std 0.02": {"overrides": ["init=normal"]},
        "both": {"overrides": ["init=normal", "qk_norm=head"]},
        "capped": {"overrides": ["attention.softcap=30.0", "schedule.warmup=0.0"]},
    }
    study = Study(claim(base=BASE, cells=cells), [f"out={tmp_path}"])
    main = study.scope("main")
    assert (main["width"], main["steps"], main["init"], main["qk_norm"]) == ("32", "100", "fanin", "none")
    apart = {name: {key: value for key, value in study.scope(name).items() if main[key] != value} for name in cells}
    assert apart == {
        "main": {},
        "std 0.02": {"init": "normal"},
        "both": {"init": "normal", "qk_norm": "head"},
        "capped": {"attention.softcap": "30.0", "schedule.warmup": "0.0"},
    }
