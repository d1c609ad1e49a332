"""Uploads by the client's own `wandb sync`, against a stand-in for the server: each row arrives once, and is told."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from offline_runs import nobody_at_home, offline_files
from processes import PATIENCE, until
from wandb_server import KEY, StandIn, serving

from modernllm.logger import WandbLogger, upload
from modernllm.logger import server as asked
from modernllm.logger.upload import Standing, mark, standing
from modernllm.runs.directory import RunDirectory
from modernllm.runs.studies import Entry
from modernllm.scripting import main

sys.path.append(str(Path(__file__).parents[1] / "scripts"))
import sync as script
from sync import sync


def mirrored(run: Path, *spans: range, status: str = "finished") -> str:
    """A run whose mirror wrote these steps, one file a start, long ago; its id in W&B."""
    run.mkdir(parents=True)
    for span in spans:
        mirror = WandbLogger(mode="offline")
        mirror.start(directory=run, run_id=run.name, study="s", arm="a", tags=[], config={"seed": 0})
        for step in span:
            mirror.log({"step": step, "tokens": 10 * step, "loss": 1.0 / step})
        mirror.finish({"outcome": "ok"}, failed=False)
        assert mirror.problems == []
        if len(spans) > 1:
            time.sleep(1.1)  # the client tells files apart by the second
    for file in offline_files(run):
        os.utime(file, (1e9, 1e9))
    marked(run, status=status, outcome="ok")
    return (run / "wandb" / "id").read_text().strip()


def marked(run: Path, **status: str) -> None:
    run.mkdir(parents=True, exist_ok=True)
    (run / "status.json").write_text(json.dumps(status | {"time": 1.0}))


def entry(run: Path) -> Entry:
    return Entry(run, RunDirectory(run).status())


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of twenty steps, to be copied."""
    run = tmp_path_factory.mktemp("made") / "one"
    with pytest.MonkeyPatch.context() as patch:
        nobody_at_home(run.parent, patch)
        mirrored(run, range(1, 21))
    return run


@pytest.fixture
def study(one: Path, tmp_path: Path) -> Path:
    shutil.copytree(one, tmp_path / "s" / "one")
    return tmp_path / "s"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Somebody is logged in there."""
    nobody_at_home(tmp_path, monkeypatch)
    with serving() as stand_in:
        monkeypatch.setenv("WANDB_BASE_URL", stand_in.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        monkeypatch.setattr(asked, "server", lambda: stand_in.url)  # the client asks its environment once a process
        monkeypatch.setattr(upload, "server", lambda: stand_in.url)
        yield stand_in


def told(capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What became of each run, by name, without the count at the end."""
    *lines, _ = capsys.readouterr().out.splitlines()
    return {line[19:].partition(":")[0]: line[:19].strip() for line in lines}


