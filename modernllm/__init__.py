"""An ablation harness for transformer architectures: flip one part, watch what breaks."""

from __future__ import annotations

TYPE_CHECKING = False  # as `typing` has it, of which the first import of a command need not wait

if TYPE_CHECKING:
    from typing import Any

    from modernllm.runs.record import Run, load_run

__all__ = ["Run", "load_run"]


def __getattr__(name: str) -> Any:
    """`from modernllm import load_run` imports torch; the command line's --help need not."""
    if name in __all__:
        from modernllm.runs import record

        return getattr(record, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
