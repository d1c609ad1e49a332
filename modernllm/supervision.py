"""A command in a child process: the code that it runs, of whatever hands, does not choose the exit code.

The parent runs none of it. `os._exit(0)` in a module, a segmentation fault and a kill for want of memory all end the
child before it has answered, and only an answer is believed.
"""

from __future__ import annotations

from modernllm.startup import INTERRUPTED, STOPPED, interrupt

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkProcess

SIGNALLED = 128
"""Exit codes of commands that a signal ended begin here, as in a shell."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def supervised(work: Callable[[], int], failed: int = 1) -> int:
    """What `work` returned in the child; `failed`, and a line that says so, where it left without. Signals that come
    here are passed on, once each, and a child whose parent is gone is told to stop.
    """
    context = multiprocessing.get_context("fork")
    answer, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(work, theirs))
    begin(child)
    theirs.close()
    child.join()
    with suppress(EOFError):
        if answer.poll():
            return answer.recv()
    code = child.exitcode
    assert code is not None
    if code == INTERRUPTED:  # amid an import, and it has said so
        return code
    if -code in SIGNALS:
        print(STOPPED, file=sys.stderr)
    elif code < 0:
        how = signal.strsignal(-code) or "unknown"
        print(f"error: killed by signal {-code} ({how}) before it came to an end", file=sys.stderr)
    else:
        print(f"error: a module left the program, with exit code {code}, before it came to an end", file=sys.stderr)
    return SIGNALLED - code if code < 0 else failed


def begin(child: ForkProcess) -> None:
    """Start the child in a group of its own, so that Ctrl-C reaches it through here alone, and not twice; once it has
    ended there is nothing left to stop.
    """

    def pass_on(number: int, frame: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(child.pid or 0, number)

    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # none may come before there is a child to pass it on to
    for number in SIGNALS:
        signal.signal(number, pass_on)
    child.start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def _answer(work: Callable[[], int], answer: Connection) -> None:
    os.setpgid(0, 0)
    signal.signal(signal.SIGINT, interrupt)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    threading.Thread(target=_follow, daemon=True).start()
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        answer.send(work())
    except KeyboardInterrupt:  # where `work` does not take it itself: while it imports, say
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # again: at once, and the parent has the word
        print(STOPPED, file=sys.stderr)
        answer.send(INTERRUPTED)


def _follow() -> None:
    """As after SIGTERM, once nobody is there to hear the answer."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
