"""Several ranks do what one process does: the same losses, weights, decisions and records, and none waits for ever."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import ranked
import torch
from filelock import FileLock
from models import windows
from processes import PATIENCE, children_of, has_taken, is_alive, until
from ranked_norms import HOLD
from running import TRAIN, copied, events, fit, metrics, run, same, small, telemetry

from modernllm import checkpoint, distributed, precision
from modernllm.distributed import OneProcess, require_room
from modernllm.nonfinite import bundle
from modernllm.nonfinite.examine import Step, examine
from modernllm.nonfinite.replay import replay
from modernllm.objective import Objective
from modernllm.runs.record import Run, load_run
from modernllm.trainer import Trainer

HERE, CPU = Path(__file__).parent, torch.device("cpu")
CLOSE = 2e-6
"""Relative, of losses, and of weights to the largest: sums of float32 in another order."""


def begin(*command: str, folder: Path) -> subprocess.Popen[str]:
    """A Python program in a session of its own, which sees the modules beside this file."""
    return subprocess.Popen(
        [sys.executable, *command], cwd=folder, text=True, start_new_session=True,
        env=os.environ | {"PYTHONPATH": f"{HERE}:{HERE.parent}", "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(process: subprocess.Popen[str], seconds: float = 2 * PATIENCE) -> tuple[int, str, str]:
    """Its exit code and what it said; whoever hangs is ended, all of its session."""
    try:
        out, err = process.communicate(timeout=seconds)
        return process.returncode, out, err
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each scenario, done by two ranks, once for all workers of pytest."""
    folder = tmp_path_factory.getbasetemp()
    folder = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "two"
    with FileLock(folder.with_suffix(".lock")):
        if not folder.exists():
            folder.mkdir()
            code, out, err = finish(begin(str(HERE / "ranked.py"), str(folder), folder=folder))
            assert (code, err) == (0, ""), out
    return folder


def outcomes(folder: Path, name: str) -> list[dict[str, Any]]:
    """Of each rank."""
    return torch.load(folder / name / "outcome.pt", weights_only=True)


def alone(folder: Path, name: str) -> Trainer:
    made = ranked.SCENARIOS[name](folder / name, OneProcess())
    fit(made)
    return made


def agree(two: Path, name: str, one: Trainer, folder: Path) -> None:
    """Losses, norms and weights of the two ranks are those of the one process; the two have the same, bit for bit."""
    first, second = outcomes(two, name)
    assert same(first["weights"], second["weights"])
    weights = copied(one.model)
    assert weights.keys() == first["weights"].keys()
    for key, value in weights.items():
        size = float(value.abs().max()) or 1.0
        assert float((first["weights"][key] - value).abs().max()) <= CLOSE * size, key
    rows, expected = metrics(two / name, "step"), metrics(folder / name, "step")
    assert [row["step"] for row in rows] == [row["step"] for row in expected]
    for row, other in zip(rows, expected, strict=True):
        assert row == pytest.approx(other, rel=CLOSE, nan_ok=True)


@pytest.mark.parametrize("name", ["uneven", "empty", "whole", "cut", "balanced", "idle", "unused"])
def test_two_ranks_do_what_one_process_does(name: str, two: Path, tmp_path: Path) -> None:
    """F-28, F-31, F-49, F-88: whatever the targets of each, and whoever has no use for a parameter."""
    one = alone(tmp_path, name)
    agree(two, name, one, tmp_path)
    assert outcomes(two, name)[0]["ending"]["step"] == one.steps


def test_the_cut_changes_nothing(two: Path) -> None:
    """F-31: 2 ranks, one micro-batch each or two."""
    for row, other in zip(metrics(two / "whole"), metrics(two / "cut"), strict=True):
        assert row == pytest.approx(other, rel=CLOSE)


