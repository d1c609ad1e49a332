"""What the README shows is done as it stands there."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from processes import PATIENCE

from modernllm.report.components import with_choices

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str, containing: str) -> str:
    """The code block of that language with these words in it."""
    blocks = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    (found,) = [text for text in blocks if containing in text]
    return found


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """A copy of the program with the README's norm in it."""
    for name in ("modernllm", "configs", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "train.py", tmp_path)
    source = block("python", "class L2Norm")
    place = source.splitlines()[0].removeprefix("# ")
    (tmp_path / place).write_text(source, encoding="utf-8")
    (tmp_path / "configs" / "norm" / "l2norm.yaml").write_text(block("yaml", "norm.l2norm.L2Norm"), encoding="utf-8")
    return tmp_path


@pytest.mark.slow
def test_a_norm_in_two_files_trains(clone: Path) -> None:
    words = ["size=nano", "norm=l2norm", "trainer=smoke", "data=synthetic", "logger=local"]
    done = subprocess.run(
        [sys.executable, "train.py", *words], cwd=clone, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "norm=l2norm" in done.stdout
    shown = subprocess.run(
        [sys.executable, "train.py", "--help"], cwd=clone, capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert "l2norm" in shown.stdout
    assert "unit length times sqrt(dim), with a gain" in shown.stdout


@pytest.mark.slow
def test_a_claim_about_that_norm_is_heard(clone: Path) -> None:
    """At toy size."""
    (clone / "l2norm.yaml").write_text(block("yaml", "# l2norm.yaml"), encoding="utf-8")
    words = [sys.executable, "scripts/check_claim.py", "claim=l2norm.yaml", "suite=toy"]
    done = subprocess.run(
        words, cwd=clone, env=os.environ | {"PYTHONPATH": str(clone)}, capture_output=True, text=True,
        timeout=5 * PATIENCE, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 20, 21, 22), done.stderr
    verdict = json.loads((clone / "runs" / "verdicts" / "toy-l2norm" / "verdict.json").read_text())
    assert verdict["exit_code"] == done.returncode
    assert verdict["facts"]["toy"] is True


def test_the_choices_of_the_readme_are_those_there_are() -> None:
    """All of them, as scripts/components.py writes them: `python scripts/components.py into=README.md`."""
    assert with_choices(README) == README


@pytest.mark.slow
def test_the_sweeps_of_the_readme_run(tmp_path: Path) -> None:
    """The commands of its section in their order, and the workflow's as a plan."""
    section = README.split("## Sweeps\n")[1].split("\n## ")[0]
    for name in ("train.py", "scripts"):
        (tmp_path / name).symlink_to(ROOT / name)
    commands = [line for text in re.findall(r"```sh\n(.*?)```", section, re.DOTALL) for line in text.splitlines()]
    (workflow,) = (yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", section, re.DOTALL))
    commands.append(workflow["jobs"]["smoke"]["steps"][-1]["run"] + " plan=true")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    assert len(commands) == 6
    for command in commands:
        done = subprocess.run(
            ["sh", "-c", command], cwd=tmp_path, env=os.environ | {"PATH": path}, capture_output=True, text=True,
            timeout=5 * PATIENCE, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, ""), command
    assert len(list((tmp_path / "runs" / "default").iterdir())) == 8
