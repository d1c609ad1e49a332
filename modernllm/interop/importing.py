"""A folder of Hugging Face as a run of ours."""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from modernllm import checkpoint
from modernllm.config.compose import compose_with_choices
from modernllm.cost import cost
from modernllm.interop.exporting import FILES, TOKENIZER
from modernllm.interop.huggingface import load, ours_of
from modernllm.runs.directory import RunDirectory
from modernllm.runs.identity import environment


def import_folder(folder: str | Path, words: Sequence[str] = ()) -> Path:
    """The run folder, made in `out`/`study`, with the folder's weights as the checkpoint of step 0.

    `words` are further overrides. ValueError names what of the design ours cannot be.
    """
    folder = Path(folder).expanduser()
    theirs = load(folder)
    model, config, said = ours_of(theirs, words)
    choices = {group: choice for group, choice in compose_with_choices(said)[1].items() if choice}
    weights = hashlib.sha256()
    for name, tensor in sorted(model.state_dict().items()):
        weights.update(name.encode() + tensor.numpy().tobytes())
    kind = theirs.config.model_type  # type: ignore[union-attr]
    directory = RunDirectory(Path(config["out"]) / config["study"] / f"{kind}-imported-{weights.hexdigest()[:10]}")
    identity: dict[str, Any] = {
        "run_id": directory.path.name,
        "imported": {"from": folder.name, "model_type": kind, "weights": weights.hexdigest()},
        "corpus": None,
        "tokenizer": None,
        "validation": None,
        "floors": {"unigram": math.nan, "bigram": math.nan},
        "choices": choices,
        "overrides": dict(word.split("=", 1) for word in said),
        "dead_switches": {},
        **cost(model, config["model"]["context_length"]),
        **environment(),
    }
    directory.acquire()
    try:
        directory.clear()
        directory.open(config, identity)
        checkpoint.save(directory.checkpoints, 0, {"model": model.state_dict()})
        _keep_tokenizer(folder, directory.path / TOKENIZER)
        directory.mark("finished", step=0, outcome=None, reason=f"imported from {folder.name}, not trained here")
    finally:
        directory.release()
    return directory.path


def _keep_tokenizer(folder: Path, place: Path) -> None:
    """It has no meaning to us, and an export gives it back."""
    files = [file for pattern in FILES for file in folder.glob(pattern) if file.is_file()]
    for file in files:
        place.mkdir(exist_ok=True)
        shutil.copy(file, place)
