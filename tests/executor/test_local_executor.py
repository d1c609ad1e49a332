"""Sweeps in real processes: what one run does, or what is done to it, reaches no other."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import pytest
import torch
from held_runs import held, hold, let_go
from probe import probe
from processes import catches, children_of, is_alive, until
from running import SMALL, TRAIN, metrics

from modernllm import precision
from modernllm.executor import local
from modernllm.executor.local import LocalExecutor, Queue, start
from modernllm.executor.worker import BUSY, Surroundings
from modernllm.preparation import Asked
from modernllm.runs.directory import RunDirectory
from modernllm.runs.record import Run, load_run
from modernllm.sweep.plan import Planned

HERE = Path(__file__).parent
PLANTED = (f"--config-dir={HERE / 'planted_configs'}",)
ALLOWED = "allow_targets=[planted.Doomed,planted.Held,planted.Slow,planted.Refusing]"
STEPS = 24
THREE = ("norm=held", "seed=0,1,2", "executor.workers=2")


def words(*more: str) -> list[str]:
    return [*SMALL, f"trainer.steps={STEPS}", "trainer.eval_every=12", ALLOWED, *more]


def begin(folder: Path, *overrides: str, many: bool = True) -> subprocess.Popen[str]:
    """`python train.py -m` with these in a session of its own, as a terminal would start it."""
    command = [sys.executable, str(TRAIN), *PLANTED, *(["-m"] if many else []), *words(*overrides)]
    environment = os.environ | {"PYTHONPATH": f"{HERE}{os.pathsep}{folder}", "PYTHONUNBUFFERED": "1"}
    return subprocess.Popen(
        command, cwd=folder, env=environment, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(sweep: subprocess.Popen[str], seconds: float = 300) -> tuple[int, str, str]:
    out, err = sweep.communicate(timeout=seconds)
    return sweep.returncode, out, err


def sweep(folder: Path, *overrides: str) -> tuple[int, str, str]:
    return finish(begin(folder, *overrides))


@pytest.fixture
def planted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE))


def alone(folder: Path, *overrides: str) -> Run:
    """The same run by itself, in this process."""
    from modernllm import experiment
    from modernllm.config.compose import compose_with_choices
    from modernllm.sweep.request import asked, without_settings

    plain = words(*overrides, f"out={folder / 'alone'}")
    cfg, chosen = compose_with_choices(plain, [HERE / "planted_configs"])
    _, done = experiment.run(without_settings(cfg), asked(chosen, plain, (str(HERE / "planted_configs"),)))
    return done


def runs(folder: Path) -> dict[str, Run]:
    """Every run of the study, by `norm=... seed=...` as it was asked for."""
    found = [load_run(path) for path in sorted((folder / "runs" / "default").iterdir())]
    return {f"{r.identity['overrides'].get('norm', '')} {r.identity['overrides'].get('seed', '')}".strip(): r
            for r in found}  # fmt: skip


def same_numbers(one: Run, other: Run) -> bool:
    return metrics(one.path, "step") == metrics(other.path, "step")


def rows_of(out: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("│")] for line in out.splitlines() if "│" in line]


# --- one run's end is not another's


@pytest.fixture(scope="module")
def doomed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[int, str, str]]:
    folder = tmp_path_factory.mktemp("doomed")
    norms = "norm=kill,rmsnorm,raise,exit,leave,return,n255,hungry,layernorm"
    return folder, sweep(folder, norms, "executor.workers=2")


def test_whoever_is_lost_loses_only_itself(doomed: tuple[Path, tuple[int, str, str]], planted: None) -> None:
    """F-68, F-76, F-86: by SIGKILL, an exception, sys.exit, os._exit and want of memory."""
    folder, (code, out, err) = doomed
    assert (code, err) == (1, "")
    rows = {row[0]: row[1:] for row in rows_of(out)}
    assert {name: row[0] for name, row in rows.items()} == {
        "rmsnorm": "undecided", "layernorm": "undecided",
        **dict.fromkeys(["kill", "raise", "exit", "leave", "return", "n255", "hungry"], "failed"),
    }  # fmt: skip
    reasons = {line.split("norm=")[1].split(":")[0]: line for line in out.splitlines() if line.startswith("failed: ")}
    assert "killed by SIGKILL: by hand, or for want of memory" in reasons["kill"]
    assert reasons["raise"].endswith("RuntimeError: planted")
    assert reasons["exit"].endswith("SystemExit: 0")
    assert "left with exit code 44" in reasons["leave"]
    assert "left with exit code 0" in reasons["return"]
    assert "left with exit code 255" in reasons["n255"]
    assert "MemoryError" in reasons["hungry"]
    study = folder / "runs" / "default"
    status = {path.name.partition("norm_")[2].partition("-")[0]: RunDirectory(path).status()["status"]
              for path in study.iterdir()}  # fmt: skip
    assert status == {
        "": "finished", "layernorm": "finished", "raise": "failed", "exit": "failed", "hungry": "failed",
        "kill": "interrupted", "leave": "interrupted", "return": "interrupted", "n255": "interrupted",
    }  # fmt: skip
    for norm in ("rmsnorm", "layernorm"):
        assert same_numbers(runs(folder)[norm], alone(folder, f"norm={norm}"))


def test_what_a_run_said_is_beside_its_record(doomed: tuple[Path, tuple[int, str, str]]) -> None:
    folder, _ = doomed
    said = {path.parent.name.partition("norm_")[2].partition("-")[0]: path.read_text()
            for path in folder.glob("runs/default/*/console.txt")}  # fmt: skip
    assert "RuntimeError: planted" in said["raise"]
    assert f"step {STEPS}/{STEPS}  loss" in said[""]
    assert "outcome: undecided" in said[""]


@pytest.mark.slow
def test_the_lost_go_on_where_they_were_told_to(doomed: tuple[Path, tuple[int, str, str]]) -> None:
    """Interrupted ones by the same command, failed ones with retry=true."""
    folder, _ = doomed
    code, out, _ = sweep(folder, "norm=kill,raise,rmsnorm")
    assert code == 1
    assert out.startswith("3 runs: 1 finished already, 1 failed before (retry=true tries again), 1 to go on with\n")
    assert "start  norm=raise" not in out
    code, out, _ = sweep(folder, "norm=raise,rmsnorm", "retry=true")
    assert code == 1
    assert out.startswith("2 runs: 1 finished already, 1 to go on with\n")
    assert "start  norm=raise" not in out.replace("start  norm=raise\n", "", 1)


@pytest.mark.slow
@pytest.mark.parametrize("error", ["KeyError", "SystemExit"])
def test_a_component_that_is_not_made_ends_the_plan_in_words(error: str, tmp_path: Path) -> None:
    code, out, err = sweep(tmp_path, f"norm=rmsnorm,{error.lower()}")
    assert (code, out) == (2, "")
    assert err.startswith(f"error: norm={error.lower()}: {error}: ")
    assert not (tmp_path / "runs").exists()


# --- what a forked process begins with


def test_torch_is_there_before_the_first_line_of_a_run() -> None:
    with local.serving():
        context = multiprocessing.get_context("forkserver")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=probe, args=(theirs,))
        process.start()
        there, session, threads = ours.recv()
        process.join()
    assert there == [True, True, True]
    assert session != os.getsid(0)
    assert threads == 1


IMPATIENT = """
import os, signal, sys

