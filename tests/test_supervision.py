"""A command in a child: its answer is the exit code, and whatever else happens to it is an error."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from processes import PATIENCE, is_alive, until

PROGRAM = """
import atexit, os, signal, sys, time
from modernllm.supervision import supervised

def work():
    {}

raise SystemExit(supervised(work, failed=10))
"""
ENDS = {
    "an answer": ("return 20", 20, ""),
    "success": ("return 0", 0, ""),
    "left": ("os._exit(0)", 10, "error: a module left the program, with exit code 0, before it came to an end\n"),
    "sys.exit": ("sys.exit(0)", 10, "with exit code 0, before"),
    "raised": ("raise RuntimeError('planted')", 10, "RuntimeError: planted"),
    "interrupted": ("raise KeyboardInterrupt", 130, "stopped\n"),
    "amid an import": (
        "sys.meta_path.insert(0, type('', (), dict(find_spec=lambda *_: os.kill(os.getpid(), signal.SIGINT))))\n"
        "    import planted", 130, "stopped\n",
    ),
    "crashed": ("os.kill(os.getpid(), signal.SIGSEGV)", 139, "error: killed by signal 11 (Segmentation fault) before"),
    "killed": ("os.kill(os.getpid(), signal.SIGKILL)", 137, "error: killed by signal 9"),
    "left at exit": ("atexit.register(os._exit, 0); return 21", 21, ""),
    "waits": ("print(os.getpid(), flush=True); time.sleep(500)", 0, ""),
    "takes Ctrl-C": (
        "try:\n        print(os.getpid(), flush=True)\n        time.sleep(500)\n"
        "    except KeyboardInterrupt: return 130", 0, "",
    ),
}  # fmt: skip
ROOT = Path(__file__).parents[1]


def begin(end: str) -> subprocess.Popen[str]:
    """In a session of its own, as a terminal would start it."""
    program = PROGRAM.format(ENDS[end][0])
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen(
        [sys.executable, "-c", program], env=environment, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


@pytest.mark.parametrize("end", [end for end in ENDS if not end.startswith(("waits", "takes"))])
def test_only_an_answer_is_believed(end: str) -> None:
    _, code, told = ENDS[end]
    program = begin(end)
    _, said = program.communicate(timeout=PATIENCE)
    assert program.returncode == code
    assert told in said if told else said == ""


def child_of(program: subprocess.Popen[str]) -> int:
    assert program.stdout
    return int(program.stdout.readline())


@pytest.mark.parametrize(
    ("end", "number", "code"), [("takes Ctrl-C", signal.SIGINT, 130), ("waits", signal.SIGTERM, 143)]
)
def test_a_signal_reaches_the_child_once(end: str, number: int, code: int) -> None:
    """Also where it goes to the whole group, as Ctrl-C in a terminal does."""
    program = begin(end)
    child = child_of(program)
    os.killpg(program.pid, number)
    _, said = program.communicate(timeout=PATIENCE)
    assert (program.returncode, said) == (code, "" if number == signal.SIGINT else "stopped\n")
    assert not is_alive(child)


def test_a_child_does_not_outlive_its_parent() -> None:
    program = begin("waits")
    child = child_of(program)
    program.kill()
    program.communicate(timeout=PATIENCE)
    until(lambda: not is_alive(child))
