"""Which runs a sweep has: every strategy against lists written by hand, and its errors in words."""

from __future__ import annotations

from pathlib import Path

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser

from modernllm.config.command import expand, read_command
from modernllm.config.errors import ConfigError


def jobs(*words: str) -> list[str]:
    return [" ".join(job) for job in read_command(words, many=True).jobs]


def refused(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        read_command(words, many=True)
    return str(caught.value)


# --- product


def test_a_product_is_hydras() -> None:
    words = ["norm=rmsnorm,none", "optimizer.betas=[0.9,0.95],[0.9,0.99]", "seed=range(0,3)", "study=x"]
    parsed = OverridesParser.create().parse_overrides(words)
    (batch,) = BasicSweeper.split_arguments(parsed, max_batch_size=None)
    assert expand(words) == [list(job) for job in batch]
    assert len(batch) == 2 * 2 * 3


def test_lists_are_values_and_commas_are_runs() -> None:
    """F-67. A seed that is a list is for `check` to refuse, equal jobs for the plan to name."""
    assert jobs("optimizer.betas=[0.9,0.95],[0.9,0.99]", "seed=1,1", "model.dim=[1,2]") == [
        *["optimizer.betas=[0.9,0.95] seed=1 model.dim=[1,2]"] * 2,
        *["optimizer.betas=[0.9,0.99] seed=1 model.dim=[1,2]"] * 2,
    ]


def test_nothing_to_sweep_is_one_run() -> None:
    assert jobs() == [""]
    assert jobs("norm=none", "plan=true") == ["norm=none"]


# --- one factor at a time


def test_one_factor_at_a_time_starts_from_first_values() -> None:
    assert jobs("sweep=ofat", "norm=rmsnorm,layernorm,none", "placement=pre,post", "size=nano") == [
        "norm=rmsnorm placement=pre size=nano",
        "norm=layernorm placement=pre size=nano",
        "norm=none placement=pre size=nano",
        "norm=rmsnorm placement=post size=nano",
    ]


def test_seeds_cross_every_factor() -> None:
    assert jobs("sweep=ofat", "norm=rmsnorm,none", "seed=0,1", "head=tied,untied") == [
        "norm=rmsnorm seed=0 head=tied",
        "norm=rmsnorm seed=1 head=tied",
        "norm=none seed=0 head=tied",
        "norm=none seed=1 head=tied",
        "norm=rmsnorm seed=0 head=untied",
        "norm=rmsnorm seed=1 head=untied",
    ]
    assert jobs("sweep=ofat", "sweep.cross=[]", "norm=rmsnorm,none", "seed=0,1") == [
        "norm=rmsnorm seed=0",
        "norm=none seed=0",
        "norm=rmsnorm seed=1",
    ]


# --- side by side


def test_zipped_axes_go_side_by_side() -> None:
    assert jobs("sweep=zip", "size=nano,micro", "optimizer.lr=1e-2,3e-3", "norm=none", "seed=0,1") == [
        "size=nano optimizer.lr=0.01 norm=none seed=0",
        "size=nano optimizer.lr=0.01 norm=none seed=1",
        "size=micro optimizer.lr=0.003 norm=none seed=0",
        "size=micro optimizer.lr=0.003 norm=none seed=1",
    ]


def test_zipped_axes_have_one_length() -> None:
    told = refused("sweep=zip", "size=nano,micro", "optimizer.lr=1e-2,3e-3,1e-3", "seed=0,1,2,3")
    assert told == (
        "sweep=zip goes through all axes side by side, with as many values each: size has 2, optimizer.lr has 3"
    )


# --- drawn


def test_draws_are_repeatable_distinct_and_a_longer_list_begins_with_the_shorter() -> None:
    words = ("sweep=random", "norm=rmsnorm,none", "optimizer.lr=tag(log,interval(1e-4,1e-1))")
    ten = jobs(*words)
    assert len(set(ten)) == 10
    assert jobs(*words, "sweep.n=20")[:10] == ten == jobs(*words)
    assert jobs(*words, "sweep.seed=1") != ten
    rates = [float(job.split("=")[-1]) for job in jobs(*words, "sweep.n=400")]
    assert 1e-4 <= min(rates) < 2e-4
    assert 5e-2 < max(rates) <= 1e-1
    below = sum(rate < 3.16e-3 for rate in rates) / len(rates)
    assert 0.42 < below < 0.58  # the middle of the logarithm


def test_no_more_draws_than_there_are() -> None:
    assert sorted(jobs("sweep=random", "norm=rmsnorm,none", "head=tied,untied", "seed=0,1")) == sorted(
        f"norm={norm} head={head} seed={seed}" for norm in ("rmsnorm", "none") for head in ("tied", "untied")
        for seed in (0, 1)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("optimizer.lr=interval(1,0)", "an interval runs from a smaller to a larger number"),
        ("optimizer.lr=tag(log,interval(0,1))", "an interval runs from a smaller to a larger number, above 0"),
    ],
)
def test_an_interval_is_one(word: str, told: str) -> None:
    assert refused("sweep=random", word) == f"{word}: {told}"


