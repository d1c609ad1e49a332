"""The command line as a person meets it: what it leaves, what it says, and with which code it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from omegaconf import OmegaConf
from running import SMALL, TRAIN, asked, command, copied, metrics, same, small

from modernllm import checkpoint, experiment, load_run
from modernllm.config.build import build, build_model
from modernllm.config.check import check
from modernllm.runs.directory import RunDirectory

DEFAULT = ("trainer=smoke", "size=nano", "data=synthetic", "logger=local")
CODE = TRAIN.parent


def launch(cwd: Path, *words: str, seconds: float = 60, **environment: str) -> subprocess.CompletedProcess[str]:
    """`python train.py` in a process of its own."""
    return subprocess.run(
        [sys.executable, str(TRAIN), *words], cwd=cwd, env=os.environ | environment, timeout=seconds,
        capture_output=True, text=True, encoding="utf-8", check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


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
    """`python train.py` with SMALL and these words, in this process and `tmp_path`: code, output and errors."""
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
    ]  # fmt: skip
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]
    assert [path.name for path in folder.parents[1].iterdir()] == ["default"]
    assert sorted(path.name for path in (folder / "checkpoints").iterdir()) == ["step-00000002.pt", "step-00000003.pt"]


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
    assert [list(row) for row in rows if "grad" in row] == [["step", "grad"]] * 3
    assert len(rows) == 10
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
    assert identity["flops_per_token"] == {"forward": 487808, "training": 3 * 487808}
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
        "step     0  val loss ", "step 3/3  loss ", "outcome: undecided  (3 steps are too few to tell: 100 are needed)",
        "gradients clipped in 100% of the steps", "what it writes:", f"files: {folder}  (checkpoints config.yaml", "next:",
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


def test_the_same_command_prints_the_result_and_changes_nothing(first: tuple[Path, Any]) -> None:
    folder, done = first
    before = contents(folder)
    seed = yaml.safe_load((folder / "config.yaml").read_text())["seed"]
    started = time.monotonic()
    # a terminal that knows neither bars nor accents
    again = launch(folder, *DEFAULT, f"seed={seed}", f"out={folder.parents[1]}", PYTHONIOENCODING="ascii")
    assert time.monotonic() - started < 20
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.startswith(f"{folder.name} is finished already (overwrite=true runs it again)\n\noutcome: undecided")
    result = [line for line in done.stdout.splitlines() if line.startswith(("validation loss", "progress", "1,536 tokens"))]
    assert len(result) == 3
    assert all(line in again.stdout for line in result)
    assert contents(folder) == before


def test_overwrite_runs_it_again(first: tuple[Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, _ = first
    before, rows = contents(folder), metrics(folder, "step")
    (folder / "stale").mkdir()
    seed = yaml.safe_load((folder / "config.yaml").read_text())["seed"]
    words = (*DEFAULT, f"seed={seed}", f"out={folder.parents[1]}", "overwrite=true")
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
    (["trainer.clip=-1"], 2, ["trainer.clip=-1: should be a number > 0"]),
    (["init._target_=os.system"], 2, ["init._target_=os.system: is no class of modernllm, torch.nn or torch.optim"]),
    (["data=files"], 2, ["data.path: is not set; data.path=... sets it"]),
    (["--config-dir=/no/such"], 2, ["/no/such: no such folder to look for configurations in"]),
    (["model.n_heads=5"], 1, ["model.n_heads=5 does not divide model.dim=32", "choose one of [1, 2, 4, 8, 16, 32]"]),
    (["attention=gqa", "model.n_kv_heads=3"], 1, ["model.n_kv_heads=3", "model.n_heads=4"]),
    (["model.n_kv_heads=2"], 1, ["model.n_kv_heads=2", "model.n_heads=4", "attention=gqa"]),
    (["model.head_dim=7"], 1, ["position=rope turns pairs: model.head_dim=7 is odd", "another position encoding"]),
    (["optimizer.betas=[0.9]"], 1, ["optimizer.betas=[0.9]: two numbers are needed, such as [0.9, 0.95]"]),
    (["logger=wandb", "logger.project=a/b"], 1, ["logger.project='a/b': W&B takes 1 to 128 characters"]),
    (["model.vocab_size=100"], 1, ["train.bin: token 12 is 110, but the vocabulary has 100 ids (model.vocab_size"]),
    (["trainer.device=mps"], 1, ["trainer.device=mps: this machine has none that torch", "choose one of auto, cpu"]),
    (["data=files", "data.path=absent.txt"], 1, ["data.path=absent.txt: no such file or folder (from ", "use data=stdlib"]),
    (["data=files", "data.path=empty.txt"], 1, ["data.path=empty.txt: there is no text in it"]),
    (["data=files", "data.path=bytes.txt"], 1, ["bytes.txt: byte 0x92 at offset 5 is no utf-8", "data.encoding=gb18030"]),
    (["data=files", "data.path=short.txt"], 1,
     ["the train split has 20 tokens and a window needs 33 (model.context_length=32", "choose a larger text with data"]),
    (["data=files", "data.path=medium.txt"], 1,
     ["the validation split has 16 tokens and a window needs 33 (model.context_length=32", "model.context_length"]),
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
    started = time.monotonic()
    done = launch(tmp_path, "sed=3", "norm=rmsnrom")
    assert time.monotonic() - started < 2  # before torch is imported
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: norm=rmsnrom: norm has no choice rmsnrom; did you mean rmsnorm?")
    assert "sed=3: no key sed; did you mean seed?" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_token_outside_the_vocabulary_is_named_with_its_place(tell: Tell, tmp_path: Path) -> None:
    """F-51: file, offset and id, as they are in the file."""
    _, _, err = tell("model.vocab_size=100")
    path, at, token = err.removeprefix("error: ").split(maxsplit=5)[0].rstrip(":"), *(int(w) for w in err.split() if w.rstrip(",").isdigit() and False)
