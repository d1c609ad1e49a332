"""What a person sees: curves, tables, progress, and what to try next."""

from __future__ import annotations

import io
import math
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import rich.console
from running import prepare

from modernllm import checkpoint
from modernllm.config.check import check
from modernllm.config.command import expand
from modernllm.config.compose import CONFIG_DIR, compose, default_choices
from modernllm.config.tree import read_tree
from modernllm.logger import LocalLogger
from modernllm.report import console as module
from modernllm.report.console import Console
from modernllm.report.summary import epilogue, opening, result, suggestions
from modernllm.report.table import Row, by_depth, names, sparkline, sweep_suggestions, sweep_table
from modernllm.runs.directory import RunDirectory
from modernllm.runs.record import Run
from modernllm.runs.recorder import Recorder


def made(losses: list[float], val_loss: float = 2.0, **changed: Any) -> Run:
    """A finished run of this training curve."""
    overrides = changed.pop("overrides", {})
    choices = {key: value or "" for key, value in default_choices().items()} | changed.pop("choices", {})
    gradients = changed.pop("gradients", [])
    rows = [{"step": step, "loss": loss, "grad_norm": 1.0} for step, loss in enumerate(losses, 1)]
    watched = [{"step": step, "grad_norm": norms} for step, norms in enumerate(gradients, 1)]
    rows += [{"step": len(losses), "val_loss": val_loss}] if math.isfinite(val_loss) else []
    status = {
        "status": "finished", "outcome": "ok", "reason": "because", "progress": 0.5, "tokens": 1234567,
        "tokens_per_s": 8900.4, "clipped_share": 0.254, "val_bits_per_byte": 2.885, "step": len(losses),
        "skipped_steps": 0, "sample": "\n  one\ntwo\n",
    }  # fmt: skip
    return Run(
        path=changed.pop("path", Path("runs/s/the-run")),
        config={"trainer": {"steps": len(losses)}, "overwrite": changed.pop("overwrite", False)},
        identity={
            "overrides": overrides,
            "choices": choices,
            "floors": {"unigram": 3.0, "bigram": 2.0},
            "corpus": changed.pop("corpus", "c"),
            "tokenizer": "t",
        },
        metrics=rows,
        events=changed.pop("events", []),
        status=status | changed,
        telemetry=watched,
    )


def printed(width: int = 120) -> tuple[rich.console.Console, io.StringIO]:
    out = io.StringIO()
    return rich.console.Console(file=out, width=width, highlight=False), out


def rows_of(runs: list[Run]) -> list[Row]:
    return [Row.of(run) for run in runs]


# --- curves


@pytest.mark.parametrize(
    ("values", "low", "high", "bars"),
    [
        ([], 0.0, 1.0, ""),
        ([float(i) for i in range(8)], 0.0, 7.0, "▁▂▃▄▅▆▇█"),
        ([7.0, 0.0], 0.0, 7.0, "█▁"),
        ([-5.0, 12.0, 3.5], 0.0, 7.0, "▁█▅"),
        ([3.0, 3.0], 3.0, 3.0, "▁▁"),
        ([0.0, math.nan, 7.0, math.inf, -math.inf], 0.0, 7.0, "▁×█××"),
    ],
)
def test_sparkline(values: Any, low: float, high: float, bars: str) -> None:
    assert sparkline(values, low, high) == bars


def test_sparkline_takes_means_of_equal_pieces() -> None:
    assert sparkline([0.0, 2.0, 2.0, 4.0, 4.0, 6.0, 6.0, 8.0], 0.0, 7.0, width=4) == "▂▄▆█"
    assert sparkline([1.0] * 100, 0.0, 7.0, width=24) == "▂" * 24
    assert sparkline([*[1.0] * 99, math.nan], 0.0, 7.0, width=10) == "▂" * 9 + "×"
    assert len(sparkline([float(i) for i in range(1000)], 0.0, 999.0)) == 24


def test_gradient_norms_by_depth_are_on_a_log_scale() -> None:
    rising = [{"embedding": 9.0, "layer.0": 1.0, "layer.1": 10.0, "layer.2": 100.0, "head": 3.0}]
    assert by_depth(made([1.0], gradients=rising)) == "▁▅█ 1 → 1e+02"
    flat = [{"layer.0": 1.0, "layer.1": 1.1}]
    assert by_depth(made([1.0], gradients=flat)) == "▄▅ 1 → 1.1"  # a tenth is noise
    assert by_depth(made([1.0])) == ""


