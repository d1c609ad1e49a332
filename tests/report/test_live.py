"""A sweep while it runs, on a terminal and in a log."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rich.console

from modernllm.executor import Ended
from modernllm.preparation import Asked
from modernllm.report import live as module
from modernllm.report.live import LiveTable
from modernllm.runs.directory import RunDirectory
from modernllm.sweep.plan import Planned


def planned(folder: Path, steps: int = 10, **overrides: str) -> Planned:
    config: dict[str, Any] = {"trainer": {"steps": steps, "batch_size": 4}, "model": {"context_length": 32}}
    name = "-".join(overrides.values())
    asked = Asked({}, {}, {"size": "nano", **overrides})
    return Planned(config, asked, name, folder / name, {}, {})


def at_step(run: Planned, step: int, loss: float = 2.5) -> None:
    run.path.mkdir(exist_ok=True)
    rows = [{"step": s, "loss": loss, "grad_norm": 1.0, "tokens_per_s": 64.0} for s in range(1, step + 1)]
    rows.append({"step": step, "val_loss": 2.0})
    (run.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 99, "gr')


def done(run: Planned, **status: Any) -> None:
    run.path.mkdir(exist_ok=True)
    RunDirectory(run.path).mark("finished", **status)


def shown(live: LiveTable, width: int = 100) -> str:
    """The table as it stands."""
    console = rich.console.Console(file=io.StringIO(), width=width)
    console.print(live._table())
    return console.file.getvalue()  # type: ignore[attr-defined]


@pytest.fixture(autouse=True)
def no_time_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that stops for some seconds would have the table tell how many are left."""
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 0.0))


@pytest.fixture
def runs(tmp_path: Path) -> list[Planned]:
    return [planned(tmp_path, norm=norm, seed=seed) for norm in ("[bold]", "none") for seed in "01"]


def test_a_log_has_a_line_for_what_happens(runs: list[Planned], monkeypatch: pytest.MonkeyPatch) -> None:
    console = rich.console.Console(file=io.StringIO(), width=40)
    with LiveTable(runs, 3, console) as live:
        live.started(runs[0])
        live.started(runs[1])
        live.tick()
        monkeypatch.setattr(module, "LOG_SECONDS", -1.0)
        at_step(runs[0], 4)
        live.tick()
        done(runs[0], outcome="ok", val_loss=1.25)
        live.ended(runs[0], Ended(0, ""))
        live.ended(runs[1], Ended(-9, "killed by SIGKILL: by hand\nor for want of memory"))
        live.started(runs[2])
        live.waiting(runs[2], "another process is at work on it")
        live.ended(runs[2], Ended(143, ""))
        done(runs[3], outcome="nonfinite", val_loss="NaN")
        live.ended(runs[3], Ended(4, ""))
    assert console.file.getvalue().splitlines() == [  # type: ignore[attr-defined]
        "start  norm=[bold] seed=0",
        "start  norm=[bold] seed=1",
        "       norm=[bold] seed=0  step 4/10  loss 2.500  12 s left",
        "       norm=[bold] seed=1  starting",
        "end    norm=[bold] seed=0: ok  val loss 1.250  (1 ok, 1 running, 2 to go, 3 done before)",
        "end    norm=[bold] seed=1: failed  killed by SIGKILL: by hand  (1 ok, 1 failed, 0 running, 2 to go, "
        "3 done before)",
        "start  norm=none seed=0",
        "norm=none seed=0: waits, another process is at work on it",
        "end    norm=none seed=0: interrupted  (1 ok, 1 failed, 1 interrupted, 0 running, 1 to go, 3 done before)",
        "end    norm=none seed=1: nonfinite  val loss nan  (1 ok, 1 failed, 1 interrupted, 1 nonfinite, 0 running, "
        "0 to go, 3 done before)",
    ]
    assert live.reasons[runs[1].path] == ("failed", "killed by SIGKILL: by hand\nor for want of memory")
    assert live.reasons[runs[0].path] == ("ok", "")


