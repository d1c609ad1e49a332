"""The mirror: what it shows is what was logged, and nothing that happens to it reaches the run."""

from __future__ import annotations

import inspect
import json
import math
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from offline_runs import inspect_run, nobody_at_home, offline_files, read
from processes import PATIENCE, until
from running import run

from modernllm import logger as loggers
from modernllm.logger import LocalLogger, WandbLogger, wandb_logger
from modernllm.logger.mirrored import flatten
from modernllm.logger.wandb_client import ORPHAN_SECONDS
from modernllm.logger.wandb_logger import choose_mode, own_id, shorten, without_gaps
from modernllm.trainer import Trainer

ROOT = Path(__file__).parents[1]
KEY = "0123456789" * 4
AT_ONCE = 5.0
"""Seconds, of a call that waits for nobody, on a machine that is busy elsewhere; the client of FAKE hangs longer."""

TRAINER = """
import os, signal, sys, time
from pathlib import Path
from modernllm.logger import WandbLogger, wandb_logger
wandb_logger.FINISH_WAIT = {patience}
mirror = WandbLogger()
mirror.start(directory=Path(sys.argv[1]), run_id="run", study="s", arm="a", tags=[], config={{}})
try:
    for step in range(1, 51):
        mirror.log({{"step": step, "tokens": step, "loss": 1.0}})
    {end}
except KeyboardInterrupt:
    mirror.finish({{"outcome": "ok"}}, failed=True)
"""

FAKE = """
import json, os, time
class Settings:
    model_fields = {}
class errors:
    class UsageError(Exception): pass
class Config(dict):
    def update(self, new, allow_val_change=False):
        changed = [key for key in new if self.get(key, new[key]) != new[key]]
        if changed and not allow_val_change: raise RuntimeError(f"{changed} cannot change")
        super().update(new)
class Run:
    starting_step, name, dir = int(os.environ.get("FAKE_STEP", 0)), "fake", "fake"
    summary, config, rows = {}, Config(json.loads(os.environ.get("FAKE_CONFIG", "{}"))), 0
    def tell(self, **call):
        with open(os.environ["FAKE_CALLS"], "a") as calls:
            calls.write(json.dumps(call) + "\\n")
    def define_metric(self, name, step_metric=None): pass
    def alert(self, **alert): pass
    def log(self, row, step=None, commit=None):
        if row:
            self.rows += 1
            fail("log") if self.rows == 5 else None
            self.tell(row=row, step=step)
    def finish(self, exit_code=None):
        fail("finish")
        self.tell(exit_code=exit_code)
def fail(where):
    if os.environ.get("FAKE_FAILS") == where: raise RuntimeError(f"no {where} today")
    if os.environ.get("FAKE_HANGS") == where: time.sleep(600)
def init(**settings):
    fail("init")
    return Run()
"""


def training(directory: Path, end: str) -> list[str]:
    """A command that logs fifty rows, and then does `end`."""
    return [sys.executable, "-c", TRAINER.format(end=end, patience=PATIENCE), str(directory)]


@pytest.fixture(autouse=True)
def _no_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody_at_home(tmp_path, monkeypatch)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A client that notes its calls in the returned file."""
    (tmp_path / "fake").mkdir()
    (tmp_path / "fake" / "wandb.py").write_text(FAKE)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path / 'fake'}{os.pathsep}{ROOT}")
    monkeypatch.setenv("FAKE_CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


@pytest.fixture
def silent_server() -> Iterator[str]:
    """Accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def drive(mirror: loggers.Logger, directory: Path, config: dict | None = None, steps: range = range(1, 9)) -> float:
    """A short run; returns the longest time that a call other than `finish` took."""
    calls = [
        lambda: mirror.start(
            directory=directory,
            run_id="pre-rms-1a2b3c",
            study="a study",
            arm="norm=rms",
            tags=["norm=rms", "t" * 80, " ", "norm=rms"],
            config=config or {},
        )
    ]
    for step in steps:
        loss = {5: math.nan, 6: math.inf, 7: -math.inf}.get(step, 3.0 / step)
        row = {"step": step, "tokens": 100 * step, "loss": loss, "grad": {"block.0": 1.5, "head": None}}
        calls.append(lambda row=row: mirror.log(row))
        if step % 4 == 0:
            calls.append(lambda step=step: mirror.log({"step": step, "val_loss": 2.0 / step}))
    calls.append(lambda: mirror.event({"step": 5, "kind": "nonfinite", "message": "loss is NaN"}))
    longest = 0.0
    for call in calls:
        start = time.perf_counter()
        call()
        longest = max(longest, time.perf_counter() - start)
    mirror.finish({"outcome": "nonfinite", "first_nonfinite_step": 5, "val_loss": math.nan}, failed=False)
    return longest