def test_gradient_norms_are_means_of_the_last_five_rows() -> None:
    rows = [
        {"layer.0": 1e9, "layer.1": 1.0},
        *({"layer.0": n, "layer.1": 1.0} for n in (1.0, 2.0, 3.0, 4.0, 5.0)),
    ]
    assert by_depth(made([1.0], gradients=rows)).endswith(" 3 → 1")


def test_gradient_norms_that_are_not_finite_or_zero() -> None:
    assert by_depth(made([1.0], gradients=[{"layer.0": math.nan, "layer.1": math.inf}])) == "××"
    assert by_depth(made([1.0], gradients=[{"layer.0": math.nan, "layer.1": 1.0}])).startswith("×▅ ")
    assert by_depth(made([1.0], gradients=[{"layer.0": 0.0, "layer.1": 1.0}])).startswith("▁█ ") is False


# --- tables


def sweep() -> list[Run]:
    return [
        made([6.0, 3.0, 2.0], 2.0, overrides={"placement": "pre", "trainer.steps": "3", "size": "deep"},
             gradients=[{"layer.0": 1.0, "layer.1": 1.0}]),
        made([6.0, 3.2, 3.1], 3.05, overrides={"placement": "post", "trainer.steps": "3", "size": "deep"},
             outcome="stalled", gradients=[{"layer.0": 0.001, "layer.1": 1.0}]),
        made([900.0, math.nan], math.nan, outcome="nonfinite",
             overrides={"placement": "none", "trainer.steps": "3", "size": "deep"},
             gradients=[{"layer.0": math.inf, "layer.1": math.inf}]),
    ]  # fmt: skip


def test_differences_are_the_keys_in_which_runs_differ() -> None:
    assert names(rows_of(sweep())) == {"placement": ["pre", "post", "none"]}
    one = [made([1.0], overrides={"seed": "0"}), made([1.0], overrides={"seed": "0", "norm": "none"})]
    assert names(rows_of(one)) == {"norm": ["", "none"]}
    assert names(rows_of([made([1.0])])) == {"run": ["the-run"]}


def test_the_table_has_a_row_a_run_and_the_outcome_in_words() -> None:
    console, out = printed()
    sweep_table(rows_of(sweep()), console)
    lines = out.getvalue().splitlines()
    rows = [[cell.strip() for cell in line.split("│")] for line in lines if "│" in line]
    assert [row[:3] for row in rows] == [
        ["pre", "ok", "2.00"], ["post", "stalled", "3.05"], ["none", "nonfinite", "-"],
    ]  # fmt: skip
    assert [row[3] for row in rows] == [
        "█▆▁",
        "█▇▆",
        "█×",
    ]  # one scale, from the lowest loss to the floor and a bit
    assert [row[4] for row in rows] == ["▅▅ 1 → 1", "▁█ 0.001 → 1", "××"]
    assert lines[-2:] == [
        "unigram floor 3.00, bigram floor 2.00 nats/token",
        "pre ok 2.00 | post stalled 3.05 | none nonfinite -",
    ]


def test_the_table_shows_an_unfinished_run_and_no_floors_of_different_texts() -> None:
    console, out = printed()
    runs = [
        made([3.0], overrides={"data": "a"}),
        made([3.0], overrides={"data": "b"}, corpus="d", status="interrupted"),
    ]
    sweep_table(rows_of(runs), console)
    assert "floor" not in out.getvalue()
    assert "interrupted" in out.getvalue()


def test_values_are_no_markup_and_no_line_of_words_is_broken() -> None:
    console, out = printed()
    paths = ["data/[bold]x/:smile:", *(f"data/{'long' * 9}/{i}" for i in range(7))]
    sweep_table(rows_of([made([2.0], overrides={"data.path": path}) for path in paths]), console)
    lines = out.getvalue().splitlines()
    assert [line for line in lines if line.startswith("data/[bold]x/:smile: ")]
    assert lines[-1] == " | ".join(f"{path} ok 2.00" for path in paths)
    console, out = printed()
    sweep_table(rows_of([made([2.0], overrides={"seed": str(seed)}) for seed in range(9)]), console)
    assert " | " not in out.getvalue()  # more than a sentence can hold


def test_a_table_of_runs_without_any_finite_loss() -> None:
    console, out = printed()
    sweep_table(
        rows_of([made([math.nan], math.nan, overrides={"seed": seed}, outcome="nonfinite") for seed in "01"]), console
    )
    assert out.getvalue().count("nonfinite") == 4


