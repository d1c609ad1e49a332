"""`python train.py --help`."""

from __future__ import annotations

from pathlib import Path

from modernllm.config.help import help_text
from modernllm.config.tree import CONFIG_DIR, default_choices, read_tree

TEXT = help_text()
LINES = TEXT.splitlines()


def test_fits_on_a_screen():
    assert max(map(len, LINES)) <= 100
    assert all(line == line.rstrip() for line in LINES)


def test_every_choice_once_with_its_line_in_the_order_of_the_defaults():
    start = LINES.index("Groups (* is chosen unless you choose)") + 1
    block = LINES[start : LINES.index("Run", start)]
    groups = [line.split()[0] for line in block if line.startswith("  ") and line[2] != " "]
    assert groups == list(default_choices())
    column = block[0].index("dyt")
    named = [line[column:].split()[0] for line in block if line[column : column + 1].strip()]
    assert named == [name for choices in read_tree([CONFIG_DIR]).values() for name in choices]


def test_default_is_marked():
    marked = [line[16:].split()[0] for line in LINES if line[14:16] == "* "]
    assert marked == list(default_choices().values())


def test_a_line_of_each_kind():
    words = [" ".join(line.split()) for line in LINES]
    assert "none no normalisation, at any site" in words
    assert "* rmsnorm x / rms(x), with a gain" in words
    assert "  seed=0            null draws one" in LINES
    assert any(line.startswith("  optimizer  lr=0.003 betas=[0.9, 0.95]") for line in LINES)
    for word in (
        "--cfg job",
        "--hydra-help",
        "-m placement=pre,post",
        "size=nano norm=layernorm",
        "--config-dir",
    ):
        assert word in TEXT


def test_a_users_own_choices_are_listed(tmp_path: Path):
    for group in ("norm", "experiment"):
        (tmp_path / group).mkdir()
        (tmp_path / group / "mine.yaml").write_text(f"# @package model.{group}\n# my {group}\n_target_: a.B\n")
    words = [" ".join(line.split()) for line in help_text([tmp_path]).splitlines()]
    assert "mine my norm" in words
    assert "+experiment mine my experiment" in words
