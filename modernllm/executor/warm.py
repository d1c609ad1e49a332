"""What every run needs, imported once in the fork server that all runs are forked from."""

import gc
import os
import signal

import torch._dynamo  # noqa: F401 (the first step of an optimizer imports it, a second that each run would spend)

import modernllm.experiment  # noqa: F401
from modernllm.runs.identity import source

source()  # of the files that were imported here, whatever becomes of them while runs go on

os.setsid()  # Ctrl-C in a terminal is for the sweep, which passes on what it means
before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # one that came until now, and was blocked, is forgotten
signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
signal.signal(signal.SIGINT, before)
gc.collect()
gc.freeze()  # the collector writes to what it visits: pages that it leaves alone stay shared
