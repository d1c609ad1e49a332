"""A run as a folder that `AutoModelForCausalLM` loads."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch

from modernllm.batch import Batch
from modernllm.config.build import build_model
from modernllm.data.tokenizers import Tokenizer
from modernllm.interop.huggingface import quietly, theirs_of
from modernllm.interop.tokenizer import save_tokenizer, tokenizer_of
from modernllm.model import Decoder
from modernllm.runs.record import Run, load_run

TOKENIZER = "tokenizer"
"""Where an imported run keeps the tokenizer that came with it."""
FILES = ("tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "spiece.model")


def export(run_folder: str | Path, folder: str | Path) -> list[str]:
    """Write the run's newest weights, its configuration and its tokenizer; lines about it.

    ValueError names the parts that no class of Hugging Face has, or says that `folder` holds something.
    """
    run, folder = load_run(run_folder), Path(folder).expanduser()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"{folder} holds something already: choose another folder")
    model = run.model()
    if not isinstance(model, Decoder):
        raise ValueError("family: this model is of other hands; theirs know how to save it")
    section = run.config["model"]
    _, dead = build_model(section)
    tokenizer, note = _tokenizer(run)
    special = {} if tokenizer is None else {"eos_token_id": tokenizer.eot, "pad_token_id": tokenizer.pad}
    theirs = theirs_of(model, section, dead, **special)
    tokens = torch.randint(model.vocab_size, (2, min(64, model.context_length)), generator=torch.Generator())
    with torch.no_grad():
        expected, found = model(Batch(tokens)), theirs(tokens).logits
    apart = float((found - expected).abs().max() / expected.abs().max())
    if not apart <= 1e-4:  # nor where either is not finite
        raise ValueError(f"{type(theirs).__name__} would give other logits, {apart:.1e} apart: nothing is written")
    with quietly():
        theirs.save_pretrained(folder)  # type: ignore[operator]
    if tokenizer is not None:
        save_tokenizer(tokenizer, folder)
    elif (run.path / TOKENIZER).is_dir():
        shutil.copytree(run.path / TOKENIZER, folder, dirs_exist_ok=True)
        note = "the tokenizer that came with it"
    return [f"{folder}: {type(theirs).__name__}, logits equal to {apart:.1e}", f"tokenizer: {note}"]


def _tokenizer(run: Run) -> tuple[Tokenizer | None, str]:
    """The run's own, and a word on it; None and why where there is none."""
    if run.identity.get("tokenizer") is None:
        return None, "none, this run came without one"
    try:
        found = tokenizer_of(run.config, run.identity["tokenizer"])
    except (ValueError, OSError) as error:
        return None, f"not written, {error}"
    return found, found.name