def test_the_scenarios_are_what_they_say(two: Path, tmp_path: Path) -> None:
    """Experts move their bias; a parameter that no rank uses keeps its value, decay or not, a rare one does not."""
    weights = outcomes(two, "balanced")[0]["weights"]
    assert any(bool(value.any()) for name, value in weights.items() if name.endswith("steps_up"))
    unused, start = outcomes(two, "unused")[0]["weights"], ranked.Sometimes().state_dict()
    assert torch.equal(unused["never.weight"], start["never.weight"])
    assert not torch.equal(unused["rare.weight"], start["rare.weight"])


def test_telemetry_is_that_of_one_process(two: Path, tmp_path: Path) -> None:
    """Gradients, weights and updates by layer and tensor, and the looks inside."""
    alone(tmp_path, "whole")
    rows, expected = telemetry(two / "whole", "step"), telemetry(tmp_path / "whole", "step")
    assert [row["step"] for row in rows] == [row["step"] for row in expected]
    assert {"grad_norm", "update_ratio"} <= rows[1].keys()
    assert "stream_rms" in rows[0]
    for row, other in zip(rows, expected, strict=True):
        assert flat(row).keys() == flat(other).keys()
        assert flat(row) == pytest.approx(flat(other), rel=1e-4, abs=1e-6)


def flat(row: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    found: dict[str, float] = {}
    for key, value in row.items():
        if key != "memory":
            found |= flat(value, f"{prefix}{key}/") if isinstance(value, dict) else {prefix + key: value}
    return found


# --- what is not finite


def test_all_ranks_skip_the_same_step(two: Path, tmp_path: Path) -> None:
    """F-38: NaN on rank 1 alone."""
    one = alone(tmp_path, "skip")
    agree(two, "skip", one, tmp_path)
    assert [row["step"] for row in metrics(two / "skip") if row.get("skipped")] == [3]
    (event,) = events(two / "skip", "skipped")
    assert event["where"] == events(tmp_path / "skip", "skipped")[0]["where"] + " (of rank 1)"


def test_a_scale_of_fp16_is_one_scale(two: Path, tmp_path: Path) -> None:
    one = alone(tmp_path, "overflow")
    first, second = outcomes(two, "overflow")
    assert [row["step"] for row in metrics(two / "overflow") if row.get("overflowed")] == [3]
    assert [row["step"] for row in metrics(tmp_path / "overflow") if row.get("overflowed")] == [3]
    assert same(first["scale"], second["scale"])
    assert same(first["scale"], one.scale.state_dict())
    assert float(first["scale"]["value"]) == 2.0**15
    assert same(first["weights"], second["weights"])


def test_a_fault_on_another_rank_is_named_and_done_again_here(two: Path) -> None:
    """Rank 1 has the third and fourth of four micro-batches, and its own dropout."""
    (event,) = events(two / "stop", "nonfinite")
    place = event["place"]
    assert (event["step"], place["module"]) == (3, "embedding")
    assert (place["micro_batch"], place["rank"], place["rows"]) == (4, 1, [3, 4])
    assert event["where"].endswith("micro-batch 4 (of rank 1)")
    assert [outcome["ending"]["first_nonfinite_step"] for outcome in outcomes(two, "stop")] == [3, 3]
    assert sorted(path.name for path in (two / "stop" / "nonfinite").iterdir()) == ["step-00000003.pt"]
    kept = bundle.load(two / "stop")
    assert len(kept.began.others) == 1
    model = ranked.poisoned("model.dropout=0.1")
    checkpoint.restore(model, kept.model)
    found = examine(Step(Objective(model), kept.batch, kept.rows, "fp32", kept.began))
    assert found.place == kept.place


def test_a_step_of_several_ranks_is_done_again_by_one(two: Path) -> None:
    """Each rank's dropout with its own generator, from where the step began."""
    for outcome in outcomes(two, "straight"):
        again = outcome["again"]
        assert again["examined"] == pytest.approx(again["loss"], rel=CLOSE)
        assert again["examined_norm"] == pytest.approx(again["grad_norm"], rel=CLOSE)


# --- random streams, checkpoints


def test_ranks_draw_for_themselves_and_go_on_bit_for_bit(two: Path) -> None:
    first, second = outcomes(two, "straight")
    assert not torch.equal(first["state"], second["state"])
    assert same(first["weights"], second["weights"])
    assert outcomes(two, "broken_off")[0]["error"].startswith("Stopped")
    for whole, resumed in zip((first, second), outcomes(two, "broken_off"), strict=True):
        assert same(whole["weights"], resumed["weights"])
    assert metrics(two / "broken_off", "step") == metrics(two / "straight", "step")
    (event,) = events(two / "broken_off", "resume")
    assert event["message"] == "resumed after step 3"
    names = sorted(path.name for path in (two / "straight" / "checkpoints").iterdir())
    assert names == ["best.safetensors", "final.safetensors", "step-00000003.pt", "step-00000006.pt"]
    kept = checkpoint.load(two / "straight" / "checkpoints" / "step-00000006.pt")
    assert [len(kept["generators"]), len(kept["other_generators"])] == [1, 1]


def test_ranks_that_drift_apart_are_told(two: Path) -> None:
    for outcome in outcomes(two, "drift"):
        assert "RuntimeError: seen is not the same on ranks 0 and 1: " in outcome["error"]


# --- shares


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5])
def test_shares_are_disjoint_complete_and_even(ranks: int) -> None:
    """F-61, without processes."""
    batch = windows(rows=5)
    assert batch.targets is not None
    shares = [batch.share(rank, ranks) for rank in range(ranks)]
    assert torch.equal(torch.cat([share.tokens for share in shares]), batch.tokens)
    assert torch.equal(torch.cat([share.targets for share in shares if share.targets is not None]), batch.targets)
    sizes = [len(share.tokens) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_cores_are_shared_like_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision, "usable_cores", lambda: 5)
    assert [precision.threads_each(None, ranks) for ranks in (1, 2, 3, 8)] == [5, 2, 1, 1]
    assert precision.threads_each(4, 2) == 4


