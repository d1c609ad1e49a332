"""Models in Hugging Face's classes and folders: ours of theirs and theirs of ours."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import torch
from torch import nn

from modernllm.config.build import build_model, resolve
from modernllm.config.check import check
from modernllm.config.compose import compose
from modernllm.family import package
from modernllm.interop.design import Design, designs
from modernllm.interop.facts import Facts, composed, counted, differences, facts_of, overrides, sized, worded
from modernllm.interop.layout import halved
from modernllm.interop.weights import Tie, ours_from, theirs_from, ties_of
from modernllm.model import Decoder


def transformers() -> ModuleType:
    """The package, quiet. ValueError, saying how to get it, where it is not installed."""
    found = package("transformers", "hf_llama")
    found.logging.set_verbosity_error()
    found.logging.disable_progress_bar()
    return found


@contextmanager
def quietly() -> Iterator[None]:
    """What their packages warn of at import and on saving is theirs."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def read_config(path: str | Path) -> dict[str, Any]:
    """Of a folder or a config.json, with every default filled in where transformers knows the model type.

    FileNotFoundError if there is none, ValueError if it cannot be read.
    """
    path = Path(path).expanduser()
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise FileNotFoundError(f"{path} is no Hugging Face folder: it has no config.json")
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is damaged: {error}") from None
    if not isinstance(raw, dict):
        raise ValueError(f"{file} is no configuration: it holds no keys")
    library = transformers()
    if raw.get("model_type") not in library.CONFIG_MAPPING:
        return raw
    with quietly():
        return library.AutoConfig.from_pretrained(file, local_files_only=True).to_dict()


def load(folder: str | Path, dtype: torch.dtype | Literal["auto"] = torch.float32) -> nn.Module:
    """The causal model of a folder in eval mode, with their own attention written out; `auto` is as it was saved."""
    library = transformers()
    read_config(folder)  # says what is wrong with it
    with quietly():
        made = library.AutoModelForCausalLM.from_pretrained(
            Path(folder).expanduser(), local_files_only=True, dtype=dtype, attn_implementation="eager"
        )
    return made.eval()


def design_named(model_type: object) -> Design:
    """ValueError with those we know where it is none of them."""
    known = designs()
    if model_type not in known:
        raise ValueError(f"model_type={model_type}: is unknown here; known are {', '.join(sorted(known))}")
    return known[str(model_type)]


def words_of(config: dict[str, Any]) -> list[str]:
    """The overrides that compose the model of this configuration. ValueError names what ours cannot be."""
    design = design_named(config.get("model_type"))
    facts, problems = design.read(config)
    if problems:
        raise ValueError(f"{design.model_type} is not among our designs here: {'; '.join(problems)}")
    return [f"arch={design.arch}", *overrides(composed(f"arch={design.arch}"), facts)]


def ours_of(theirs: nn.Module, words: Sequence[str] = ()) -> tuple[Decoder, dict[str, Any], list[str]]:
    """Our model with their weights, in eval mode, the whole configuration it is of, and its overrides; `words` come
    after those that the design needs.
    """
    config: dict[str, Any] = theirs.config.to_dict()  # type: ignore[union-attr,operator]
    said = [*words_of(config), *words]
    composed_ = compose(said)
    check(composed_)
    ours = resolve(composed_)
    model, dead = build_model(ours["model"])
    assert isinstance(model, Decoder)
    ties = ties_for(design_named(config["model_type"]), model, sized(facts_of(ours["model"], dead), model))
    model.load_state_dict(ours_from(ties, {name: tensor.float() for name, tensor in theirs.state_dict().items()}))
    return model.eval(), ours, said


def ties_for(design: Design, model: Decoder, facts: Facts) -> list[Tie]:
    tensors = model.state_dict().items()
    shapes = {name: tensor.shape for name, tensor in tensors if not name.endswith("_extra_state")}  # RoPE's layout
    return ties_of(design.rules, shapes, facts)


def fitting(facts: Facts) -> tuple[Design, dict[str, Any]]:
    """The design that `facts` are, and its configuration. ValueError names the parts that the nearest is without."""
    tried = [(*_written(design, facts), design) for design in designs().values()]
    exact = [(design, config) for problems, config, design in tried if not problems]
    if exact:
        return min(exact, key=lambda found: len(overrides(composed(f"arch={found[0].arch}"), facts)))
    # a choice that differs hides the keys below it
    problems, _, nearest = min(tried, key=lambda e: (sum(not p.startswith("model.") for p in e[0]), len(e[0])))
    raise ValueError(
        f"no class of Hugging Face that is known here is this model; {nearest.model_type} comes nearest, but for "
        + "; ".join(problems)
    )


def _written(design: Design, facts: Facts) -> tuple[list[str], dict[str, Any]]:
    """What of `facts` the design is without, and what it writes of them."""
    config, problems = design.write(facts)
    if isinstance(heads := facts.get("model.n_kv_heads"), str):
        problems.append(f"model.n_kv_heads={heads}: theirs has one number for all layers")
    back, _ = design.read(config)
    for key, (mine, theirs) in differences(facts, counted(back)).items():
        if not any(key in problem for problem in problems):
            problems.append(f"{key}={worded(mine)}, theirs is {worded(theirs)}")
    return problems, config


def theirs_of(model: Decoder, section: dict[str, Any], dead: Sequence[str] = (), **tokens: int | None) -> nn.Module:
    """The model of ours with this `model` section as one of theirs, in eval mode; `tokens` are ids of special ones."""
    facts, state = halved(sized(facts_of(section, dead), model), dict(model.state_dict()))
    design, config = fitting(facts)
    library = transformers()
    with quietly():
        settings = library.AutoConfig.for_model(
            **{"bos_token_id": None, "eos_token_id": None, "pad_token_id": None, **config, **tokens}
        )
        made = library.AutoModelForCausalLM.from_config(settings, attn_implementation="eager", dtype=torch.float32)
    plain = {name: tensor.detach().cpu() for name, tensor in state.items()}
    made.load_state_dict(theirs_from(ties_for(design, model, facts), plain))
    return made.eval()
