"""Checkpoints: plain tensors and plain containers, written whole or not at all."""

from __future__ import annotations

import os
import shutil
import zipfile
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch
import torch
from torch import Tensor, nn

WRAPPERS = {"_orig_mod.": "torch.compile", "module.": "DistributedDataParallel"}
"""What these put before the name of every weight. Ours are saved from the model inside."""
SAID = "_extra_state"
"""How the names end under which modules say something of the weights, as RoPE its layout."""


def save(folder: Path, step: int, content: dict[str, Any], keep: int = 2) -> Path:
    """Write `step-<step>.pt`, then forget all but the newest `keep` up to it, and what the run has passed over to go
    on from before. OSError if it cannot be written, with the older ones intact.
    """
    path = path_of(folder, step)
    _write(path, lambda file: torch.save({"step": step, **content}, file), content)
    there = complete(folder)
    kept = [path for path in there if step_of(path) <= step][:keep]
    killed = folder.glob("*.tmp")  # what a writer that was killed left of one
    for old in {*there, *killed}.difference(kept):
        if not old.is_dir():  # a folder of that name is not of ours
            old.unlink()
    return path


def save_weights(path: Path, model: nn.Module) -> None:
    """Parameters, buffers and what modules say of them, as safetensors, a tensor with several names once."""
    tensors = dict(chain(model.named_parameters(), _kept_buffers(model), _said(model)))
    plain = {name: tensor.detach().contiguous().cpu() for name, tensor in tensors.items()}
    _write(path, lambda file: file.write(safetensors.torch.save(plain)), plain)


def read_weights(path: Path, model: nn.Module) -> dict[str, Tensor]:
    """What `save_weights` wrote of a model like this one, under all the names that a tensor has in it."""
    weights = safetensors.torch.load_file(path)
    first = {id(parameter): name for name, parameter in model.named_parameters()}
    names = {name: first[id(parameter)] for name, parameter in model.named_parameters(remove_duplicate=False)}
    return weights | {name: weights[saved] for name, saved in names.items() if saved in weights}


def restore(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Give `model` the weights of a checkpoint. ValueError, naming them, on any missing or unexpected name."""
    wanted, given = ({name for name in of if not name.endswith(SAID)} for of in (model.state_dict(), weights))
    different = {"missing": wanted - given, "unexpected": given - wanted}
    said = [f"{len(names)} {kind}, {min(names)} among them" for kind, names in different.items() if names]
    if said:
        around = [by for prefix, by in WRAPPERS.items() if given and all(name.startswith(prefix) for name in given)]
        advice = "".join(f"; they are those of {by} around a model: save the model inside" for by in around)
        raise ValueError(f"these weights are another model's: of their names {' and '.join(said)}{advice}")
    model.load_state_dict(weights)


def _kept_buffers(model: nn.Module) -> list[tuple[str, Tensor]]:
    kept = model.state_dict().keys()
    return [(name, buffer) for name, buffer in model.named_buffers() if name in kept]


def _said(model: nn.Module) -> list[tuple[str, Tensor]]:
    """What goes with the weights beside them, as the layout of RoPE."""
    return [(name, value) for name, value in model.state_dict().items() if name.endswith(SAID)]


def _write(path: Path, write: Callable[[BinaryIO], Any], content: Any) -> None:
    """Whole or not at all, by way of a temporary file."""
    temporary = path.with_suffix(".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, RuntimeError) as error:  # torch hides a full disk in a RuntimeError
        cause = next((e for e in (error, error.__cause__, error.__context__) if isinstance(e, OSError)), error)
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise OSError(
            f"cannot write the checkpoint {path}: {cause}; it needs about {_bytes(content) / 1e6:.1f} MB and "
            f"{free_bytes(path) / 1e6:.1f} MB are free there"
        ) from error


def _bytes(content: Any) -> int:
    if isinstance(content, Tensor):
        return content.numel() * content.element_size()
    parts = content.values() if isinstance(content, dict) else content if isinstance(content, list | tuple) else ()
    return sum(map(_bytes, parts))


def free_bytes(path: Path) -> int:
    """On the disk of the nearest folder above `path` that exists."""
    return shutil.disk_usage(next(folder for folder in path.absolute().parents if folder.exists())).free


def path_of(folder: Path, step: int) -> Path:
    return folder / f"step-{step:08d}.pt"


def step_of(path: Path) -> int:
    return int(path.stem.removeprefix("step-"))


def complete(folder: Path) -> list[Path]:
    """Checkpoints, newest first."""
    return sorted(folder.glob("step-" + "[0-9]" * 8 + ".pt"), reverse=True)


def load(path: Path) -> dict[str, Any]:
    """ValueError if a bit of it has changed since it was written, for which torch does not look; what else is raised
    depends on what else there is.
    """
    if not path.is_file():  # to open a pipe is to wait for its writer
        raise ValueError(f"{path} is no file")
    with zipfile.ZipFile(path) as archive:
        if broken := archive.testzip():
            raise ValueError(f"{path} is damaged: the checksum of {broken} is another")
    return torch.load(path, map_location="cpu", weights_only=True)


def is_readable(path: Path) -> bool:
    """Whether the checkpoint of this step stands there, whole."""
    try:
        _ = _read(path)
    except Exception:  # whatever a truncated archive raises
        return False
    return True


def _read(path: Path) -> dict[str, Any]:
    content = load(path)
    if content["step"] != step_of(path):
        raise ValueError("it is another's")
    return content


def load_newest(
    folder: Path, holds: Callable[[int], bool] = lambda step: True
) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest checkpoint that can be read and whose steps the record `holds`, and a sentence for each other."""
    passed = []
    for path in complete(folder):
        try:
            content = _read(path)
        except Exception as error:  # whatever a truncated archive raises
            passed.append(f"checkpoint {path.name} cannot be read ({type(error).__name__}), falling back")
            continue
        if holds(content["step"]):
            return content, passed
        passed.append(f"checkpoint {path.name} has steps that are not recorded, falling back")
    return None, passed
