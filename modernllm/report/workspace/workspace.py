"""The workspace of a study: its runs grouped by arm, over tokens, with what differs as columns; built without W&B."""

from __future__ import annotations

import json
import os
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import wandb
import wandb_workspaces.workspaces as ws
from wandb.errors import Error, UsageError

from modernllm.logger.server import LOGIN, answering
from modernllm.report.workspace.sections import sections
from modernllm.report.workspace.subject import Subject

RESULTS = ("outcome", "val_loss", "val_bits_per_byte", "first_nonfinite_step", "clipped_share", "tokens_per_s")
NAME_LIMIT = 128
SYMBOLS = ("So", "Sk", "Sm", "Sc", "Cs")
UNFILTERED = frozenset("'\"\\=<>")
OFFLINE = "dry_run=true writes the workspace as JSON without W&B"


def workspace(about: Subject) -> ws.Workspace:
    """Runs of an arm are a group, so that curves are means over seeds in the band of their range."""
    arms: list[Any] = [ws.Config(path) for path in about.arms] or [ws.Metric("Group")]
    columns = [*(f"config:{in_config(path)}" for path in about.differing), "config:seed.value"]
    return ws.Workspace(
        entity=about.entity,
        project=about.project,
        name=named(about.name),
        sections=sections(about),
        settings=ws.WorkspaceSettings(x_axis="tokens", max_runs=max(10, len(about.runs))),
        runset_settings=ws.RunsetSettings(
            filters=ws.And(belongs(about)),
            groupby=arms,
            order=[ws.Ordering(ws.Summary("val_loss"), ascending=True)],
            pinned_columns=[*columns, *(f"summary:{name}" for name in RESULTS if name in about.summary)],
        ),
    )


def named(text: str) -> str:
    """Without the symbols that wandb-workspaces takes for emoji: = < > and + among them."""
    kept = (c if unicodedata.category(c) not in SYMBOLS else " " for c in text)
    return " ".join("".join(kept).split())[:NAME_LIMIT] or "runs"


def belongs(about: Subject) -> Any:
    """The runs of a study, those to come too. Quotes and line ends in a name end the filters of wandb-workspaces, and
    comparisons in it turn into others: there, and of a single run, it is the runs that there are.
    """
    if about.group and about.group.isprintable() and UNFILTERED.isdisjoint(about.group):
        return ws.Metric("Group") == about.group
    return ws.Metric("ID").isin([(run / "wandb" / "id").read_text().strip() for run in about.runs])


def in_config(path: str) -> str:
    """Where W&B keeps a nested key: every first one is wrapped into a "value"."""
    first, dot, rest = path.partition(".")
    return f"{first}.value{dot}{rest}"


def as_json(made: ws.Workspace) -> str:
    """What `save` would send; wandb-workspaces has no public word for it."""
    return json.dumps(made._to_model().model_dump(mode="json", by_alias=True, exclude_none=True), indent=2) + "\n"


def save(about: Subject, url: str = "") -> str:
    """As a new saved view, or in place of the one at `url`; its address. OSError or ValueError says what is missing."""
    server = answering()
    with _unasked():
        try:
            made = workspace(about)
            made.entity = about.entity or wandb.Api(timeout=20).default_entity or ""
            return (_replaced(made, url) if url else made).save().url
        except UsageError:
            raise ValueError(f"{LOGIN.format(server=server)}; {OFFLINE}") from None
        except Error as error:
            raise OSError(f"W&B at {server} took no workspace: {' '.join(str(error).split())}; {OFFLINE}") from None


def _replaced(made: ws.Workspace, url: str) -> ws.Workspace:
    """The saved view at `url` with the content of `made`."""
    there = ws.Workspace.from_url(url)
    if (there.entity, there.project) != (made.entity, made.project):
        raise ValueError(f"url={url} is a view of {there.entity}/{there.project}, the runs are in "
                         f"{made.entity}/{made.project}")  # fmt: skip
    there.name, there.sections = made.name, made.sections
    there.settings, there.runset_settings = made.settings, made.runset_settings
    return there


@contextmanager
def _unasked() -> Iterator[Any]:
    """Without a terminal for the client to open a menu on."""
    terminal = sys.stdin
    with open(os.devnull, encoding="utf-8") as nothing:
        sys.stdin = nothing
        try:
            yield
        finally:
            sys.stdin = terminal