def test_ranks_without_a_place_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    require_room({"ranks": 4, "batch_size": 4}, CPU)
    with pytest.raises(ValueError, match=r"trainer\.ranks=5: .* trainer\.batch_size=4; at most trainer\.ranks=4"):
        require_room({"ranks": 5, "batch_size": 4}, CPU)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match=r"trainer\.ranks=2: each takes a GPU and there are 1; .*trainer\.device=cpu"):
        require_room({"ranks": 2, "batch_size": 4}, torch.device("cuda"))
    with pytest.raises(ValueError, match=r"trainer\.ranks=2: .* mps"):
        require_room({"ranks": 2, "batch_size": 4}, torch.device("mps"))
    monkeypatch.setattr(distributed, "HERE", ((socket.AF_INET, "192.0.2.1"),))  # an address of nobody
    with pytest.raises(ValueError, match=r"trainer\.ranks=2: .* loopback .* trainer\.ranks=1"):
        require_room({"ranks": 2, "batch_size": 4}, CPU)
    require_room({"ranks": 1, "batch_size": 4}, CPU)


# --- whole runs


def words(*more: str) -> list[str]:
    return [*small("trainer.steps=12", "trainer.eval_every=6", "model.dropout=0.1"), *more]


def train(folder: Path, *more: str, many: bool = False) -> subprocess.Popen[str]:
    return begin(str(TRAIN), *(["-m"] if many else []), *words(*more), folder=folder)


def only(folder: Path) -> Run:
    (path,) = (folder / "runs" / "default").glob("[!.]*")
    return load_run(path)