def test_a_run_is_mirrored(tmp_path: Path) -> None:
    mirror = WandbLogger(project="p")
    assert drive(mirror, tmp_path, {"model": {"norm": {"eps": 1e-6}, "extra": {}}, "none": None}) < AT_ONCE
    assert mirror.problems == []
    (file,) = offline_files(tmp_path)
    seen = read(file)

    run = seen["run"]
    assert run["project"] == "p"
    assert run["display_name"] == "pre-rms-1a2b3c"
    assert run["run_id"].startswith("pre-rms-1a2b3c-")
    assert (run["run_group"], run["job_type"]) == ("a study", "norm=rms")
    assert run["tags"][0] == "norm=rms"
    assert [len(tag) for tag in run["tags"]] == [8, 64]
    config = {key: value for key, value in run["config"]["update"].items() if key != "_wandb"}
    assert config == {"model": {"norm": {"eps": 1e-6}, "extra": "{}"}, "none": None}

    history = seen["history"]
    assert [row["step"] for row in history] == [row["_step"] for row in history] == list(range(1, 9))
    assert [row["loss"] for row in history] == [3.0, 1.5, 1.0, 0.75, "NaN", "Infinity", "-Infinity", 0.375]
    assert {row["grad/block.0"] for row in history} == {1.5}
    assert {row["grad/head"] for row in history} == {None}
    assert [row.get("val_loss") for row in history] == [None, None, None, 0.5, None, None, None, 0.25]
    axes = {m.get("name") or m["glob_name"]: m["step_metric"] for m in seen["metric"]}
    assert axes == {"loss": "tokens", "grad/*": "tokens", "val_loss": "tokens"}

    own = {key: seen["summary"][key] for key in ("outcome", "first_nonfinite_step", "val_loss")}
    assert own == {"outcome": "nonfinite", "first_nonfinite_step": 5, "val_loss": "NaN"}
    (alert,) = seen["alert"]
    assert alert["title"] == "non-finite at step 5"
    assert "loss is NaN" in alert["text"]
    assert seen["exit"][0].get("exit_code", 0) == 0


@pytest.mark.slow
def test_runs_in_one_process_stay_apart_and_a_resumed_one_continues(tmp_path: Path) -> None:
    drive(WandbLogger(), tmp_path / "a", {"seed": 0}, range(1, 5))
    drive(WandbLogger(), tmp_path / "b", {"seed": 1}, range(1, 3))
    drive(WandbLogger(), tmp_path / "a", {"seed": 0, "steps": 8}, range(3, 9))
    (b,) = map(read, offline_files(tmp_path / "b"))
    first, second = sorted(map(read, offline_files(tmp_path / "a")), key=lambda run: run["run"]["start_time"])
    assert b["run"]["config"]["update"]["seed"] == 1
    assert b["run"]["run_id"] != first["run"]["run_id"] == second["run"]["run_id"]
    assert ["resume" in start["run"] for start in (first, second, b)] == [False, True, False]
    assert [row["_step"] for row in first["history"]] == [1, 2, 3, 4]
    assert [row["_step"] for row in second["history"]] == [3, 4, 5, 6, 7, 8]


