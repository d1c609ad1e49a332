"""What is known of a sweep before it starts: its runs by name, what there is of them, and what a person should know."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from running import run, small

from modernllm import Run
from modernllm.config.command import Composer, read_command
from modernllm.config.compose import compose_with_choices
from modernllm.config.errors import ConfigError
from modernllm.runs import identity
from modernllm.runs.directory import RunDirectory
from modernllm.sweep import notes as module
from modernllm.sweep.estimate import durations, estimate
from modernllm.sweep.notes import notes, summary
from modernllm.sweep.plan import Plan, make_plan
from modernllm.sweep.request import asked, one_checkpoint, without_settings

SHORT = ("trainer.steps=3",)


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def planned(*words: str, retry: bool = False, overwrite: bool = False) -> Plan:
    """The plan of `python train.py -m` with these."""
    command = read_command(small(*SHORT, *words), many=True)
    composer = Composer()
    jobs = []
    for job in command.jobs:
        cfg, chosen = composer(job)
        words_of_job = asked(chosen, job)
        jobs.append((one_checkpoint(without_settings(cfg), words_of_job), words_of_job))
    return make_plan(jobs, retry, overwrite)


def told(plan: Plan) -> list[str]:
    return [summary(plan), *notes(plan)]


# --- jobs are composed as one run is


GRIDS = [
    ["norm=rmsnorm,none", "optimizer.lr=1e-3,3e-3", "size=nano,deep"],
    ["placement=post,residual_dual", "model.dropout=0,0.1", "readout=none"],
    ["arch=gemma2,deepseek", "model.dim=64,128", "size=nano"],
    ["optimizer.betas=[0.9,0.95],[0.9,0.99]", "study=a,'b c',1", "trainer.micro_batch=null,2"],
    ["+model.norm.eps2=1", "norm=rmsnorm", "++model.norm.eps=1e-5,1e-6", "model.norm.eps=1e-3"],
    ["model.norm.eps=1e-3,1e-4", "norm=rmsnorm", "++model.norm.eps=1e-5"],
    ["optimizer={lr: 1e-3},{lr: 2e-3}", "optimizer.lr=3e-3", "optimizer=adamw,lion"],
]


@pytest.mark.parametrize("words", GRIDS, ids=lambda words: words[0])
def test_a_job_is_composed_as_the_run_by_itself(words: list[str]) -> None:
    composer = Composer()
    for job in read_command(words, many=True).jobs:
        cfg, chosen = composer(job)
        alone, chosen_alone = compose_with_choices(job)
        assert (cfg, chosen) == (alone, chosen_alone)


@pytest.mark.parametrize("word", ["optimizer.lrr=1", "model.norm=none", "~norm", "seed.x=1", "optimizer.lr.x=1"])
def test_a_bad_word_is_told_as_for_one_run(word: str) -> None:
    with pytest.raises(ConfigError) as alone:
        compose_with_choices([word])
    with pytest.raises(ConfigError) as one_of_many:
        Composer()([word])
    assert str(one_of_many.value) == str(alone.value)


def test_no_word_of_the_command_reaches_a_run() -> None:
    plain = planned("seed=0")
    worded = planned("seed=0", "plan=True", "retry=true", "sweep=ofat", "executor.workers=7")
    (one,), (other,) = plain.runs, worded.runs
    assert one == other
    assert not {"plan", "retry", "sweep", "executor"} & set(other.config)
    assert list(other.asked.overrides) == [word.partition("=")[0] for word in small(*SHORT, "seed=0")]


# --- what there is of them


def finished(seed: int, **changed: Any) -> Run:
    """A run that is done, with another status where `changed` says so."""
    _, done = run(*SHORT, f"seed={seed}")
    if changed:
        status = json.loads((done.path / "status.json").read_text())
        (done.path / "status.json").write_text(json.dumps(status | changed))
    return done


def test_every_state_is_told() -> None:
    finished(0)
    finished(1, status="failed", reason="no luck")
    finished(2, status="interrupted")
    held = RunDirectory(finished(3, status="running").path)
    held.acquire()
    plan = planned("seed=0,1,2,3,4")
    assert told(plan) == [
        "5 runs: 1 finished already, 1 failed before (retry=true tries again), 1 to go on with, "
        "1 being run by another process, 1 to run"
    ]
    assert [run.config["seed"] for run in plan.todo] == [2, 3, 4]
    plan = planned("seed=0,1,2,3,4", retry=True)
    assert summary(plan) == ("5 runs: 1 finished already, 2 to go on with, 1 being run by another process, 1 to run")
    assert [run.config["seed"] for run in plan.todo] == [1, 2, 3, 4]
    plan = planned("seed=0,1,2,3,4", overwrite=True)
    assert summary(plan) == "5 runs: 5 to run"
    held.release()
    assert summary(planned("seed=3,4")) == "2 runs: 1 to go on with, 1 to run"  # a dead process holds nothing


def test_a_run_is_found_again_by_what_it_is() -> None:
    """F-70: another grid, other words, another place in the list."""
    done = finished(0)
    plan = planned("norm=none,rmsnorm", "optimizer.lr=0.001,0.005", "seed=1,0")
    assert done.config["optimizer"]["lr"] == 0.005
    assert [each.path == done.path for each in plan.runs].index(True) == 7
    assert plan.done == [plan.runs[7]]


# --- what a person should know


def test_equal_jobs_are_told() -> None:
    """F-67."""
    assert told(planned("seed=1,1")) == ["1 run: 1 to run", "2 of the jobs are one run (they are equal)"]
    assert told(planned("seed=0,1", "norm=none,none")) == [
        "2 runs: 2 to run",
        "2 of the jobs are one run (they are equal): seed=0",
        "2 of the jobs are one run (they are equal): seed=1",
    ]


def test_jobs_that_differ_in_what_nothing_reads_are_told() -> None:
    assert told(planned("placement=pre,none", "norm=rmsnorm,layernorm")) == [
        "3 runs: 3 to run",
        "2 of the jobs are one run (nothing reads norm there): placement=none norm=rmsnorm and "
        "placement=none norm=layernorm",
    ]
    assert told(planned("placement=none", "norm=layernorm", "seed=0,1")) == [
        "2 runs: 2 to run",
        "nothing reads norm=layernorm in 2 of the runs: any other choice gives the same run",
    ]


def test_jobs_that_resolve_to_the_same_are_told() -> None:
    (_, line) = told(planned("optimizer.lr=1e-3,0.001"))
    assert line.startswith("2 of the jobs are one run (they ")
    many = told(planned("seed=range(0,8)", "norm=none,none"))
    assert len(many) == 1 + module.SHOWN + 1
    assert many[-1] == "and so are those of 3 further runs"


def test_other_code_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "code_state", lambda: {"commit": "a" * 40, "dirty": False})
    finished(0)
    finished(1, status="interrupted")
    monkeypatch.setattr(module, "code_state", lambda: {"commit": "a" * 40, "dirty": False})
    assert len(told(planned("seed=0,1"))) == 1
    monkeypatch.setattr(module, "code_state", lambda: {"commit": "b" * 40, "dirty": False})
    assert told(planned("seed=0,1"))[1:] == [
        "1 of the finished runs were made by other code (aaaaaaa; here bbbbbbb): overwrite=true runs them again",
        "1 of the runs to go on with were begun by other code (aaaaaaa; here bbbbbbb): overwrite=true starts them "
        "afresh",
    ]
    assert len(told(planned("seed=0,1", overwrite=True))) == 1


def test_another_text_under_the_same_name_is_told(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    words = ("data=files", f"data.path={text}", "data.n_documents=40")[:2]
    text.write_text("".join(f"line {i} of a small text\n" for i in range(400)))
    _, done = run(*SHORT, *words)
    text.write_text("".join(f"line {i} of another text\n" for i in range(400)))
    assert told(planned(*words)) == [
        "1 run: 1 to run",
        "1 run in runs/default was made with another text under the same name: not one of these",
    ]
    for content in ("", "{}", "[", '{"choices": 1}'):
        (done.path / "run.json").write_text(content)
        assert told(planned(*words)) == ["1 run: 1 to run"]


# --- what it would cost


def test_an_estimate_counts_tokens_time_and_disk() -> None:
    plan = planned("model.n_layers=1,6", "seed=0,1", "trainer.steps=1000")
    assert [run.tokens for run in plan.todo] == [1000 * 4 * 32] * 4
    tokens, times, disk = estimate(plan, [None, None])
    assert tokens == "512,000 tokens"
    assert times.startswith("about ")
    assert times.endswith("with 2 at a time (" + times.partition("(")[2])
    assert disk.startswith("about ")
    one, two, three, four = durations(plan.todo)
    assert (one, three) == (two, four)
    assert 0.05 < one < 100
    assert one < three < 12 * one  # 4 times on an idle core; a busy one has added 40 % to either


def test_an_estimate_is_of_what_is_to_be_run() -> None:
    finished(0)
    assert list(estimate(planned("seed=0"), [None])) == ["nothing to do"]


# --- many


def test_finished_runs_are_skipped_in_a_moment_each() -> None:
    """A thousand within two minutes is the promise: 0.12 s each, of which planning takes a part."""
    done = finished(0)
    words = ("norm=rmsnorm,layernorm,none,dyt,scalenorm", "optimizer.lr=1e-3,2e-3", "seed=range(0,4)")
    for each in planned(*words).unique:
        shutil.copytree(done.path, each.path, dirs_exist_ok=True)
    started = time.process_time()
    plan = planned(*words)
    assert summary(plan) == "40 runs: 40 finished already"
    assert plan.todo == []
    assert time.process_time() - started < 40 * 0.1
