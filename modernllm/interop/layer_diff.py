"""Where two models that should agree first do not, and the usual reasons for it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from modernllm.batch import Batch
from modernllm.config.build import build, build_model, resolve
from modernllm.config.check import check
from modernllm.config.compose import compose
from modernllm.evaluation import evaluating
from modernllm.interop.facts import Facts, differences, facts_of, sized, worded
from modernllm.interop.huggingface import design_named, load, ours_of
from modernllm.model import Decoder
from modernllm.report.shapes import vocabulary
from modernllm.runs.record import load_run

ENDS = ("embedding", "readout.norm", "head")
COARSE = re.compile(r"blocks\.\d+(\.sublayers\.\w+)?")


@dataclass(frozen=True)
class Side:
    """A model, its modules and tensors under our names, and what it is in words (`facts`)."""

    name: str
    model: nn.Module
    modules: dict[str, nn.Module]
    state: dict[str, Tensor]
    facts: Facts
    vocab_size: int
    context_length: int

    def logits(self, tokens: Int[Tensor, "b t"]) -> Tensor:
        return self.model(Batch(tokens)) if isinstance(self.model, Decoder) else self.model(tokens).logits

    def given(self, other: Side) -> Side:
        """With the other's weights wherever name and shape agree. ValueError for a model that is not of our parts."""
        if not isinstance(self.model, Decoder):
            raise ValueError(f"{self.name}: weights=first gives weights to a model of our parts; name it second")
        model = deepcopy(self.model)
        mine = model.state_dict()
        taken = {name: value for name, value in other.state.items() if name in mine and mine[name].shape == value.shape}
        model.load_state_dict(mine | taken)
        return replace(self, model=model, modules=_own_modules(model), state=model.state_dict())


def load_side(text: str, seed: int) -> Side:
    """A run folder, a Hugging Face folder, or overrides, whose model starts from `seed`."""
    folder = Path(text).expanduser()
    if (folder / "run.json").exists():
        run = load_run(folder)
        return _of_ours(folder.name, run.model(), run.config["model"])
    if (folder / "config.json").exists():
        return _of_theirs(folder)
    if folder.exists():
        raise ValueError(f"{text}: is neither a run folder (run.json) nor a Hugging Face folder (config.json)")
    words = text.split()
    if not all("=" in word for word in words):
        raise FileNotFoundError(f"{text}: there is no such folder, and overrides are key=value")
    cfg = compose(words)
    check(cfg)
    config = resolve(cfg)
    section = config["model"]
    section["vocab_size"] = section["vocab_size"] or vocabulary(config["tokenizer"])
    model, _ = build_model(section)
    build(config["init"], "init")(model, seed)
    return _of_ours(text, model, section)


def _of_ours(name: str, model: nn.Module, section: dict[str, Any]) -> Side:
    if not isinstance(model, Decoder):
        raise ValueError(f"{name}: a model of other hands has no layers that are known here")
    _, dead = build_model(section)
    facts = sized(facts_of(section, dead), model)
    return Side(name, model, _own_modules(model), model.state_dict(), facts, model.vocab_size, model.context_length)


def _own_modules(model: Decoder) -> dict[str, nn.Module]:
    return {name: module for name, module in model.named_modules() if name}


def _of_theirs(folder: Path) -> Side:
    model = load(folder, dtype="auto")
    config: dict[str, Any] = model.config.to_dict()  # type: ignore[union-attr,operator]
    design = design_named(config["model_type"])
    facts, _ = design.read(config)
    there = dict(model.named_modules())
    modules = {
        ours: there[theirs]
        for theirs, ours in design.modules(facts["model.n_layers"])
        if theirs in there and not ours.endswith("_norm.norm")
    }
    try:
        state = ours_of(model)[0].state_dict()
    except ValueError:  # not quite among our designs: its layers are compared, its tensors are not
        state = {}
    return Side(folder.name, model, modules, state, facts, facts["model.vocab_size"], facts["model.context_length"])


@dataclass(frozen=True)
class Row:
    """What one module computes on both sides: how far apart, at most, and over the largest number of the first."""

    name: str
    apart: float
    relative: float


def walk(first: Side, second: Side, tokens: Int[Tensor, "b t"]) -> list[Row]:
    """Modules that both have and that return as many numbers, in the order in which the first is done with them."""
    one, other = outputs(first, tokens), outputs(second, tokens)
    rows = []
    for name, mine in one.items():
        theirs = other.get(name)
        if theirs is not None and theirs.shape == mine.shape:
            apart = float((mine.double() - theirs.double()).abs().max())
            rows.append(Row(name, apart, apart / (float(mine.double().abs().max()) or 1.0)))
    return rows


@torch.no_grad()
def outputs(side: Side, tokens: Int[Tensor, "b t"]) -> dict[str, Tensor]:
    """Our name -> what the module returned, of the first call."""
    found: dict[str, Tensor] = {}
    names = {module: name for name, module in side.modules.items()}

    def keep(module: nn.Module, given: Any, made: Any) -> None:
        made = made[0] if isinstance(made, tuple) and made else made
        if isinstance(made, Tensor) and made.is_floating_point():
            found.setdefault(names[module], made.detach().clone())

    handles = [module.register_forward_hook(keep) for module in names]
    try:
        with evaluating(side.model):
            logits = side.logits(tokens)
    finally:
        for handle in handles:
            handle.remove()
    return found | {"logits": logits}


