"""What a run is called and made of: the same for the same science, however it was asked for."""

from __future__ import annotations

import json
import subprocess
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from running import prepare

from modernllm.config.compose import compose
from modernllm.runs.identity import (
    code_state,
    digest,
    environment,
    installed,
    run_name,
    scientific,
    source,
)
from modernllm.sweep.request import without_settings

ROOT = Path(__file__).parents[1]
CONFIG = without_settings(compose(["size=nano", "data=synthetic"]))
HASHES = {"corpus": "c", "tokenizer": "t", "validation": "v"}

ELSEWHERE = {"data", "tokenizer"}
"""Sections that act through the hashes of what they make."""
WATCHED = {"logger", "telemetry", "out", "study", "cache", "overwrite", "resume", "allow_targets"}
UNHASHED = [
    "micro_batch", "threads", "device", "deterministic", "compile", "eval_every", "checkpoint_every", "keep", "profile",
    "held_out", "ranks",
]  # fmt: skip
RUN_LEVEL = {f"trainer.{key}" for key in UNHASHED}


def leaves(value: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    if not isinstance(value, dict):
        return [path]
    return [leaf for key, child in value.items() for leaf in leaves(child, (*path, key))]


def hashed(config: dict[str, Any], device: str = "cpu", dead: list[str] | None = None, **hashes: str) -> str:
    return digest(scientific(config, HASHES | hashes, device, dead or []))


def changed(path: tuple[str, ...]) -> dict[str, Any]:
    """CONFIG with another value at `path`."""
    config = deepcopy(CONFIG)
    node = config
    for key in path[:-1]:
        node = node[key]
    value = node[path[-1]]
    if isinstance(value, bool):
        node[path[-1]] = not value
    elif isinstance(value, int | float):
        node[path[-1]] = value + 1
    elif value is None:
        node[path[-1]] = 1
    else:
        node[path[-1]] = value + type(value)("x")
    return config


LEAVES = [leaf for leaf in leaves(CONFIG) if leaf[0] not in ELSEWHERE]


@pytest.mark.parametrize("leaf", LEAVES, ids=".".join)
def test_every_scientific_key_is_hashed_and_no_other(leaf: tuple[str, ...]) -> None:
    unscientific = leaf[0] in WATCHED or ".".join(leaf) in RUN_LEVEL
    assert (hashed(changed(leaf)) == hashed(CONFIG)) == unscientific


def test_the_sections_are_known() -> None:
    """A new section or key is scientific unless it is named here."""
    assert {leaf[0] for leaf in LEAVES} - WATCHED == {
        "model",
        "init",
        "optimizer",
        "schedule",
        "trainer",
        "seed",
    }
    assert {".".join(leaf) for leaf in LEAVES} >= RUN_LEVEL


@pytest.mark.parametrize("name", HASHES)
def test_text_and_tokenizer_act_through_their_hashes(name: str) -> None:
    assert hashed(CONFIG, **{name: "other"}) != hashed(CONFIG)


def test_the_device_is_the_one_that_was_found() -> None:
    assert hashed(CONFIG, device="cuda") != hashed(CONFIG)


def test_order_and_spelling_of_numbers_do_not_matter() -> None:
    def turned(value: Any) -> Any:
        return {k: turned(value[k]) for k in reversed(value)} if isinstance(value, dict) else value

    config = turned(CONFIG)
    assert list(config) != list(CONFIG)
    assert hashed(config) == hashed(CONFIG)
    config["model"]["dropout"], config["trainer"]["clip"], config["optimizer"]["betas"] = 0, 1, [0.90, 0.95]
    assert CONFIG["model"]["dropout"] == 0.0
    assert hashed(config) == hashed(CONFIG)
    assert digest({"a": [1.0, {"b": 2.0}]}) == digest({"a": [1, {"b": 2}]})
    assert digest({"a": float("inf")}) != digest({"a": float("nan")}) != digest({"a": None})
    assert len({digest(value) for value in ([], [0], [0, 0], ["0"], None, 0.5, True, {})}) == 8


def test_what_nothing_reads_is_not_hashed() -> None:
    leaf = ("model", "norm", "eps")
    assert hashed(changed(leaf), dead=["norm"]) == hashed(CONFIG, dead=["norm"]) != hashed(CONFIG)
    assert hashed(changed(("model", "dim")), dead=["norm"]) != hashed(CONFIG, dead=["norm"])


# --- run ids of whole configurations


@pytest.fixture(scope="module")
def plain() -> str:
    return prepare("trainer.steps=3").run_id


@pytest.mark.parametrize(
    "words",
    [
        ["out=elsewhere", "study=other", "cache=null", "overwrite=true"],
        ["logger=wandb", "logger.project=p", "telemetry.every=1"],
        ["trainer.micro_batch=1", "trainer.threads=2", "trainer.eval_every=1", "trainer.checkpoint_every=1"],
        ["trainer=smoke", "trainer.device=cpu"],
        ["norm=rmsnorm", "placement=pre", "readout=norm", "seed=0", "model.dropout=0.0"],
        ["allow_targets=[collections.Counter]", "model.vocab_size=259"],
        ["model.head_dim=8", "model.feedforward_bias=false"],
    ],
    ids=" ".join,
)
def test_the_same_run_has_the_same_name(words: list[str], plain: str) -> None:
    assert prepare("trainer.steps=3", *words).run_id == plain


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["trainer.steps=4"], "nano-data_synthetic-s0-"),
        (["seed=1"], "nano-data_synthetic-s1-"),
        (["data.n_documents=41"], "nano-data_synthetic-s0-"),
        (["tokenizer=bpe", "tokenizer.vocab_size=300"], "nano-data_synthetic-tokenizer_bpe-s0-"),
        (["norm=layernorm", "placement=post"], "nano-data_synthetic-norm_layernorm-placement_post-s0-"),
        (["placement=post", "readout=norm"], "nano-data_synthetic-placement_post-readout_norm-s0-"),
        (["model.vocab_size=260"], "nano-data_synthetic-s0-"),
        (["trainer.validation_tokens=512"], "nano-data_synthetic-s0-"),
    ],
    ids=str,
)
def test_another_run_has_another_name(words: list[str], name: str, plain: str) -> None:
    found = prepare("trainer.steps=3", *words).run_id
    assert found != plain
    assert found.rpartition("-")[0] + "-" == name