def test_next_after_a_sweep_is_the_other_initialisation_then_more_seeds() -> None:
    runs = sweep()
    words = ["-m", "norm=glob(*)", "placement=pre,post"]
    line = sweep_suggestions(runs, words)[-1]
    assert line == "  python train.py -m 'norm=glob(*)' placement=pre,post init=gpt2"
    assert len(expand(shlex.split(line)[3:])) == 2 * len(read_tree([CONFIG_DIR])["norm"])
    gpt2 = [made([1.0], choices={"init": "gpt2"})]
    assert sweep_suggestions(gpt2, ["-m", "init=gpt2"])[-1] == "  python train.py -m init=gpt2 seed=0,1,2"
    assert sweep_suggestions(gpt2, ["-m", "init=gpt2", "seed=0,1"]) == []


# --- progress


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    return now


def row(step: int, loss: float = 3.0) -> dict[str, Any]:
    return {"step": step, "tokens": 100 * step, "loss": loss, "grad_norm": 1.25, "tokens_per_s": 50.0}


def test_a_log_gets_a_line_at_first_then_every_few_seconds_and_at_last(clock: list[float]) -> None:
    plain, out = printed()
    with Console(40, plain) as console:
        for step in range(1, 41):
            console.step(row(step, math.nan if step == 40 else 3.0))
            clock[0] += 1.0
    assert out.getvalue().splitlines() == [
        "step 1/40  loss 3.000  grad norm 1.25  50 tokens/s  78 s left",
        "step 12/40  loss 3.000  grad norm 1.25  50 tokens/s  56 s left",
        "step 23/40  loss 3.000  grad norm 1.25  50 tokens/s  34 s left",
        "step 34/40  loss 3.000  grad norm 1.25  50 tokens/s  12 s left",
        "step 40/40  loss nan  grad norm 1.25  50 tokens/s  0 s left",
    ]


def test_a_terminal_gets_one_line_that_moves_and_leaves() -> None:
    out = io.StringIO()
    terminal = rich.console.Console(file=out, force_terminal=True, width=120, highlight=False)
    with Console(40, terminal) as console:
        for step in range(1, 41):
            console.step(row(step))
        console.evaluation({"step": 40, "val_loss": 2.5, "val_bits_per_byte": 3.6})
    assert "step 40/40  loss 3.000" in out.getvalue()
    assert "s left\n" not in out.getvalue()
    assert "step    40  val loss 2.500 nats/token, 3.600 bits/byte" in out.getvalue()
    assert out.getvalue().endswith("\x1b[?25h\r\x1b[1A\x1b[2K")  # the cursor back, the bar gone


def test_text_is_text(clock: list[float]) -> None:
    plain, out = printed()
    Console(1, plain).note("tracker [bold]lost[/bold] [1/2] :smile:")
    assert out.getvalue() == "! tracker [bold]lost[/bold] [1/2] :smile:\n"


# --- before and after a run


def test_what_may_come_at_every_step_is_told_five_times(tmp_path: Path) -> None:
    """All of it is recorded, and of other kinds all is told."""
    console, out = printed()
    directory = RunDirectory(tmp_path)
    directory.acquire()
    recorder = Recorder(directory, LocalLogger(), Console(9, console))
    for step in range(1, 9):
        recorder.event("skipped", step, f"skip {step}")
        recorder.event("warning", step, f"warning {step}")
    lines = out.getvalue().splitlines()
    skips = [f"! skip {step}" for step in (1, 2, 3, 4)]
    assert [line for line in lines if "skip" in line] == [
        *skips,
        "! skip 5 (others of the kind stand in events.jsonl only)",
    ]
    assert [line for line in lines if "warning" in line] == [f"! warning {step}" for step in range(1, 9)]
    assert len(directory.rows()[1]) == 16
    directory.release()


def test_the_opening_says_what_it_is_and_what_was_asked_for_in_vain() -> None:
    prepared = prepare("placement=none", "norm=layernorm", "trainer.steps=7")
    lines = list(opening(prepared.identity, prepared.config, prepared.data))
    total = sum(p.numel() for p in prepared.model.parameters())
    assert lines[0] == (
        f"nano: {total:,} parameters, 2 layers of width 32, 7 steps of 4 x 32 tokens on {prepared.identity['device']}"
    )
    assert lines[1].startswith("norm=layernorm placement=none position=rope activation=swiglu attention=mha init=fanin")
    assert lines[2] == (
        f"data=synthetic tokenizer=byte: {len(prepared.data.train):,} training and "
        f"{len(prepared.data.validation):,} validation tokens"
    )
    assert lines[3:] == ["! norm=layernorm is read by nothing here: any other choice gives the same run"]