class CtrlC:
    @staticmethod
    def find_spec(name, path, target=None):
        if name == "torch":
            os.kill(os.getpid(), signal.SIGINT)

if "forkserver" in sys.orig_argv[-1]:
    os.kill(os.getpid(), signal.SIGINT)
    sys.meta_path.insert(0, CtrlC)
"""
"""A sitecustomize.py: Ctrl-C before the first line of the server, and once more when it imports torch."""


@pytest.mark.slow
def test_the_server_hears_no_ctrl_c_while_it_imports(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(IMPATIENT, encoding="utf-8")
    code, out, err = sweep(tmp_path, "seed=0,1", "trainer.steps=3")
    assert (code, err) == (0, "")
    assert [row[1] for row in rows_of(out)] == ["undecided"] * 2


@pytest.mark.slow
def test_seeds_differ_after_the_fork_and_a_drawn_one_is_its_own(tmp_path: Path) -> None:
    code, out, _ = sweep(tmp_path, "seed=0,1,null", "model.dropout=0.1", "trainer.steps=3")
    assert code == 0, out
    done = list(runs(tmp_path).values())
    assert len({tuple(run.losses) for run in done}) == 3
    assert len({run.config["seed"] for run in done}) == 3


# --- what is done to the sweep


@pytest.fixture
def two(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Two runs in the middle of their fifth step, of three; they wait there."""
    hold(tmp_path, 4)
    sweep = begin(tmp_path, *THREE)
    until(lambda: held(tmp_path, 2))
    yield sweep
    if sweep.poll() is None:
        os.killpg(sweep.pid, signal.SIGKILL)
    sweep.communicate()