def test_a_run_of_two_ranks_is_the_run(two: Path, tmp_path: Path) -> None:
    """F-73: one folder, one set of files, the name and the numbers of the run of one process."""
    done = only(two)
    _, one = run(*ranked.run_words(), f"out={tmp_path}")
    assert (done.status["status"], done.word) == ("finished", one.word)
    assert done.status["skipped_steps"] == 1
    assert done.run_id == one.run_id
    assert done.identity["config_hash"] == one.identity["config_hash"]
    assert [done.identity["numerics"][key] for key in ("ranks", "threads")] == [2, 1]
    assert sorted(path.name for path in done.path.rglob("*")) == sorted(path.name for path in one.path.rglob("*"))
    for row, other in zip(metrics(done.path, "step"), metrics(one.path, "step"), strict=True):
        assert row == pytest.approx(other, rel=1e-5, nan_ok=True)
    assert done.status["sample"] == one.status["sample"]
    written = (done.path / "metrics.jsonl").stat().st_mtime_ns
    assert (
        run(*ranked.run_words(), f"out={two / 'runs'}")[1].identity["numerics"]["ranks"] == 2
    )  # it is done: nothing is to do
    assert (done.path / "metrics.jsonl").stat().st_mtime_ns == written


def test_the_windows_of_a_fault_on_another_rank_are_told_and_it_is_replayed(two: Path) -> None:
    done = only(two)
    (event,) = events(done.path, "skipped")
    assert event["step"] == 4
    assert event["where"].startswith("forward of embedding, operation div")
    assert event["where"].endswith(", micro-batch 4 (of rank 1)")
    assert event["windows_of_micro_batch"] == event["windows"][3:] == [event["windows"][-1]]
    again = replay(done.path, CPU, done.config["allow_targets"])
    assert again.reproduced
    assert again.finding.place == again.bundle.place


def test_ranks_that_were_told_different_things_refuse(two: Path) -> None:
    """F-73: checked among all of them."""
    said = "rank {} has another configuration than rank {}: that of rank {} and not that of rank {}"
    assert (two / "refused").read_text().splitlines() == [said.format(1, 0, 1, 0), said.format(0, 1, 0, 1)]


def descendants(pid: int) -> list[int]:
    children = children_of(pid)
    return children + [below for child in children for below in descendants(child)]


def second_rank(of: int) -> int:
    """The process that was forked by the server of the first."""
    (server,) = [
        p for p in descendants(of) if b"forkserver" in Path(f"/proc/{p}/cmdline").read_bytes() and descendants(p)
    ]
    (rank,) = descendants(server)
    return rank


ENDING = ("model.norm._target_=ranked_norms.Ending", "allow_targets=[ranked_norms.Ending]")


def at_work(folder: Path) -> bool:
    found = list(folder.glob("runs/default/*/status.json"))
    return bool(found) and len(metrics(found[0].parent)) > 2


@pytest.fixture
def slow(tmp_path: Path) -> Any:
    """A run at work, held there, its words and the process of its second rank; nothing is left of it afterwards."""
    (tmp_path / HOLD).touch()
    asked = (*ENDING, "+model.norm.ends=never", "trainer.steps=40", "trainer.ranks=2", "trainer.nonfinite=skip")
    process = train(tmp_path, *asked)
    until(lambda: at_work(tmp_path))
    second = second_rank(process.pid)
    yield process, asked, second
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    until(lambda: not is_alive(second))


def goes_on_as_if_nothing_had_happened(folder: Path, asked: tuple[str, ...]) -> None:
    (folder / HOLD).unlink(missing_ok=True)
    (folder / "straight").mkdir()
    other = train(folder / "straight", *asked)
    assert finish(train(folder, *asked))[0] == 0
    assert finish(other)[0] == 0
    assert metrics(only(folder).path, "step") == metrics(only(folder / "straight").path, "step")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "target"), [(signal.SIGINT, "all"), (signal.SIGTERM, 0), (signal.SIGTERM, 1)])
def test_a_signal_to_any_rank_ends_all_with_one_checkpoint(
    number: signal.Signals, target: str | int, slow: Any, tmp_path: Path
) -> None:
    process, asked, second = slow
    {"all": os.killpg, 0: os.kill, 1: lambda _, number: os.kill(second, number)}[target](process.pid, number)
    until(lambda: has_taken(process.pid, number) and has_taken(second, number))
    (tmp_path / HOLD).unlink()
    code, _, err = finish(process)
    assert (code, err) == (128 + number, "")
    left = only(tmp_path)
    assert left.status["status"] == "interrupted"
    assert [int(path.stem[5:]) for path in (left.path / "checkpoints").glob("*.pt")] == [left.status["step"]]
    assert not is_alive(second)
    goes_on_as_if_nothing_had_happened(tmp_path, asked)


