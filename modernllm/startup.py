"""What is settled before anything else is imported, by every command: how threads wait, and what Ctrl-C does."""

import os
import signal
import sys
from types import FrameType, TracebackType

INTERRUPTED, STOPPED = 130, "stopped"
"""The code that a shell has for Ctrl-C, and the word that goes with it."""

# two processes whose threads spin at barriers on the same cores are sixty times slower; read when torch is imported
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def interrupt(number: int, frame: FrameType | None) -> None:
    """KeyboardInterrupt, but at once the end of an import: numpy makes an ImportError of it there, and torch aborts."""
    while frame:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            print(STOPPED, file=sys.stderr, flush=True)
            os._exit(INTERRUPTED)
        frame = frame.f_back
    raise KeyboardInterrupt


def unhandled(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Of what nobody took the traceback; Ctrl-C is no fault of anybody's, and a word and a code say it."""
    if not issubclass(kind, KeyboardInterrupt):
        sys.__excepthook__(kind, error, where)
        return
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # once more ends it without a word
    print(STOPPED, file=sys.stderr)
    raise SystemExit(INTERRUPTED)


sys.excepthook = unhandled
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # a shell has it ignored by what it starts with &
    signal.signal(signal.SIGINT, interrupt)
