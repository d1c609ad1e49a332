"""A study as a saved W&B workspace: `python scripts/dashboard.py <study>`."""

from __future__ import annotations

import modernllm.startup  # noqa: F401 (before all others)

import sys
from pathlib import Path

from modernllm.report.workspace.subject import subject
from modernllm.runs.directory import write_atomically
from modernllm.scripting import Misuse, main


def dashboard(
    study: str,
    /,
    *,
    dry_run: bool = False,
    project: str = "",
    entity: str = "",
    url: str = "",
    out: str = "",
    root: str = "runs",
) -> int:
    """Save a view of a study, or of a claim with its verdict, and print its address: sections Verdict, Loss, Stability,
    Depth profiles, Events and Cost, runs grouped by arm with bands over seeds, over tokens.

    The study is a folder of runs, one run, a claim's folder in runs/verdicts, or a name in root=... Its runs are where
    the mirror put them (project=... and entity=... say it otherwise); scripts/sync.py uploads those that are offline.
    url=... replaces a saved view instead of adding one. dry_run=true needs no W&B: it prints the view as JSON, or
    writes it to out=...
    """
    if out and not dry_run:
        raise Misuse(f"out={out}: only dry_run=true writes a file")
    if url and dry_run:
        raise Misuse(f"url={url}: dry_run=true saves nothing there")
    about = subject(study, root=Path(root).expanduser(), project=project, entity=entity)
    try:
        from modernllm.report.workspace.workspace import as_json, save, workspace
    except ModuleNotFoundError as error:
        if error.name != "wandb_workspaces":
            raise
        raise ValueError("wandb-workspaces is missing: pip install 'modernllm[dashboard]'") from None
    if dry_run:
        text = as_json(workspace(about))
        if out:
            write_atomically(Path(out).expanduser(), text)
            print(f"{out}: {len(about.runs)} runs; scripts/dashboard.py without dry_run=true saves it in W&B")
        else:
            sys.stdout.write(text)
    else:
        print(save(about, url))
    if about.unmirrored:
        print(f"! {len(about.unmirrored)} of its runs have no mirror (logger=local), so they are not in it:",
              *(f"    {path.name}" for path in about.unmirrored), sep="\n", file=sys.stderr)  # fmt: skip
    return 0


if __name__ == "__main__":
    raise SystemExit(main(dashboard))