@pytest.mark.slow
def test_a_killed_rank_is_named_and_the_same_command_goes_on(slow: Any, tmp_path: Path) -> None:
    process, asked, second = slow
    os.kill(second, signal.SIGKILL)
    (tmp_path / HOLD).unlink()
    code, _, err = finish(process)
    assert (code, err) == (
        1,
        "error: rank 1 of 2 was killed by SIGKILL: by hand, or for want of memory; the same command goes on from the "
        "last checkpoint\n",
    )
    status = only(tmp_path).status
    assert (status["status"], status["reason"]) == ("interrupted", err.replace("error: ", "Killed: ").strip())
    goes_on_as_if_nothing_had_happened(tmp_path, asked)


@pytest.mark.slow
def test_nothing_is_left_of_a_run_whose_first_rank_is_killed(slow: Any, tmp_path: Path) -> None:
    process, asked, second = slow
    process.kill()
    until(lambda: not is_alive(second))
    assert only(tmp_path).status["status"] == "interrupted"
    goes_on_as_if_nothing_had_happened(tmp_path, asked)


@pytest.mark.slow
def test_a_second_signal_ends_a_run_that_waits_for_a_stopped_rank(slow: Any, tmp_path: Path) -> None:
    process, _, second = slow
    os.kill(second, signal.SIGSTOP)
    (tmp_path / HOLD).unlink()
    for _ in range(2):
        time.sleep(0.5)  # so that it most likely waits already
        os.kill(process.pid, signal.SIGINT)
        until(lambda: has_taken(process.pid, signal.SIGINT))
    code, _, err = finish(process)
    assert (code, err) == (130, "")
    assert only(tmp_path).status["status"] == "interrupted"
    assert not is_alive(second)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ends", "reason"),
    [
        ("raise", "rank 1 of 2: RuntimeError: planted"),
        ("leave", "rank 1 of 2 left with exit code 44"),
        ("unmade", "rank 1 of 2: RuntimeError: planted"),
    ],
)
def test_the_true_cause_is_told(ends: str, reason: str, tmp_path: Path) -> None:
    code, _, err = finish(train(tmp_path, *ENDING, f"+model.norm.ends={ends}", "trainer.ranks=2"))
    assert code == 1
    assert err.endswith(f"error: {reason}\n")
    status = only(tmp_path).status
    assert (status["status"], status["reason"]) == ("failed", f"ChildProcessError: {reason}")


@pytest.mark.slow
@pytest.mark.parametrize("ends", ["deaf", "stillborn"])
def test_a_rank_that_hears_of_nothing_is_ended(ends: str, tmp_path: Path) -> None:
    """The first one is busy for ever, or the second never comes to where they meet."""
    code, _, err = finish(train(tmp_path, *ENDING, f"+model.norm.ends={ends}", "trainer.ranks=2"))
    status = only(tmp_path).status
    assert (code, status["status"]) == (1, "interrupted")
    assert err.startswith("error: rank 1 of 2 was killed by SIGKILL")
    assert status["reason"] == err.replace("error: ", "Killed: ").strip()


@pytest.mark.slow
def test_a_sweep_of_runs_of_two_ranks(tmp_path: Path) -> None:
    """One kills its second rank, and loses only itself."""
    code, out, err = finish(
        train(tmp_path, *ENDING, "+model.norm.ends=never,kill", "trainer.ranks=2", "executor.workers=2", many=True)
    )
    assert (code, err) == (1, "")
    assert "rank 1 of 2 was killed by SIGKILL" in out
    found = {load_run(path).status["status"] for path in (tmp_path / "runs" / "default").glob("[!.]*")}
    assert found == {"finished", "interrupted"}