def let_go_once_told(folder: Path, pids: list[int]) -> None:
    """What a run is told to end by it does not wait for twice."""
    until(lambda: not any(catches(pid, signal.SIGTERM) for pid in pids))
    let_go(folder)


def ends_as_if_nothing_had_happened(folder: Path) -> None:
    code, _, err = sweep(folder, *THREE)
    assert (code, err) == (0, "")
    all_are_as_alone(folder)


def all_are_as_alone(folder: Path) -> None:
    for seed in (0, 1, 2):
        assert same_numbers(runs(folder)[f"held {seed}"], alone(folder, "norm=held", f"seed={seed}"))


@pytest.mark.slow
def test_ctrl_c_leaves_all_resumable(two: subprocess.Popen[str], tmp_path: Path, planted: None) -> None:
    os.killpg(two.pid, signal.SIGINT)
    let_go_once_told(tmp_path, held(tmp_path))
    code, out, err = finish(two)
    assert (code, err) == (130, "")
    assert out.endswith("stopped; the same command goes on from here\n")
    assert [row[1] for row in rows_of(out)] == ["interrupted", "interrupted", "not run"]
    for path in (tmp_path / "runs" / "default").iterdir():
        left = load_run(path)
        assert left.status["status"] == "interrupted"
        assert [int(p.stem[5:]) for p in (path / "checkpoints").glob("*.pt")] == [left.status["step"]]
    ends_as_if_nothing_had_happened(tmp_path)
    resumed = [e["message"] for run in runs(tmp_path).values() for e in run.events if e["kind"] == "resume"]
    assert len(resumed) == 2
    assert "resumed after step 0" not in resumed


@pytest.mark.slow
def test_sigterm_is_as_good(two: subprocess.Popen[str], tmp_path: Path) -> None:
    two.terminate()
    let_go_once_told(tmp_path, held(tmp_path))
    code, out, _ = finish(two)
    assert code == 143
    assert out.endswith("stopped; the same command goes on from here\n")


@pytest.mark.slow
def test_twice_stops_at_once(tmp_path: Path) -> None:
    hold(tmp_path, 0)
    sweep = begin(tmp_path, "norm=held", "seed=0,1", "executor.workers=2")
    pids = until(lambda: held(tmp_path, 2))
    os.killpg(sweep.pid, signal.SIGINT)
    until(lambda: not any(catches(pid, signal.SIGTERM) for pid in pids))
    assert sweep.poll() is None
    os.killpg(sweep.pid, signal.SIGINT)
    code, out, _ = finish(sweep)
    assert code == 130
    assert not any(map(is_alive, pids))
    assert [row[1] for row in rows_of(out)] == ["interrupted", "interrupted"]


@pytest.mark.slow
def test_a_killed_sweep_leaves_no_orphans_and_nothing_lost(
    two: subprocess.Popen[str], tmp_path: Path, planted: None
) -> None:
    pids = held(tmp_path)
    two.kill()
    let_go_once_told(tmp_path, pids)
    until(lambda: not any(map(is_alive, pids)))
    assert {load_run(path).word for path in (tmp_path / "runs" / "default").iterdir()} == {"interrupted"}
    ends_as_if_nothing_had_happened(tmp_path)