def test_a_dead_switch_is_said_and_makes_no_second_run() -> None:
    rms, layer = prepare("placement=none"), prepare("placement=none", "norm=layernorm")
    assert rms.run_id == layer.run_id == f"nano-data_synthetic-placement_none-s0-{rms.identity['config_hash'][:10]}"
    assert (rms.dead, layer.dead) == (["norm"], ["norm"])
    assert layer.identity["dead_switches"] == {"norm": "layernorm"}
    read = prepare("placement=none", "readout=norm", "norm=layernorm")
    assert read.dead == []
    assert read.run_id != prepare("placement=none", "readout=norm").run_id


def test_the_same_text_from_another_place_is_the_same_run(tmp_path: Path) -> None:
    text = "".join(f"the {i}th line of a text\n" for i in range(400))
    names = []
    for place in ("a.txt", "folder/b.txt"):
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_text(text)
        names.append(prepare("data=files", f"data.path={tmp_path / place}").run_id)
    assert names[0] == names[1]
    (tmp_path / "a.txt").write_text(text.replace("399th", "398th"))
    assert prepare("data=files", f"data.path={tmp_path / 'a.txt'}").run_id != names[0]


def test_a_name_is_a_safe_folder_of_bounded_length() -> None:
    choices = {"size": "nano", "norm": "a/b c,[d]=é", "data": "x", "logger": "wandb", "trainer": "smoke"}
    name = run_name(choices, {"norm": "rmsnorm", "data": "x"}, [], 7, "0123456789abcdef")
    assert name == "nano-norm_a_b_c__d__é-s7-0123456789"
    many = {f"group{i}": "choice" for i in range(50)} | {"size": "nano"}
    assert len(run_name(many, {}, [], 2**31, "0" * 64).encode()) < 255
    assert run_name(choices, {"data": "x"}, ["norm"], 7, "0" * 64) == "nano-s7-0000000000"


# --- where it ran


def test_the_commit_is_that_of_the_source_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F-72."""
    done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True)
    monkeypatch.chdir(tmp_path)
    state = code_state()
    assert state["commit"] == (done.stdout.strip() or None)
    assert (state["dirty"] is None) == (state["commit"] is None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert code_state() == {"commit": None, "dirty": None}


def test_the_source_is_known_without_git_and_stays_what_was_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    found = source()
    assert len(found) == 64
    assert environment()["source"] == found
    monkeypatch.setattr(Path, "read_bytes", lambda self: b"edited")
    assert source() == found
    source.cache_clear()
    assert source() != found
    source.cache_clear()


def test_no_source_is_ignored_by_git() -> None:
    """A pattern for a folder of results once kept a folder of the package out of the repository."""
    sources = [str(path) for place in ("modernllm", "configs", "tests") for path in (ROOT / place).rglob("*.yaml")]
    sources += [str(path) for path in (ROOT / "modernllm").rglob("*.py")]
    done = subprocess.run(["git", "-C", str(ROOT), "check-ignore", *sources], capture_output=True, text=True)
    assert len(sources) > 50
    assert done.stdout == ""


def test_versions_are_recorded_and_a_missing_package_is_null() -> None:
    found = environment()
    assert found["versions"]["torch"] == torch.__version__
    assert json.loads(json.dumps(found)) == found
    assert installed("torch") == torch.__version__
    assert installed("no-such-package") is None
