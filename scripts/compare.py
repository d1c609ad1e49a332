"""Look at runs side by side: `python scripts/compare.py <study, run folders or glob>`."""

from __future__ import annotations

import modernllm.startup  # noqa: F401 (before all others)

import sys
from pathlib import Path
from typing import Literal

from modernllm.report.page.report import report
from modernllm.runs.directory import write_atomically
from modernllm.scripting import main


def compare(
    *runs: str,
    by: str = "",
    x: Literal["step", "tokens", "flops", "time"] = "step",
    out: str = "",
    format: Literal["html", "md", "csv", "json", "latex"] = "html",
    root: str = "runs",
) -> int:
    """Which arm is better, how sure that is and why, as one HTML file (report.html) that opens anywhere.

    Runs are studies, run folders, globs, or a claim's folder in runs/verdicts; by=placement,norm says what makes an
    arm, else everything that differs but seed and learning rate; x=... is what curves are drawn over at first. Of
    runs/verdicts, or several claims, it is a gallery, with the page of each claim beside it. Other formats are printed
    unless out=... names a file. root=... is where studies are looked for by name.
    """
    if not runs:
        raise ValueError("which runs? name a study, as default, run folders, or a glob")
    target = Path(out or "report.html") if out or format == "html" else None
    named, folder = by.split(",") if by else [], Path(root).expanduser()
    found = report(runs, by=named, x=x, format=format, root=folder, name=target.stem if target else "report")
    if target is None:
        sys.stdout.write(found.text)
        return 0
    for path, text in ((target, found.text), *((target.with_name(name), text) for name, text in found.beside.items())):
        write_atomically(path, text)
        print(f"{path}: {len(text.encode()) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(compare))