@pytest.mark.slow
def test_a_killed_server_costs_nothing(two: subprocess.Popen[str], tmp_path: Path, planted: None) -> None:
    (server,) = [pid for pid in children_of(two.pid) if b"forkserver" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(server, signal.SIGKILL)
    let_go_once_told(tmp_path, held(tmp_path))
    code, out, err = finish(two)
    assert (code, err) == (0, "")
    assert out.count("waits, the server that forked it is gone") == 2
    all_are_as_alone(tmp_path)


@pytest.mark.slow
def test_two_sweeps_share_runs_and_do_none_twice(tmp_path: Path) -> None:
    """F-69, F-78."""
    one = begin(tmp_path, "norm=slow", "seed=0,1,2")
    other = begin(tmp_path, "norm=slow", "seed=1,2,3")
    for done in (one, other):
        code, out, err = finish(done)
        assert (code, err) == (0, "")
        assert [row[1] for row in rows_of(out)] == ["undecided"] * 3
    assert len(runs(tmp_path)) == 4
    for run in runs(tmp_path).values():
        assert [row["step"] for row in run.metrics if "grad_norm" in row] == list(range(1, STEPS + 1))
        assert [event for event in run.events if event["kind"] == "resume"] == []
        assert (run.path / "console.txt").read_text().count("step     0  val loss") == 1


# --- places


def planned(folder: Path, ranks: int = 1) -> Planned:
    return Planned({"trainer": {"device": "auto", "ranks": ranks}}, Asked({}, {}, {}), "run", folder / "run", {}, {})


def test_a_place_is_a_core_or_a_share_of_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    some = [planned(tmp_path)]
    monkeypatch.setattr(precision, "usable_cores", lambda: 3)
    monkeypatch.setattr(precision, "pick_device", lambda name: torch.device("cpu"))
    assert LocalExecutor(workers="auto", per_gpu=1).places(some) == [()] * 3
    assert LocalExecutor(workers=2, per_gpu=4).places(some) == [()] * 2
    assert LocalExecutor(workers="auto", per_gpu=1).places([planned(tmp_path, ranks=2)]) == [()]
    assert LocalExecutor(workers="auto", per_gpu=1).places([*some, planned(tmp_path, ranks=5)]) == [()]
    monkeypatch.setattr(precision, "pick_device", lambda name: torch.device("cuda"))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert LocalExecutor(workers="auto", per_gpu=1).places(some) == [(0,), (1,)]
    assert LocalExecutor(workers="auto", per_gpu=3).places(some) == [(0,), (1,)] * 3
    assert LocalExecutor(workers=3, per_gpu=1).places(some) == [(0,), (1,), (0,)]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 5)
    assert LocalExecutor(workers="auto", per_gpu=2).places([planned(tmp_path, ranks=2)]) == [(0, 1), (2, 3)] * 2


class NeverStarted(ForkServerProcess):
    def start(self) -> None: ...


class Context(ForkServerContext):
    """Keeps what a process would be given, and starts none."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Surroundings] = []

    def Process(self, target: Any, args: Any, name: str) -> NeverStarted:  # type: ignore[override]
        self.given.append(args[1])
        return NeverStarted(target=target, args=args, name=name)


@pytest.mark.parametrize(
    ("visible", "place", "seen"),
    [("", (1,), "1"), ("4,7", (1,), "7"), ("4,7", (0,), "4"), ("4", (), "4"), ("4,7,8,9", (2, 3), "8,9")],
)
def test_a_worker_sees_its_own_gpus(visible: str, place: tuple[int, ...], seen: str, tmp_path: Path) -> None:
    context = Context()
    worker = start(context, {"CUDA_VISIBLE_DEVICES": visible, "HOME": "/h"}, planned(tmp_path), place, 2)
    assert worker.place == place
    assert context.given[0].environment == {"CUDA_VISIBLE_DEVICES": seen, "HOME": "/h"}
    assert context.given[0].threads == 2
    worker.answer.close()


# --- waiting for others


class Told:
    """An observer that writes down what it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str]] = []

    def waiting(self, run: Any, reason: str) -> None:
        self.heard.append(("waiting", reason))

    def started(self, run: Any) -> None:
        self.heard.append(("started", ""))

    def ended(self, run: Any, how: local.Ended) -> None:
        self.heard.append(("ended", f"{how.code} {how.reason}".strip()))

    def tick(self) -> None: ...


@pytest.mark.parametrize(
    ("status", "heard"),
    [({"status": "finished"}, "0"), ({"status": "failed", "reason": "no luck"}, "1 no luck")],
    ids=["finished", "failed"],
)
def test_what_another_process_did_is_not_done_again(status: dict[str, str], heard: str, tmp_path: Path) -> None:
    told, run = Told(), planned(tmp_path)
    queue = Queue([run], told)
    directory = RunDirectory(run.path)
    directory.acquire()
    directory.mark("running")
    assert queue.next() is None
    assert queue.next() is None
    assert told.heard == [("waiting", "another process is at work on it")]
    directory.mark(**status)
    directory.release()
    assert queue.next() is None
    assert told.heard[1:] == [("ended", heard)]
    assert not queue


def test_a_run_that_another_took_meanwhile_waits_its_turn(tmp_path: Path) -> None:
    told, run = Told(), planned(tmp_path)
    queue = Queue([run], told)
    assert queue.next() is run
    queue.done(run, local.Ended(BUSY, "it is being run"))
    assert queue.next() is run  # the other one died before it began
    queue.done(run, local.Ended(0, ""))
    assert [word for word, _ in told.heard] == ["waiting", "ended"]
