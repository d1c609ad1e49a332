"""What every command imports first: Ctrl-C is a word and 130 from there on, whatever is being imported."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CTRL_C = "signal.raise_signal(signal.SIGINT)"
AMID_AN_IMPORT = f"sys.meta_path.insert(0, type('', (), dict(find_spec=lambda *_: {CTRL_C})))\nimport planted"
ENDS = {
    "nobody takes it": (CTRL_C, 130, "stopped\n"),
    "twice": (f"try: {CTRL_C}\nfinally: {CTRL_C}", 130, "stopped\n"),
    "amid an import": (AMID_AN_IMPORT, 130, "stopped\n"),
    "somebody takes it": (f"try: {CTRL_C}\nexcept KeyboardInterrupt: sys.exit(7)", 7, ""),
    "an error": ("1 / 0", 1, "Traceback"),
}


def ends(program: str) -> subprocess.CompletedProcess[str]:
    program = f"import os, signal, sys\n{program}"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("end", ENDS)
def test_ctrl_c_is_a_word_and_a_code(end: str) -> None:
    program, code, said = ENDS[end]
    done = ends(f"import modernllm.startup\n{program}")
    assert done.returncode == code
    assert done.stderr.startswith(said) if end == "an error" else done.stderr == said


def test_an_import_has_no_say_in_it() -> None:
    """numpy makes an ImportError of it."""
    hushed = AMID_AN_IMPORT.replace("import planted", "try: import planted\nexcept BaseException: sys.exit(7)")
    assert ends(f"import modernllm.startup\n{hushed}").returncode == 130


def test_ctrl_c_that_a_shell_has_ignored_stays_so() -> None:
    done = ends(f"signal.signal(signal.SIGINT, signal.SIG_IGN)\nimport modernllm.startup\n{CTRL_C}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("command", [ROOT / "train.py", *sorted(ROOT.glob("scripts/*.py"))], ids=lambda path: path.name)
def test_every_command_imports_it_first(command: Path) -> None:
    _, *body = ast.parse(command.read_text(encoding="utf-8")).body
    first = next(node for node in body if not (isinstance(node, ast.ImportFrom) and node.module == "__future__"))
    assert ast.unparse(first) == "import modernllm.startup"
