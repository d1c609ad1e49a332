"""The keys of a run that belong to no group: the schema of the root of `configs/train.yaml`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from annotated_types import MinLen, Predicate, doc

from modernllm.quantities import Natural


def is_folder_name(text: str) -> bool:
    """One folder, no path: also safe in a shell and as part of a run's name."""
    return len(text) <= 100 and re.fullmatch(r"\w[\w.+=-]*", text) is not None


FolderName = Annotated[
    str, Predicate(is_folder_name), doc("the name of one folder (letters, digits, _ . + = -, no dot first)")
]
Text = Annotated[str, MinLen(1)]


@dataclass
class Settings:
    """What each key means stands in `configs/train.yaml`."""

    seed: Natural | None
    study: FolderName
    out: Text
    cache: Text | None
    overwrite: bool
    plan: bool
    retry: bool
    resume: Text | None
    allow_targets: list[str]