def compare(
    first: Side, second: Side, n_rows: int, n_tokens: int, seed: int, tolerance: float
) -> tuple[list[str], bool]:
    """Lines for people, and whether the logits are equal within `tolerance` of the largest."""
    vocab_size = min(first.vocab_size, second.vocab_size)
    length = min(n_tokens, first.context_length, second.context_length)
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(vocab_size, (n_rows, length), generator=draw)
    rows = walk(first, second, tokens)
    where = next((row for row in rows if not row.relative <= tolerance), None)
    equal = bool(rows) and rows[-1].name == "logits" and rows[-1].relative <= tolerance
    lines = [
        f"A {first.name}",
        f"B {second.name}",
        f"{n_rows} rows of {length} tokens below {vocab_size}, eval mode",
        "",
    ]
    lines += [f"{'':<42} {'max |A - B|':>12} {'over max |A|':>13}"]
    for row in rows:
        if where is row or COARSE.fullmatch(row.name) or row.name in (*ENDS, "logits") or _beside(row, where):
            mark = "  <- first" if row is where else ""
            lines.append(f"{row.name:<42} {row.apart:>12.2e} {row.relative:>13.2e}{mark}")
    if not any(row.name == "logits" for row in rows):
        lines.append("logits: of other shapes")
    lines += [
        "",
        "first apart: " + (where.name if where else f"nowhere, within {tolerance:g}"),
        "",
        "the usual suspects:",
    ]
    lines += [f"  {name:<18} {finding}" for name, finding in suspects(first, second, tokens)]
    return lines, equal


def _beside(row: Row, where: Row | None) -> bool:
    """In the block in which they part."""
    block = re.match(r"blocks\.\d+\.", where.name) if where else None
    return block is not None and row.name.startswith(block[0])


def suspects(first: Side, second: Side, tokens: Int[Tensor, "b t"]) -> Iterator[tuple[str, str]]:
    """A name and a finding each; "equal" where there is none."""
    yield "parts", _parts(first, second)
    yield "epsilon", _epsilons(first, second)
    yield "training mode", _training(first, second, tokens)
    yield "dropout", _either(*(f"{_dropout(side.model):g}" for side in (first, second)))
    yield "weights (init)", _weights(first, second)
    yield "dtype", _either(*(_dtypes(side.model) for side in (first, second)))
    keys = ("position", "model.position.layout", "model.position.base", "model.position.fraction")
    rotary = [", ".join(worded(side.facts.get(key)) for key in keys) for side in (first, second)]
    yield "rotary", _either(*rotary)
    yield "head tied", _either(*(_tied(side) for side in (first, second)))


def _either(a: str, b: str) -> str:
    return f"equal ({a})" if a == b else f"A {a}, B {b}"


def _parts(first: Side, second: Side) -> str:
    found = differences(first.facts, second.facts)
    said = [f"{key} {worded(a)} and {worded(b)}" for key, (a, b) in found.items()]
    return "equal" if not said else "; ".join(said)


def _epsilons(first: Side, second: Side) -> str:
    apart = []
    for name in first.modules.keys() & second.modules.keys():
        a, b = (epsilon(side.modules[name]) for side in (first, second))
        if a is not None and b is not None and a != b:
            apart.append((name, a, b))
    if not apart:
        return "equal"
    name, a, b = min(apart)
    return f"A {a:g}, B {b:g} in {name}" + (f" and {len(apart) - 1} more" if len(apart) > 1 else "")


def epsilon(module: nn.Module) -> float | None:
    """Of a norm, under the names that are in use."""
    return next((vars(module)[name] for name in ("eps", "variance_epsilon") if name in vars(module)), None)


def _training(first: Side, second: Side, tokens: Int[Tensor, "b t"]) -> str:
    """Whether a second forward in eval mode gives the same: what still draws does not."""
    unsteady = []
    with torch.no_grad():
        for letter, side in (("A", first), ("B", second)):
            with evaluating(side.model):
                if not torch.equal(side.logits(tokens), side.logits(tokens)):
                    unsteady.append(letter)
    return f"{' and '.join(unsteady)} draws in eval mode: two forwards differ" if unsteady else "equal (eval repeats)"


def _dropout(model: nn.Module) -> float:
    return max((module.p for module in model.modules() if isinstance(module, nn.Dropout)), default=0.0)


def _weights(first: Side, second: Side) -> str:
    shared = [name for name in first.state if name in second.state]
    fit = [name for name in shared if first.state[name].shape == second.state[name].shape]
    if not fit:
        return "no tensor that both have"
    apart = {name: float((first.state[name].double() - second.state[name].double()).abs().max()) for name in fit}
    unlike = [name for name in fit if not apart[name] <= 1e-6]
    alone = len(first.state.keys() ^ second.state.keys()) + len(shared) - len(fit)
    more = f"; {alone} that only one has, or of another shape" if alone else ""
    if not unlike:
        return f"equal, {len(fit)} tensors{more}"
    worst = max(unlike, key=lambda name: apart[name] if math.isfinite(apart[name]) else math.inf)
    return f"{len(unlike)} of {len(fit)} tensors differ, {worst} by {apart[worst]:.2e}{more}"


def _dtypes(model: nn.Module) -> str:
    return ", ".join(sorted({str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters()}))


def _tied(side: Side) -> str:
    tables = [getattr(side.modules.get(name), "weight", None) for name in ("embedding", "head")]
    if not all(isinstance(table, Tensor) for table in tables):
        return "unknown"
    return "yes" if tables[0].data_ptr() == tables[1].data_ptr() else "no"  # type: ignore[union-attr]
