"""What the README shows is done as it stands there."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str, containing: str) -> str:
    """The code block of that language with these words in it."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    (found,) = [text for text in blocks if containing in text]
    return found


def test_a_norm_in_two_files_trains(tmp_path: Path) -> None:
    for name in ("modernllm", "configs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "train.py", tmp_path)
    source = block("python", "class L2Norm")
    place = source.splitlines()[0].removeprefix("# ")
    (tmp_path / place).write_text(source, encoding="utf-8")
    (tmp_path / "configs" / "norm" / "l2norm.yaml").write_text(block("yaml", "l2norm"), encoding="utf-8")
    words = ["size=nano", "norm=l2norm", "trainer=smoke", "data=synthetic", "logger=local"]
    done = subprocess.run(
        [sys.executable, "train.py", *words], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "norm=l2norm" in done.stdout
    shown = subprocess.run(
        [sys.executable, "train.py", "--help"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert "l2norm" in shown.stdout
    assert "unit length times sqrt(dim), with a gain" in shown.stdout


def test_the_choices_of_the_readme_are_those_there_are() -> None:
    """Every choice that a row of the table names exists, and the default of each group is named."""
    rows = [line for line in README.splitlines() if line.startswith("| `") and "`:" not in line.split("|")[1]]
    table = {row.split("|")[1].strip(" `"): row.split("|")[2] for row in rows}
    for group in ("norm", "placement", "branch", "position", "activation", "attention", "qk_norm", "moe", "block"):
        named = set(re.findall(r"`(\w+)`", table[group].split(":")[0].split(";")[0]))
        there = {path.stem for path in (ROOT / "configs" / group).glob("*.yaml")}
        assert named <= there
        assert there - named <= {"rmsnorm_low", "layernorm_low"}
