"""The command line as a person meets it: what it leaves, what it says, and with which code it ends."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from omegaconf import OmegaConf
from processes import PATIENCE
from running import SMALL, TRAIN, asked, command, copied, metrics, run, same, small

from modernllm import checkpoint, experiment, load_run
from modernllm.config.build import build, build_model
from modernllm.config.check import check
from modernllm.runs.directory import RunDirectory
from modernllm.trainer import Trainer

DEFAULT = ("trainer=smoke", "size=nano", "data=synthetic", "logger=local")
CODE = TRAIN.parent
HEAVY = {"torch", "numpy", "scipy", "datasets", "transformers", "wandb"}
"""What takes its time to be imported."""


def launch(cwd: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python train.py` in a process of its own."""
    return subprocess.run(
        [sys.executable, str(TRAIN), *words], cwd=cwd, env=os.environ | environment, timeout=PATIENCE,
        capture_output=True, text=True, encoding="utf-8", check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def launch_quick(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The same, of a command that imports nothing HEAVY: what a clock shows depends on the machine."""
    done = launch(cwd, *words, PYTHONPROFILEIMPORTTIME="1")
    lines = done.stderr.splitlines(keepends=True)
    imports = [line for line in lines if line.startswith("import time:")]
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in imports}
    assert "modernllm" in imported
    assert not imported & HEAVY
    done.stderr = "".join(line for line in lines if line not in imports)
    return done


def strict(text: str) -> Any:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


def contents(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        path.relative_to(folder).as_posix(): (path.stat().st_mtime_ns, path.read_bytes())
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


Tell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Tell:
    """`python train.py` with SMALL and these words in this process and `tmp_path`: code, output, errors."""
    monkeypatch.chdir(tmp_path)

    def tell(*words: str) -> tuple[int, str, str]:
        options = [word for word in words if word.startswith("-")]
        rest = small(*(word for word in words if word not in options))
        code = command(monkeypatch, *options, *rest)
        out, err = capsys.readouterr()
        return code, out, err

    return tell


# --- one run, from nothing


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """The default flow with a drawn seed, started in / with an absolute `out`."""
    out = tmp_path_factory.mktemp("first")
    done = launch(Path("/"), *DEFAULT, "seed=null", f"out={out}")
    assert done.returncode == 0, done.stderr
    (folder,) = (out / "default").iterdir()
    return folder, done


def test_it_leaves_the_record_and_nothing_else(first: tuple[Path, Any]) -> None:
    folder, _ = first
    assert sorted(path.name for path in folder.iterdir()) == [
        ".lock", "checkpoints", "config.yaml", "metrics.jsonl", "run.json", "status.json",
        "telemetry.jsonl",
    ]  # fmt: skip
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert [path.name for path in folder.parents[1].iterdir()] == ["default"]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == [
        "best.safetensors", "final.safetensors", "step-00000002.pt", "step-00000003.pt",
    ]  # fmt: skip


def test_its_rows_are_strict_json_with_the_promised_keys(first: tuple[Path, Any]) -> None:
    folder, _ = first
    rows = [strict(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "grad_norm" in row]
    assert [row["step"] for row in steps] == [1, 2, 3]
    for row in steps:
        assert list(row) == ["step", "tokens", "loss", "grad_norm", "clipped", "lr", "tokens_per_s"]
    evaluations = [row for row in rows if "val_loss" in row]
    assert [list(row) for row in evaluations] == [["step", "tokens", "val_loss", "val_bits_per_byte"]] * 4
    assert [row["step"] for row in evaluations] == [0, 1, 2, 3]
    assert len(rows) == 7
    watched = [strict(line) for line in (folder / "telemetry.jsonl").read_text().splitlines()]
    assert [row["step"] for row in watched if "grad_norm" in row] == [1, 2, 3]
    assert [row["step"] for row in watched if "probe" in row] == [0, 3]
    assert steps[-1]["tokens"] == 3 * 8 * 64
    assert steps[-1]["loss"] < steps[0]["loss"] - 1

    status = strict((folder / "status.json").read_text())
    assert (status["status"], status["outcome"], status["step"]) == ("finished", None, 3)
    assert status["val_loss"] == evaluations[-1]["val_loss"]
    assert status["best"] == {"step": 3, "val_loss": status["val_loss"]}
    assert status["clipped_share"] == 1.0
    assert status["tokens"] == 1536
    assert status["unigram_floor"] > status["bigram_floor"] + 1
    assert isinstance(status["sample"], str)


def test_its_identity_says_what_it_is_made_of(first: tuple[Path, Any]) -> None:
    identity = strict((first[0] / "run.json").read_text())
    assert identity["run_id"] == first[0].name == load_run(first[0]).run_id
    assert identity["run_id"].endswith(identity["config_hash"][:10])
    assert identity["parameters"]["total"] == 228288
    assert identity["flops_per_token"] == {"algorithmic": 455552, "training": 3 * 455552, "executed": 487808}
    assert identity["cache_bytes_per_token"] == 4 * 4 * 2 * 64
    assert all(len(identity[name]) == 64 for name in ("corpus", "tokenizer", "validation", "config_hash"))
    assert identity["choices"]["placement"] == "pre"
    assert identity["overrides"]["seed"] == "null"
    assert identity["command"][:4] == list(DEFAULT)
    head = subprocess.run(["git", "-C", str(CODE), "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    assert identity["code"]["commit"] == (head.stdout.strip() or None)


def test_it_tells_the_story(first: tuple[Path, Any]) -> None:
    folder, done = first
    assert done.stderr == ""
    said = done.stdout
    for part in (
        "nano: 228,288 parameters, 4 layers of width 64, 3 steps of 8 x 64 tokens on",
        "norm=rmsnorm placement=pre position=rope",
        "step     0  val loss ", "step 3/3  loss ", "gradients clipped in 100% of the steps",
        "outcome: undecided  (3 steps are too few to tell: 100 are needed)",
        "what it writes:", f"files: {folder}  (checkpoints config.yaml", "next:",
    ):  # fmt: skip
        assert part in said


def test_its_configuration_alone_rebuilds_it(
    first: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-71: in another folder, the drawn seed in it, and trained again it takes the same way bit for bit."""
    folder, _ = first
    text = (folder / "config.yaml").read_text()
    assert "${" not in text
    config = yaml.safe_load(text)
    assert isinstance(config["seed"], int)
    assert folder.name.startswith(f"nano-data_synthetic-s{config['seed']}-")
    check(config)
    monkeypatch.chdir(tmp_path)
    model, _ = build_model(config["model"])
    build(config["init"], "init")(model, config["seed"])
    again, _ = build_model(config["model"])
    build(config["init"], "init")(again, config["seed"])
    assert same(copied(model), copied(again))

    choices = load_run(folder).identity["choices"]
    config["out"] = str(tmp_path)
    _, repeated = experiment.run(OmegaConf.create(config), asked(choices, DEFAULT))
    assert repeated.run_id == folder.name
    assert metrics(repeated.path, "step") == metrics(folder, "step")
    trained = load_run(folder).model()
    assert same(copied(trained), copied(repeated.model()))
    assert same(checkpoint.load(folder / "checkpoints" / "step-00000003.pt")["model"], copied(trained))
    assert not same(copied(trained), copied(model))
    assert not trained.training


def test_the_same_command_prints_the_result_and_changes_nothing(
    first: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder, done = first
    before = contents(folder)
    seed = yaml.safe_load((folder / "config.yaml").read_text())["seed"]
    monkeypatch.delattr(Trainer, "fit")  # nothing is trained
    assert command(monkeypatch, *DEFAULT, f"seed={seed}", f"out={folder.parents[1]}") == 0
    said, err = capsys.readouterr()
    assert err == ""
    assert said.startswith(f"{folder.name} is finished already (overwrite=true runs it again)\n\noutcome: undecided")
    kinds = ("validation loss", "progress", "1,536 tokens")
    result = [line for line in done.stdout.splitlines() if line.startswith(kinds)]
    assert len(result) == 3
    assert all(line in said for line in result)
    assert contents(folder) == before


def test_overwrite_runs_it_again(first: tuple[Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(first[0], tmp_path / "default" / first[0].name)
    before, rows = contents(folder), metrics(folder, "step")
    (folder / "stale").mkdir()
    seed = yaml.safe_load((folder / "config.yaml").read_text())["seed"]
    words = (*DEFAULT, f"seed={seed}", f"out={tmp_path}", "overwrite=true")
    assert command(monkeypatch, *words) == 0
    after = contents(folder)
    assert after.keys() == before.keys()
    assert not (folder / "stale").exists()
    assert all(after[name][0] > before[name][0] for name in after if name != ".lock")
    assert metrics(folder, "step") == rows


# --- what is refused


REFUSED = [
    # words, code, parts of the one error
    (["typo=1"], 2, ["typo=1: no key typo"]),
    (["+typo=1"], 2, ["+typo=1: no key typo; python train.py --cfg job shows every key"]),
    (["optimizer.lrr=1"], 2, ["optimizer.lrr=1", "did you mean optimizer.lr?"]),
    (["norm=layernrom"], 2, ["norm=layernrom: norm has no choice layernrom; did you mean layernorm?"]),
    (["seed=abc"], 2, ["seed=abc: should be a whole number >= 0, or null"]),
    (["seed=1,2"], 2, ["seed=1,2: several values for seed are several runs: put -m in front"]),
    (["trainer.steps=1.5"], 2, ["trainer.steps=1.5: should be a whole number >= 1"]),
    (["optimizer.lr=-1"], 2, ["optimizer.lr=-1: should be a finite number > 0"]),
    (["trainer.micro_batch=0"], 2, ["trainer.micro_batch=0: should be a whole number >= 1, or null"]),
    (["trainer.clip=-1"], 2, ["trainer.clip=-1: should be a number > 0"]),
    (["init._target_=os.system"], 2, ["init._target_=os.system: is no class of modernllm, torch.nn or"]),
    (["data=files"], 2, ["data.path: is not set; data.path=... sets it"]),
    (["--size=nano"], 2, ["--size=nano: no such option; an override has no dashes, as size=nano"]),
    (["--config-dir=/no/such"], 2, ["/no/such: no such folder to look for configurations in"]),
    (["model.n_heads=5"], 2, ["model.n_heads=5 does not divide model.dim=32", "one of [1, 2, 4, 8, 16, 32]"]),
    (["attention=gqa", "model.n_kv_heads=3"], 2, ["model.n_kv_heads=3", "model.n_heads=4"]),
    (["model.n_kv_heads=2"], 2, ["model.n_kv_heads=2", "model.n_heads=4", "attention=gqa"]),
    (["model.head_dim=7"], 2, ["position=rope turns pairs: model.head_dim=7 is odd", "choose an even"]),
    (["optimizer.betas=[0.9]"], 2, ["optimizer.betas=[0.9]: two numbers are needed, such as [0.9, 0.95]"]),
    (["schedule.warmup=20", "trainer.steps=10"], 2, ["schedule.warmup=20: the run has 10 steps; warm up for fewer"]),
    (["data=files", "data.path=absent.txt", "model.n_heads=5"], 2, ["model.n_heads=5"]),  # before a text is read
    (["logger=wandb", "logger.project=a/b"], 2, ["logger.project='a/b': W&B takes 1 to 128 characters"]),
    (["model.vocab_size=100"], 1, ["train.bin: token 1 is 105, but the vocabulary has 100 ids (model."]),
    (["trainer.device=mps"], 1, ["trainer.device=mps: this machine has none", "choose one of auto, cpu"]),
    (["data=files", "data.path=absent.txt"], 1, ["data.path=absent.txt: no such file", "use data=stdlib"]),
    (["data=files", "data.path=empty.txt"], 1, ["data.path=empty.txt: there is no text in it"]),
    (["data=files", "data.path=bytes.txt"], 1, ["bytes.txt: byte 0x92 at offset 5 is no utf-8", "encoding="]),
    (["data=files", "data.path=short.txt"], 1,
     ["split has ", " tokens and a window needs 33 (model.context_length=32", "a larger text"]),
    (["data=files", "data.path=medium.txt"], 1,
     ["the validation split has 17 tokens and a window needs 33 (model.context_length=32"]),
]  # fmt: skip


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    (tmp_path / "empty.txt").touch()
    (tmp_path / "bytes.txt").write_bytes(b"don't\x92 do this\n" * 100)
    (tmp_path / "short.txt").write_text("twenty tokens and 2\n" + "x")
    (tmp_path / "medium.txt").write_text("fifteen letters\n" * 20)
    return tmp_path


@pytest.mark.parametrize(("words", "code", "parts"), REFUSED, ids=[" ".join(words) for words, _, _ in REFUSED])
def test_bad_input_is_one_error_and_leaves_nothing(
    words: list[str], code: int, parts: list[str], texts: Path, tell: Tell
) -> None:
    if "trainer.device=mps" in words and torch.backends.mps.is_available():
        pytest.skip("this machine has one")
    found, out, err = tell(*words)
    assert (found, out) == (code, "")
    lines = [line for line in err.splitlines() if not line.startswith("  ")]  # the choices of a group are listed
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    for part in parts:
        assert part in lines[0]
    assert not (texts / "runs").exists()


def test_bad_input_in_a_process_of_its_own(tmp_path: Path) -> None:
    done = launch_quick(tmp_path, "sed=3", "norm=rmsnrom")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: norm=rmsnrom: norm has no choice rmsnrom; did you mean rmsnorm?")
    assert "sed=3: no key sed; did you mean seed?" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_token_outside_the_vocabulary_is_named_with_its_place(tell: Tell) -> None:
    """F-51: file, offset and id, as they are in the file."""
    _, _, err = tell("model.vocab_size=100")
    found = re.match(r"error: (.*train\.bin): token (\d+) is (\d+), but the vocabulary has 100 ids", err)
    assert found
    tokens, at = np.fromfile(found[1], np.uint16), int(found[2])
    assert tokens[at] == int(found[3]) >= 100
    assert (tokens[:at] < 100).all()


def test_a_running_run_is_refused(tell: Tell, tmp_path: Path) -> None:
    code, _, _ = tell("trainer.steps=2")
    (folder,) = (tmp_path / "runs" / "default").iterdir()
    before = contents(folder)
    running = RunDirectory(folder)
    running.acquire()
    for words in (["trainer.steps=2"], ["trainer.steps=2", "overwrite=true"]):
        code, out, err = tell(*words)
        assert (code, out) == (1, "")
        assert err == (
            f"error: {folder.relative_to(tmp_path)} is being run by another process: wait for it, "
            "or change the configuration\n"
        )
    running.release()
    assert contents(folder) == before


def test_an_unwritable_place_is_one_error(tell: Tell, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    code, out, err = tell()
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert "runs" in err
    assert len(err.splitlines()) == 1


# --- what ends otherwise


@pytest.mark.parametrize(
    ("words", "step"), [(["model.n_layers=10"], 1), (["optimizer.lr=1000"], 2)], ids=["deep", "learning rate"]
)
def test_a_run_that_is_not_finite_ends_with_4_again_and_again(words: list[str], step: int, tell: Tell) -> None:
    """A result and no error: ten layers without a norm overflow before they learn anything."""
    words = [*words, "placement=none", "trainer.steps=20", "trainer.batch_size=2"]
    code, out, err = tell(*words)
    assert (code, err) == (4, "")
    assert f"outcome: nonfinite  (first non-finite step: {step})" in out
    assert f"! non-finite at step {step}: loss " in out
    (folder,) = Path("runs/default").iterdir()
    done = load_run(folder)
    assert (done.status["status"], done.outcome, done.status["step"]) == ("finished", "nonfinite", step)
    assert done.status["first_nonfinite_step"] == step
    assert (done.status["sample"], done.status["val_bits_per_byte"]) == (None, None)
    assert math.isnan(done.status["val_loss"])
    assert not (folder / "checkpoints").exists()
    for file in ("status.json", "run.json"):
        strict((folder / file).read_text())
    assert [strict(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    before = contents(folder)
    again, told, _ = tell(*words)
    assert again == 4
    assert "is finished already" in told
    assert contents(folder) == before


@pytest.mark.parametrize(
    ("ends", "status", "code"),
    [
        (RuntimeError("out of luck"), "failed", 1),
        (OSError(28, "no room"), "failed", 1),
        (SystemExit(0), "failed", 1),
        (KeyboardInterrupt(), "interrupted", 130),
    ],
    ids=repr,
)
def test_the_status_tells_the_end_and_the_same_command_goes_on(
    ends: BaseException, status: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    words, step = ("trainer.steps=4", "trainer.checkpoint_every=1", f"out={tmp_path}"), Trainer.train_step

    def dies_in_step_3(self: Trainer) -> Any:
        assert {"config.yaml", "run.json", "status.json"} <= {p.name for p in self.recorder.directory.path.iterdir()}
        if self.step == 2:
            raise ends
        return step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train_step", dies_in_step_3)
        assert command(patch, *SMALL, *words) == code
    (folder,) = (tmp_path / "default").iterdir()
    left = strict((folder / "status.json").read_text())
    assert left["status"] == status
    assert left["reason"].startswith(type(ends).__name__)
    told = capsys.readouterr().err
    assert ("Traceback" in told) == isinstance(ends, RuntimeError | SystemExit)
    assert ("error: [Errno 28] no room" in told) == isinstance(ends, OSError)
    assert load_run(folder).status["status"] == status
    assert load_run(folder).word == status
    assert math.isnan(load_run(folder).val_loss)

    code, done = run(*words)
    assert (code, done.path, done.status["status"]) == (0, folder, "finished")
    assert [row["step"] for row in done.metrics if "grad_norm" in row] == [1, 2, 3, 4]
    assert [event["step"] for event in done.events if event["kind"] == "resume"] == [2]


# --- sweeps


def test_a_sweep_ends_in_a_table(tmp_path: Path) -> None:
    """Its columns are what this command varies, though the first run was made by another command."""
    words = (*SMALL, "trainer=smoke")
    assert run("trainer=smoke", "study=s", f"out={tmp_path / 'runs'}")[0] == 0
    done = launch(tmp_path, "-m", *words, "study=s", "placement=pre,post", "seed=0,0")
    assert (done.returncode, done.stderr) == (0, "")
    folders = sorted((tmp_path / "runs" / "s").iterdir())
    assert [re.sub(r"-\w+$", "", folder.name) for folder in folders] == [
        "nano-data_synthetic-placement_post-s0",
        "nano-data_synthetic-s0",
    ]
    lines = done.stdout.splitlines()
    assert lines[:3] == [
        "2 runs: 1 finished already, 1 to run",
        "! 2 of the jobs are one run (they are equal): placement=pre",
        "! 2 of the jobs are one run (they are equal): placement=post",
    ]
    (heading,) = [line for line in lines if "gradient norm by depth" in line]
    assert heading.split()[:3] == ["placement", "┃", "outcome"]
    rows = [re.split(r"\s*│\s*", line) for line in lines if "│" in line]
    losses = {folder.name.split("-")[2]: load_run(folder).val_loss for folder in folders}
    pre, post = f"{losses['s0']:.2f}", f"{losses['placement_post']:.2f}"
    assert [row[:3] for row in rows] == [
        *[["pre", "undecided", pre]] * 2, *[["post", "undecided", post]] * 2,
    ]  # fmt: skip
    assert f"pre undecided {pre} | pre undecided {pre} | post undecided {post} | post undecided {post}" in lines
    assert "seed=" not in lines[-1]  # three steps tell nothing, with other seeds as little


def test_combinations_that_cannot_work_are_all_told_before_any_run(tell: Tell, tmp_path: Path) -> None:
    code, out, err = tell("-m", "trainer=smoke", "model.n_heads=3,2,5", "seed=0,1")
    assert (code, out) == (2, "")
    told = err.removeprefix("error: ").splitlines()
    jobs = [f"model.n_heads={heads} seed={seed}" for heads in (3, 5) for seed in (0, 1)]
    assert [line.partition(": ")[0] for line in told] == jobs
    assert "model.n_heads=3 does not divide model.dim=32" in told[0]
    assert list(tmp_path.iterdir()) == []


def test_what_is_wrong_with_every_job_is_told_once(tell: Tell) -> None:
    code, out, err = tell("-m", "attention=gqa", "model.n_kv_heads=3", "seed=0,1")
    assert (code, out) == (2, "")
    assert err == "error: model.n_kv_heads=3 does not divide model.n_heads=4: choose one of [1, 2, 4]\n"


def test_a_sweep_with_a_wrong_job_starts_none(tell: Tell, tmp_path: Path) -> None:
    code, out, err = tell("-m", "seed=0,1", "optimizer.lr=1e-3,-1")
    assert (code, out) == (2, "")
    assert err == "error: optimizer.lr=-1: should be a finite number > 0\n"
    assert list(tmp_path.iterdir()) == []


def test_a_non_finite_job_is_a_result(tell: Tell) -> None:
    code, out, err = tell("-m", "trainer=smoke", "placement=pre,none", "optimizer.lr=1000")
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines() if "│" in line]
    assert rows[1][0] == "none"
    assert rows[1][2] == "nonfinite"
    assert "failed" not in out


# --- without a run


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["--help"], ["python train.py [group=choice ...] [key=value ...]", "* rmsnorm", "steps=1000"]),
        (["--cfg", "job", "norm=layernorm"], ["_target_: modernllm.norm.layernorm.LayerNorm", "seed: 0"]),
        (["--cfg", "job", "attention.softcap=30"], ["softcap: 30"]),
    ],
    ids=["help", "cfg", "cfg of a short key"],
)  # fmt: skip
def test_help_and_configuration_are_quick(words: list[str], parts: list[str], tmp_path: Path) -> None:
    done = launch_quick(tmp_path, *words)
    assert (done.returncode, done.stderr) == (0, "")
    for part in parts:
        assert part in done.stdout
    assert list(tmp_path.iterdir()) == []


# --- where it is started


def test_paths_are_relative_to_where_the_command_was_given(
    tmp_path: Path, tell: Tell, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-72: a subfolder, and Hydra changing the working directory, in a process and in a sweep."""
    place = tmp_path / "deep" / "below"
    place.mkdir(parents=True)
    (place / "text.txt").write_text("".join(f"line {i} of a small text\n" for i in range(400)))
    words = ("trainer=smoke", "data=files", "data.path=text.txt", "out=kept", "hydra.job.chdir=true")
    # on a terminal that knows neither bars nor accents
    done = launch(place, *small(*words), PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert "\nloss  ???\n" in done.stdout
    (folder,) = (place / "kept" / "default").iterdir()
    assert load_run(folder).status["status"] == "finished"
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert sorted(path.name for path in place.iterdir()) == ["kept", "text.txt"]

    monkeypatch.chdir(place.parent)
    code, out, err = tell(
        "-m",
        "trainer=smoke",
        "data=files",
        "data.path=below/text.txt",
        "out=below/kept",
        "hydra.job.chdir=true",
        "seed=0",
    )
    assert (code, err) == (0, "")
    assert out.startswith("1 run: 1 finished already\n")  # the same text from elsewhere
    assert list((place / "kept" / "default").iterdir()) == [folder]
    assert sorted(path.name for path in (place / "kept").iterdir()) == [".plans", "default"]
    assert [path.name for path in place.parent.iterdir()] == ["below"]


# --- the tracker


PATIENT = f"""
import runpy, sys
from modernllm.logger import wandb_logger
wandb_logger.FINISH_WAIT, sys.argv = {PATIENCE}, sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""`python train.py` that gives its tracker time to end."""


def test_the_default_tracker_asks_nothing_and_waits_for_nobody(tmp_path: Path) -> None:
    """F-83: no key, no network, standard input closed."""
    home = {name: str(tmp_path / "home") for name in ("HOME", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR")}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")} | home
    environment |= {"WANDB_BASE_URL": "http://127.0.0.1:9", "NETRC": str(tmp_path / "netrc"), "PYTHONPATH": str(CODE)}
    words = [word for word in SMALL if not word.startswith("logger")]
    train = [sys.executable, "-c", PATIENT, str(TRAIN), *words, "trainer=smoke"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" <&-', "sh", *train], cwd=tmp_path, env=environment, capture_output=True, text=True,
        timeout=2 * PATIENCE, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    (folder,) = (tmp_path / "runs" / "default").iterdir()
    kept = load_run(folder)
    assert kept.status["status"] == "finished"
    assert {event["kind"] for event in kept.events} <= {"tracker"}  # on a machine that is busy elsewhere
    assert len(list(folder.glob("wandb/offline-run-*/run-*.wandb"))) == 1
    assert len(kept.losses) == 3