@pytest.mark.parametrize("strategy", ["product", "ofat", "zip", "list"])
def test_only_random_draws_from_an_interval(strategy: str, tmp_path: Path) -> None:
    (tmp_path / "runs.txt").write_text("norm=none\n")
    file = [f"sweep.file={tmp_path / 'runs.txt'}"] if strategy == "list" else []
    told = refused(f"sweep={strategy}", *file, "optimizer.lr=interval(0,1)")
    assert told.startswith("optimizer.lr: an interval has no values to list for ")
    assert told.endswith("or draw from it with sweep=random")


# --- from a file


def test_a_file_has_a_run_a_line(tmp_path: Path) -> None:
    file = tmp_path / "runs.txt"
    file.write_text("# two runs\nnorm=none  optimizer.lr=1e-3\n\n'optimizer.betas=[0.9, 0.99]' seed=7 # the other\n")
    assert jobs("sweep=list", f"sweep.file={file}") == [
        "norm=none optimizer.lr=1e-3",
        "optimizer.betas=[0.9, 0.99] seed=7",
    ]
    assert jobs("sweep=list", f"sweep.file={file}", "size=nano", "seed=0,1") == [
        "size=nano seed=0 norm=none optimizer.lr=1e-3",
        "size=nano seed=1 norm=none optimizer.lr=1e-3",
        "size=nano optimizer.betas=[0.9, 0.99] seed=7",
    ]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no run in it; a line is overrides, as norm=layernorm seed=1"),
        ("# nothing\n", "no run in it"),
        ("seed=1\nnorm='x\n", "line 2: No closing quotation"),
        ("seed=1\nnorm=none plan=true\n", "line 2: plan=true belongs on the command line"),
        ("executor.workers=3\n", "line 1: executor.workers=3 belongs on the command line"),
        ("seed=0,1\n", "line 1: seed=0,1 is several runs, and a line is one"),
        ("seed\n", "line 1: seed: an override is key=value, as seed=..."),
    ],
)
def test_a_file_that_makes_no_sense(text: str, told: str, tmp_path: Path) -> None:
    file = tmp_path / "runs.txt"
    file.write_text(text)
    said = refused("sweep=list", f"sweep.file={file}")
    assert said.startswith(f"sweep.file={file}")
    assert told in said


def test_a_file_that_is_not_there() -> None:
    assert "sweep.file=absent.txt: cannot be read: " in refused("sweep=list", "sweep.file=absent.txt")
    assert refused("sweep=list").startswith("sweep.file: is not set")


# --- the words of the command


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("plan=maybe", "plan=maybe: should be true or false"),
        ("retry=3", "retry=3: should be true or false"),
        ("plan=true,false", "plan=true,false: says what is done with all runs together, so it has one value"),
        ("sweep=zip,ofat", "sweep=zip,ofat: says what is done with all runs together, so it has one value"),
        ("executor.workers=0", "executor.workers=0: should be a whole number >= 1 or auto"),
        ("executor.workers=some", "executor.workers=some: should be a whole number >= 1 or auto"),
        ("executor.per_gpu=0.5", "executor.per_gpu=0.5: should be a whole number >= 1"),
        ("sweep.n=3", "sweep.n=3: no key sweep.n"),
        ("executor=ray3", "executor=ray3: executor has no choice ray3"),
        ("hydra/launcher=basic", "hydra/launcher=basic: sweeps are planned here: sweep=... says which runs"),
    ],
)
def test_words_of_the_command_that_make_no_sense(word: str, told: str) -> None:
    assert refused("seed=0,1", word).startswith(told)


def test_words_of_the_command_reach_no_job() -> None:
    words = ("plan=True", "retry=true", "executor.workers=3", "sweep=ofat", "sweep.cross=[]")
    for many in (True, False):
        command = read_command([*words, "norm=none"], many)
        assert command.jobs == [["norm=none"]]
        assert command.settings["plan"] is True
        assert command.settings["retry"] is True
        assert command.settings["executor"]["workers"] == 3


def test_a_file_of_ones_own_can_be_a_sweep(tmp_path: Path) -> None:
    (tmp_path / "sweeps").mkdir()
    (tmp_path / "sweeps" / "two.yaml").write_text(
        "# @package _global_\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n      seed: 0,1\n"
    )
    command = read_command(["+sweeps=two", "head=tied"], False, [tmp_path])
    assert command.many
    assert command.jobs == [["seed=0", "+sweeps=two", "head=tied"], ["seed=1", "+sweeps=two", "head=tied"]]