def test_a_terminal_has_a_table_that_goes_away(runs: list[Planned]) -> None:
    console = rich.console.Console(file=io.StringIO(), width=100, force_terminal=True, highlight=False)
    with LiveTable(runs, 0, console) as live:
        live.started(runs[0])
        at_step(runs[0], 4)
        live.tick()
        live.waiting(runs[1], "another process is at work on it")
    told = console.file.getvalue()  # type: ignore[attr-defined]
    assert "step 4/10" in told
    assert "norm=[bold] seed=1: waits, another process is at work on it" in told
    assert "\x1b[2K" in told  # what stood there is wiped


def test_the_table_of_a_terminal(runs: list[Planned]) -> None:
    live = LiveTable(runs, 1, rich.console.Console(file=io.StringIO(), width=100, force_terminal=True))
    done(runs[0], outcome="ok", val_loss=1.25)
    live.started(runs[0])
    live.ended(runs[0], Ended(0, ""))
    live.started(runs[1])
    at_step(runs[1], 4, loss=float("nan"))
    assert [re.sub(" +", " ", line).strip() for line in shown(live).splitlines()] == [
        "norm=[bold] seed=0 ok val loss 1.250",
        "norm=[bold] seed=1 step 4/10 loss nan 12 s left",
        "1 ok, 1 running, 2 to go, 1 done before",
    ]
    assert max(map(len, shown(live, 40).splitlines())) <= 40
    assert len(shown(live, 40).splitlines()) == 3  # a run stays one line
    for _ in range(30):
        live.finished.append((runs[0], "ok", ""))
    assert shown(live).count("seed=0") == module.RECENT


def test_the_time_left_is_told_by_tokens(runs: list[Planned], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now))
    live = LiveTable(runs, 0, rich.console.Console(file=io.StringIO()))
    for run in runs[:2]:
        live.started(run)
    at_step(runs[1], 5)
    now = 60.0
    assert live._counts() == "2 running, 2 to go"  # no run has ended: what a start costs is not known
    done(runs[0], outcome="ok", val_loss=1.0)
    live.ended(runs[0], Ended(0, ""))
    assert live._counts() == "1 ok, 1 running, 2 to go, about 2 min left"  # 60 s for 1.5 runs, 2.5 are left
    now = 5.0
    assert live._counts() == "1 ok, 1 running, 2 to go"


def test_one_run_has_its_own_name(tmp_path: Path) -> None:
    run = planned(tmp_path, norm="none")
    assert LiveTable([run], 0, rich.console.Console(file=io.StringIO())).names == {run.path: "none"}


def test_two_studies_of_one_run_are_two(tmp_path: Path) -> None:
    one, other = planned(tmp_path / "a", seed="0"), planned(tmp_path / "b", seed="0")
    (tmp_path / "a").mkdir()
    live = LiveTable([one, other], 0, rich.console.Console(file=io.StringIO()))
    live.started(one)
    live.started(other)
    assert len(live.running) == 2
    done(one, outcome="ok", val_loss=1.0)
    live.ended(one, Ended(0, ""))
    live.ended(other, Ended(1, "no room"))
    assert live.reasons == {one.path: ("ok", ""), other.path: ("failed", "no room")}


@pytest.mark.parametrize(
    ("status", "code", "word"),
    [
        ({"status": "finished", "outcome": "diverged"}, 0, "diverged"),
        ({"status": "finished", "outcome": None}, 0, "undecided"),
        ({"status": "finished", "outcome": "nonfinite"}, 4, "nonfinite"),
        ({"status": "finished", "outcome": "ok"}, 1, "failed"),  # an older record of a run that could not start again
        ({"status": "interrupted"}, 0, "failed"),
        ({"status": "interrupted"}, 44, "failed"),
        ({"status": "interrupted"}, 200, "failed"),
        ({"status": "interrupted"}, -9, "failed"),
        ({"status": "interrupted"}, 143, "interrupted"),
        ({"status": "interrupted"}, -2, "interrupted"),
        ({"status": "failed"}, 1, "failed"),
        ({}, 1, "failed"),
    ],
)
def test_how_a_run_ended(status: dict[str, Any], code: int, word: str) -> None:
    """F-86."""
    assert module.how_it_ended(status, Ended(code, "")) == word
