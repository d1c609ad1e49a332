"""`trainer.profile=true`: a trace and the hottest operations, and the same training."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from models import tiny
from running import fit, metrics, trainer


@pytest.mark.filterwarnings("ignore")  # the profiler's own, of what a machine lacks
def test_five_steps_are_profiled(tmp_path: Path) -> None:
    fit(trainer(tmp_path / "plain", tiny(), steps=12))
    fit(trainer(tmp_path / "profiled", tiny(), steps=12, profile=True))
    assert metrics(tmp_path / "profiled") == metrics(tmp_path / "plain")
    table = (tmp_path / "profiled" / "profile.txt").read_text().splitlines()
    rows = [line.split() for line in table if line.strip().startswith(("aten::", "Optimizer", "autograd"))]
    assert 5 <= len(rows) <= 10
    assert any(row[0] == "aten::mm" for row in rows)
    with gzip.open(tmp_path / "profiled" / "profile.json.gz") as file:
        trace = json.load(file)
    assert sum(event["name"].startswith("ProfilerStep") for event in trace["traceEvents"]) >= 5
    assert not (tmp_path / "plain" / "profile.txt").exists()