def test_where_the_server_is_further_a_resumed_run_loses_no_row(
    tmp_path: Path, fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_STEP", "4")  # W&B drops what is logged below
    drive(WandbLogger(), tmp_path, steps=range(3, 5))
    logged = [json.loads(line) for line in fake.read_text().splitlines()]
    steps = [(call["row"]["step"], call["step"]) for call in logged if "row" in call]
    assert steps == [(3, 4), (4, 5), (4, 5)]


def test_where_the_server_knows_fewer_steps_a_resumed_run_may_have_more(
    tmp_path: Path, fake: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-79: W&B refuses a configuration that changes."""
    monkeypatch.setenv("FAKE_CONFIG", json.dumps({"trainer": {"steps": 4}}))
    mirror = WandbLogger(mode="offline")
    drive(mirror, tmp_path, {"trainer": {"steps": 8}})
    assert mirror.problems == []
    assert json.loads(fake.read_text().splitlines()[-1]) == {"exit_code": 0}


def test_a_killed_run_keeps_its_rows_and_is_failed(tmp_path: Path) -> None:
    # once the client's pipe is being given the row after them it has them all
    end = """
    mirror.log({"step": 51, "tokens": 51, "loss": 1.0})
    while not mirror._process._lines.empty():
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGKILL)"""
    assert subprocess.run(training(tmp_path, end), timeout=PATIENCE).returncode == -signal.SIGKILL
    seen = until(lambda: ended(tmp_path))
    assert [row["step"] for row in seen["history"]][:50] == list(range(1, 51))
    assert [end["exit_code"] for end in seen["exit"]] == [1]
    assert seen["summary"]["status"] == "interrupted"


def ended(directory: Path) -> dict[str, Any]:
    """What the mirror wrote, once it has written its end."""
    for file in offline_files(directory):
        with suppress(subprocess.CalledProcessError):  # half a record
            if any(record["type"] == "exit" for record in inspect_run(file)):
                return read(file)
    return {}


@pytest.mark.parametrize(
    ("explicit", "variable", "mode"),
    [
        (None, None, "auto"),
        (None, "", "auto"),
        (None, "online", "online"),
        (None, "offline", "offline"),
        (None, "dryrun", "offline"),
        (None, " Disabled ", "disabled"),
        ("offline", "online", "offline"),
        ("online", "disabled", "online"),
        ("disabled", None, "disabled"),
        ("offline", "nonsense", "offline"),
    ],
)
def test_mode_is_setting_then_variable_then_credentials(explicit: str | None, variable: str | None, mode: str) -> None:
    assert choose_mode(explicit, {} if variable is None else {"WANDB_MODE": variable}) == mode


@pytest.mark.parametrize("source", ["variable", "netrc", "netrc of another server"])
def test_a_key_and_no_network_is_one_problem_and_offline(
    source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if source == "variable":
        monkeypatch.setenv("WANDB_API_KEY", KEY)
    else:
        host = "127.0.0.1:9" if source == "netrc" else "example.org"
        (tmp_path / "netrc").write_text(f"machine {host} login user password {KEY}\n")
    mirror = WandbLogger(timeout=0.5)
    assert drive(mirror, tmp_path) < AT_ONCE
    assert [p.partition(" (")[0] for p in mirror.problems] == (
        [] if source == "netrc of another server" else ["W&B: not online within 0.5 s"]
    )
    assert len(read(offline_files(tmp_path)[0])["history"]) == 8


def test_online_without_a_key_is_one_problem_and_offline(tmp_path: Path) -> None:
    mirror = WandbLogger(mode="online")
    drive(mirror, tmp_path)
    (problem,) = mirror.problems
    assert "No API key" in problem
    assert offline_files(tmp_path)


def test_a_server_that_never_answers_delays_nothing(
    silent_server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", silent_server)
    mirror = WandbLogger(timeout=1.0)
    start = time.monotonic()
    assert drive(mirror, tmp_path) < AT_ONCE
    assert time.monotonic() - start < 60  # the client's own patience is 90
    (problem,) = mirror.problems
    assert problem.startswith("W&B: not online within 1 s")
    assert offline_files(tmp_path)


@pytest.mark.parametrize("where", ["init", "log", "finish"])
def test_a_failing_client_is_one_problem(
    where: str, fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_FAILS", where)
    mirror = WandbLogger(mode="offline")
    assert drive(mirror, tmp_path) < AT_ONCE
    assert mirror.problems == [
        f"tracker lost: RuntimeError: no {where} today; the local record is complete",
    ]


@pytest.mark.parametrize("where", ["init", "log", "finish"])
def test_a_hanging_client_is_ended(where: str, fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_HANGS", where)
    monkeypatch.setattr(wandb_logger, "FINISH_WAIT", 1.0)
    mirror = WandbLogger(mode="offline")
    start = time.monotonic()
    assert drive(mirror, tmp_path, steps=range(1, 30_000)) < AT_ONCE  # more than the queue and the pipe hold
    assert time.monotonic() - start < 60
    assert mirror.problems[-1].startswith("W&B had not finished after 1 s")
    assert mirror.problems[:-1] == [p for p in mirror.problems if "too slow" in p]


@pytest.mark.parametrize("fault", ["fails", "hangs"])
@pytest.mark.parametrize("where", ["init", "log", "finish"])
def test_a_run_survives_its_tracker(
    fault: str, where: str, fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-82: it trains to its end with a complete record, and one event says what was lost."""
    monkeypatch.setenv(f"FAKE_{fault.upper()}", where)
    if fault == "hangs":
        monkeypatch.setattr(wandb_logger, "FINISH_WAIT", 1.0)
    code, done = run("trainer.steps=12", "logger=wandb", "logger.mode=offline", f"out={tmp_path / 'runs'}")
    assert (code, done.status["status"]) == (0, "finished")
    assert [row["step"] for row in done.metrics if "grad_norm" in row] == list(range(1, 13))
    (event,) = [event for event in done.events if event["kind"] == "tracker"]
    told = f"tracker lost: RuntimeError: no {where} today" if fault == "fails" else "W&B had not finished after 1 s"
    assert event["message"].startswith(told)


@pytest.mark.slow
def test_three_runs_of_a_process_are_three_in_the_tracker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F-78: each with its own name and configuration, and closed, the one that raises too."""
    words = ("trainer.steps=3", "logger=wandb", "logger.mode=offline", f"out={tmp_path}")
    step = Trainer.train_step

    def raises_in_the_second(self: Trainer) -> Any:
        if self.seed == 1 and self.step == 1:
            raise RuntimeError("out of luck")
        return step(self)

    monkeypatch.setattr(Trainer, "train_step", raises_in_the_second)
    for seed in range(3):
        with pytest.raises(RuntimeError, match="out of luck") if seed == 1 else nullcontext():
            run(*words, f"seed={seed}")
    seen = [read(file) for folder in (tmp_path / "default").iterdir() for file in offline_files(folder)]
    seen.sort(key=lambda one: one["run"]["config"]["update"]["seed"])
    assert [one["run"]["config"]["update"]["seed"] for one in seen] == [0, 1, 2]
    assert len({one["run"]["run_id"] for one in seen}) == 3
    assert [[row["step"] for row in one["history"] if row["step"]] for one in seen] == [[1, 2, 3], [1], [1, 2, 3]]
    assert [one["exit"][0].get("exit_code", 0) for one in seen] == [0, 1, 0]


def test_without_the_package_the_tracker_is_lost_once(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fake" / "wandb.py").write_text("raise ModuleNotFoundError('wandb is not here')")
    mirror = WandbLogger()
    drive(mirror, tmp_path)
    assert mirror.problems == ["tracker lost: ModuleNotFoundError: wandb is not here; the local record is complete"]


def test_a_folder_that_cannot_be_written_is_one_problem(tmp_path: Path) -> None:
    (tmp_path / "wandb").write_text("in the way")
    mirror = WandbLogger()
    drive(mirror, tmp_path)
    assert len(mirror.problems) == 1
    assert mirror.problems[0].startswith("tracker lost: ")


def test_a_client_that_cannot_be_started_is_one_problem(tmp_path: Path) -> None:
    (tmp_path / "wandb" / "client.log").mkdir(parents=True)
    mirror = WandbLogger(mode="offline")
    drive(mirror, tmp_path)
    (problem,) = mirror.problems
    assert problem.startswith("tracker lost: IsADirectoryError: ")


def test_a_wrong_variable_is_one_problem_and_offline(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "ofline")
    mirror = WandbLogger()
    drive(mirror, tmp_path)
    (problem,) = mirror.problems
    assert "WANDB_MODE=ofline" in problem
    assert "exit_code" in fake.read_text()


@pytest.mark.parametrize("stdin", ["closed", "terminal"])
def test_without_a_key_nothing_is_asked(stdin: str, tmp_path: Path) -> None:
    command = training(tmp_path, "mirror.finish({}, False); assert not mirror.problems, mirror.problems")
    if stdin == "closed":
        subprocess.run(["sh", "-c", 'exec "$@" <&-', "sh", *command], check=True, timeout=PATIENCE)
    else:
        ours, theirs = pty.openpty()
        subprocess.run(command, check=True, timeout=PATIENCE, stdin=theirs, stderr=theirs)
        os.close(theirs)
        os.close(ours)
    assert offline_files(tmp_path)


def test_a_hanging_client_does_not_keep_the_process(
    fake: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_HANGS", "log")
    # output pipes are not kept open either: the client would leave a minute after its parent
    subprocess.run(training(tmp_path, "pass"), check=True, timeout=ORPHAN_SECONDS - 5, capture_output=True)


def test_ctrl_c_reaches_training_and_not_the_mirror(fake: Path, tmp_path: Path) -> None:
    # once the client has answered: a signal between the fork and its own session would reach both
    end = """
    while not mirror._process._lines.empty():
        time.sleep(0.01)
    os.killpg(0, signal.SIGINT)
    while True:
        time.sleep(0.01)"""
    subprocess.run(training(tmp_path, end), check=True, timeout=PATIENCE, start_new_session=True)
    assert json.loads(fake.read_text().splitlines()[-1]) == {"exit_code": 1}


def test_disabled_and_local_write_nothing(tmp_path: Path) -> None:
    drive(WandbLogger(mode="disabled"), tmp_path / "a")
    drive(LocalLogger(), tmp_path / "a")
    assert not (tmp_path / "a").exists()


def test_names_fit_and_stay_different(tmp_path: Path) -> None:
    assert shorten("short", 64) == "short"
    one, two = shorten("x" * 100 + "1", 64), shorten("x" * 100 + "2", 64)
    assert len(one) == len(two) == 64
    assert one != two
    identity = own_id(tmp_path / "id", "a/b c:" + "d" * 80)
    assert identity.startswith("a-b-c-ddd")
    assert len(identity) == 64
    assert own_id(tmp_path / "id", "another") == identity
    assert own_id(tmp_path / "elsewhere", "another") != own_id(tmp_path / "fresh", "another")


def test_flatten() -> None:
    assert flatten({"a": {"b": {"c": 1}, "d": {}}, "e": [1]}) == {"a/b/c": 1, "a/d": "{}", "e": [1]}


def test_a_configuration_keeps_its_levels_and_has_no_empty_one() -> None:
    assert without_gaps({"a": {"b": {}, 3: {"c": []}}, "d": {}}) == {"a": {"b": "{}", "3": {"c": []}}, "d": "{}"}


def test_a_project_name_that_the_server_refuses_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"logger\.project='a/b'"):
        WandbLogger(project="a/b")


@pytest.mark.parametrize("name", ["wandb", "local"])
def test_config_has_every_key_of_the_signature(name: str) -> None:
    config = yaml.safe_load((ROOT / "configs" / "logger" / f"{name}.yaml").read_text())
    signature = inspect.signature(getattr(loggers, config.pop("_target_").rpartition(".")[2]))
    assert config == {key: parameter.default for key, parameter in signature.parameters.items()}