def test_a_run_arrives_whole_and_once(study: Path, server: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    identity = (study / "one" / "wandb" / "id").read_text().strip()
    assert sync(str(study), dry_run=True) == 0
    assert told(capsys) == {"one": "to upload"}
    assert server.runs == {}
    assert sync(study.name, root=str(study.parent)) == 0
    assert told(capsys) == {"one": "uploaded"}
    assert server.steps(identity) == list(range(1, 21))
    assert (server.runs[identity]["groupName"], server.runs[identity]["jobType"]) == ("s", "a")
    assert server.ended == {identity: 0}
    server.history.clear()
    assert sync(str(study / "one")) == 0
    assert told(capsys) == {"one": "already there"}
    assert server.history == {}


def test_what_is_settled_without_the_client(tmp_path: Path, study: Path) -> None:
    run = study / "one"
    (file,) = offline_files(run)
    assert standing(entry(run)) == Standing("to upload", files=(file,))
    marked(tmp_path / "local", status="finished")
    assert standing(entry(tmp_path / "local")).why == "it has no mirror (logger=local)"
    marked(run, status="interrupted")
    os.utime(file)
    assert standing(entry(run)).word == "still running"  # the client outlives a killed trainer by a minute
    marked(run, status="finished")
    assert standing(entry(run)).word == "to upload"
    mark(file).touch()
    assert standing(entry(run)).word == "already there"
    os.utime(mark(file), (1e9, 1e9))  # written to after it was uploaded
    assert standing(entry(run)).word == "to upload"
    os.truncate(file, upload.EMPTY)
    assert standing(entry(run)).word == "nothing to upload"
    with RunDirectory(run)._lock:
        marked(run, status="running")
        assert standing(Entry(run, {"status": "running"})).word == "still running"


@pytest.mark.parametrize(
    ("status", "message", "word"),
    [
        ({"status": "finished", "outcome": "ok"}, "", "already there"),
        ({"status": "failed", "reason": "RuntimeError: no luck"}, "", "already there"),
        ({"status": "finished", "outcome": "ok"}, "the upload was not finished", "to upload"),
        ({"status": "interrupted"}, "", "to upload"),  # the machine went down with it
    ],
)
def test_a_run_that_was_online(study: Path, status: dict[str, str], message: str, word: str) -> None:
    run = study / "one"
    (file,) = offline_files(run)
    file.parent.rename(file.parent.with_name(file.parent.name.removeprefix("offline-")))
    marked(run, **status)
    if message:
        event = {"step": 20, "kind": "tracker", "message": message}
        (run / "events.jsonl").write_text(json.dumps(event) + "\n")
    assert standing(entry(run)).word == word


def test_a_damaged_run_does_not_stop_the_others(study: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(study / "one", study / "damaged")
    (file,) = offline_files(study / "damaged")
    file.parent.rename(file.parent.with_name(file.parent.name.removeprefix("offline-")))
    (study / "damaged" / "events.jsonl").write_text("{]\n")
    assert sync(str(study), dry_run=True) == 1
    assert told(capsys) == {"damaged": "failed", "one": "to upload"}
    verdict = study.parent / "verdicts" / study.name
    verdict.mkdir(parents=True)
    assert sync(str(verdict), dry_run=True) == 1  # of a claim: its runs are beside
    assert told(capsys) == {"damaged": "failed", "one": "to upload"}
    with pytest.raises(FileNotFoundError, match=f"a folder of studies: {study.name}$"):
        sync(str(study.parent))
    with pytest.raises(FileNotFoundError, match="no such folder, and no study of that name in root=runs"):
        sync("nowhere")
    (study.parent / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="no runs in it"):
        sync(str(study.parent / "empty"))


def test_nobody_logged_in_and_no_network_say_what_to_do(
    study: Path, server: StandIn, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    assert main(sync, [str(study)]) == 1
    assert "`wandb login` does that" in capsys.readouterr().err
    monkeypatch.setenv("WANDB_API_KEY", "short")
    assert main(sync, [str(study)]) == 1
    assert "API key must have 40+ characters, has 5" in capsys.readouterr().err
    monkeypatch.setattr(asked, "server", lambda: "http://127.0.0.1:9")
    assert main(sync, [str(study)]) == 1
    assert "no answer from W&B at http://127.0.0.1:9" in capsys.readouterr().err


@pytest.mark.slow
def test_what_failed_is_done_by_the_next_call(study: Path, server: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    server.fault = 403
    assert sync(str(study)) == 1
    line = capsys.readouterr().out.splitlines()[0]
    assert line == "failed             one: permission denied"
    server.fault = 0
    server.unanswered = {(study / "one" / "wandb" / "id").read_text().strip()}
    assert sync(str(study), timeout=2.0) == 1
    assert "no end within 2 s" in capsys.readouterr().out
    server.fault = 503
    for timeout in (4.0, 8.0, 16.0, 32.0, 64.0):  # on a busy machine it asks late
        assert sync(str(study), timeout=timeout) == 1
        said = capsys.readouterr().out
        assert f"no end within {timeout:g} s" in said
        if "503" in said:
            break
    assert f"no end within {timeout:g} s (the server answers 503); the next call goes on" in said
    server.fault = 0
    server.unanswered.clear()
    assert sync(str(study)) == 0
    assert told(capsys) == {"one": "uploaded"}
    assert [server.steps(run) for run in server.runs] == [list(range(1, 21))]


@pytest.mark.slow
def test_an_upload_begun_again_writes_over_its_own_rows(study: Path, server: StandIn) -> None:
    identity = (study / "one" / "wandb" / "id").read_text().strip()
    (file,) = offline_files(study / "one")
    for _ in range(2):
        assert sync(str(study)) == 0
        assert server.steps(identity) == list(range(1, 21))
        mark(file).unlink()


@pytest.mark.slow
def test_a_run_that_was_online_arrives_once(
    tmp_path: Path, server: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its server went away in the middle: what it had got is written over."""
    run = tmp_path / "s" / "online"
    run.mkdir(parents=True)
    mirror = WandbLogger(mode="online", timeout=PATIENCE)
    mirror.start(directory=run, run_id="online", study="s", arm="a", tags=[], config={"seed": 0})
    for step in range(1, 21):
        mirror.log({"step": step, "tokens": 10 * step, "loss": 1.0 / step})
    mirror.finish({"outcome": "ok"}, failed=False)
    assert mirror.problems == []
    marked(run, status="finished", outcome="ok")
    (identity,) = server.history
    del server.history[identity][5:]
    assert sync(str(run)) == 0
    assert told(capsys) == {"online": "already there"}
    event = {"step": 20, "kind": "tracker", "message": "W&B: the upload was not finished"}
    (run / "events.jsonl").write_text(json.dumps(event) + "\n")
    assert sync(str(run)) == 0
    assert told(capsys) == {"online": "uploaded"}
    assert server.steps(identity) == list(range(1, 21))


@pytest.mark.slow
def test_a_resumed_run_and_torn_files(study: Path, server: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    """What the kill of a machine leaves: half a record, and then a second start, or not even a first record."""
    resumed = mirrored(study / "resumed", range(1, 7), range(4, 11))
    torn = offline_files(study / "one")[0]
    shutil.copytree(study / "one", study / "unwritten")
    os.truncate(offline_files(study / "unwritten")[0], 20)
    for file in (torn, offline_files(study / "resumed")[0]):
        os.truncate(file, file.stat().st_size - 500)
    assert sync(str(study)) == 0
    assert told(capsys) == {"one": "uploaded", "resumed": "uploaded", "unwritten": "nothing to upload"}
    one = server.steps((study / "one" / "wandb" / "id").read_text().strip())
    assert one == list(range(1, len(one) + 1))
    assert 15 < len(one) < 20
    steps = server.steps(resumed)
    first = steps.index(4, 4)
    assert steps[:first] == list(range(1, first + 1))
    assert steps[first:] == list(range(4, 11))
    counters = [row["_step"] for row in server.history[resumed]]
    assert counters == sorted(set(counters))  # W&B drops what goes back
    assert sync(str(study)) == 0
    assert told(capsys) == {"one": "already there", "resumed": "already there", "unwritten": "nothing to upload"}


@pytest.mark.slow
def test_killed_in_the_middle_it_goes_on(study: Path, server: StandIn, capsys: pytest.CaptureFixture[str]) -> None:
    last = mirrored(study / "two", range(1, 21))
    server.unanswered = {last}
    command = [sys.executable, script.__file__, str(study)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout
        assert process.stdout.readline().startswith("uploaded           one")
        until(lambda: last in server.runs)
        os.killpg(process.pid, signal.SIGKILL)
    server.unanswered.clear()
    before = {run: list(rows) for run, rows in server.history.items()}
    assert sync(str(study)) == 0
    assert told(capsys) == {"one": "already there", "two": "uploaded"}
    assert server.steps(last) == list(range(1, 21))
    assert all(server.history[run] == rows for run, rows in before.items() if run != last)