def test_the_result_of_a_run() -> None:
    assert list(result(made([6.0, 4.0, 2.0]))) == [
        "",
        "outcome: ok  (because)",
        "validation loss 2.000 nats/token, 2.885 bits/byte; floors of this text: unigram 3.000, "
        "bigram 2.000 nats/token",
        "progress from the unigram floor (0) to the bigram floor (1): 0.50",
        "loss  █▅▁",
        "1,234,567 tokens at 8,900 tokens/s; gradients clipped in 25% of the steps",
    ]
    assert not any("progress" in line for line in result(made([2.0], progress=None, outcome=None)))
    assert list(result(made([2.0], outcome=None)))[1] == "outcome: undecided  (because)"
    for outcome in ("degraded", "diverged", "nonfinite"):
        assert list(result(made([2.0], outcome=outcome, skipped_steps=7)))[-1].endswith("; 7 steps were skipped")


def test_the_result_of_a_run_that_is_not_finite() -> None:
    events = [
        {"step": 3, "kind": "nonfinite", "message": "non-finite at step 3"},
        {"step": 1, "kind": "x", "message": ""},
    ]
    for last in (math.nan, math.inf):
        lines = list(result(made([6.0, 2.0, last], math.nan, outcome="nonfinite", events=events)))
        assert lines[1:4] == ["outcome: nonfinite  (because)", "! non-finite at step 3", "loss  █▁×"]
    assert "loss  ×" in list(result(made([math.nan], math.nan, outcome="nonfinite")))


@pytest.mark.parametrize(
    ("overwrite", "same"), [(False, "same command"), (True, "same command without overwrite=true")]
)
def test_the_result_of_an_interrupted_run(overwrite: bool, same: str, tmp_path: Path) -> None:
    """One that was killed has done more than its newest checkpoint has; its status is that of its start."""
    run = made([6.0, 5.0], math.nan, status="interrupted", step=0, overwrite=overwrite, path=tmp_path)
    (tmp_path / "checkpoints").mkdir()
    for step, place in ((0, "the start"), (1, "step 1"), (2, "there")):
        if step:
            checkpoint.path_of(tmp_path / "checkpoints", step).touch()
        assert list(result(run)) == ["", f"interrupted after step 2: the {same} goes on from {place}"]


def test_a_reader_that_leaves_does_not_end_the_run() -> None:
    """As `python train.py | head -1` does."""
    program = "from modernllm.report.console import Console; import sys\nconsole = Console(1)\nfor i in range(3):\n    "
    program += "console.print('x' * 100_000)\nprint('more', flush=True); sys.exit(7)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.read(1)
        child.stdout.close()
    assert child.returncode == 7


def test_the_epilogue_shows_what_it_writes_and_where_it_is(tmp_path: Path) -> None:
    for name in ("status.json", "config.yaml", ".lock"):
        (tmp_path / name).touch()
    lines = list(epilogue(made([2.0], path=tmp_path)))
    assert lines[:5] == ["", "what it writes:", "  |   one", "  | two", ""]
    assert lines[5] == f"files: {tmp_path}  (config.yaml status.json)"
    assert lines[6] == "next:"
    assert len(lines) == 9
    assert list(epilogue(made([2.0], path=tmp_path, status="interrupted", sample=None))) == ["", lines[5]]


@pytest.mark.parametrize(
    ("overrides", "outcome"),
    [
        ({}, "ok"),
        ({"size": "nano", "data": "synthetic", "placement": "post", "overwrite": "true"}, "stalled"),
        ({"size": "deep", "placement": "none"}, "nonfinite"),
    ],
)
def test_what_is_suggested_is_a_sound_configuration(overrides: dict[str, str], outcome: str) -> None:
    """And keeps what was asked for."""
    commands = suggestions(made([2.0], overrides=overrides, outcome=outcome))
    assert len(commands) == 2
    kept = [f"{key}={value}" for key, value in overrides.items() if key in ("size", "data")]
    assert all(word in command.split() for word in kept for command in commands)
    for command in commands:
        python, script, *words = shlex.split(command)
        assert (python, script) == ("python", "train.py")
        jobs = expand(words[1:]) if words[0] == "-m" else [words]
        assert (len(jobs) > 1) == (outcome != "nonfinite")
        for job in jobs:
            check(compose(job))


def test_on_a_narrow_terminal_the_curves_give_way_to_the_names() -> None:
    console, out = printed(40)
    sweep_table(rows_of(sweep()), console)
    rows = [[cell.strip() for cell in line.split("│")] for line in out.getvalue().splitlines() if "│" in line]
    assert rows == [["pre", "ok", "2.00"], ["post", "stalled", "3.05"], ["none", "nonfinite", "-"]]
