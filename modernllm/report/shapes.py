"""The shape walk: what goes into every module and what comes out, as letters of the legend with their sizes.

Letters come from the annotations of a module's `forward`; torch's own modules have none: by place and by size there.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args, get_type_hints

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from modernllm.attention.attend import Attend
from modernllm.batch import Batch
from modernllm.config.build import build, build_model, resolve
from modernllm.config.check import check
from modernllm.config.compose import compose
from modernllm.config.errors import ConfigError
from modernllm.model import Decoder
from modernllm.quantities import Count

LEGEND = {
    "b": "batch", "t": "time (queries)", "s": "time (keys)", "d": "width", "h": "heads", "g": "kv heads",
    "k": "size of a head", "n": "size of a value", "f": "hidden width", "e": "experts", "v": "vocabulary",
}  # fmt: skip
Sizes = dict[str, int]


@dataclass
class Shape:
    """Of one tensor; `letters` are what an annotation says of its dimensions."""

    sizes: tuple[int, ...]
    letters: list[str]

    def worded(self, known: Sizes) -> str:
        """`b1 t10 d512`; a size that no letter stands for is a number."""
        letters = self.letters or [*"bht"[: len(self.sizes) - 1], self.last(known)]
        if len(self.sizes) < 4 and not self.letters:
            letters = [*"bt"[: len(self.sizes) - 1], self.last(known)]
        return " ".join(f"{letter}{n}" for letter, n in zip(letters, self.sizes, strict=True))

    def last(self, known: Sizes) -> str:
        """Of scores it is keys or a head; else what has that size, the width before all."""
        among = {2: "t", 4: "ks"}.get(len(self.sizes), "dfv")
        return next((letter for letter in among if known.get(letter) == self.sizes[-1]), "")


@dataclass
class Row:
    """One call of one module."""

    depth: int
    path: str
    name: str
    kind: str
    given: list[Shape]
    made: list[Shape] = field(default_factory=list)

    def structure(self) -> tuple[object, ...]:
        """What is equal in layers that are alike: experts see different numbers of tokens."""
        return self.name, self.kind, [shape.sizes[2:] for shape in (*self.given, *self.made)]


def walk(model: Decoder, batch: Batch) -> list[Row]:
    """Run `model` on `batch` and note every call, in the order in which they begin. A join calls its sublayer."""
    rows: list[Row] = []
    running: list[Row] = []
    paths = {module: path for path, module in model.named_modules() if path}

    def begin(module: nn.Module, args: Any, kwargs: Any) -> None:
        path = paths[module]
        outer = next((row for row in reversed(running) if path.startswith(f"{row.path}.")), None)
        name = path.removeprefix(f"{outer.path}." if outer else "")
        row = Row(len(running), path, name, type(module).__name__, given(module, args, kwargs))
        rows.append(row)
        running.append(row)

    def end(module: nn.Module, args: Any, kwargs: Any, made: Any) -> None:
        row = running.pop()
        row.made = shapes(made, get_type_hints(type(module).forward).get("return"))
        if isinstance(module, Attend):  # inside a fused kernel, where no module would show it
            q, k = row.given[:2]
            scores = Shape((*q.sizes[:3], k.sizes[2]), [*"bhts"])
            rows.append(Row(row.depth + 1, f"{row.path}.scores", "scores", "q k^T", [q, k], [scores]))

    handles = []
    for module in paths:
        handles.append(module.register_forward_pre_hook(begin, with_kwargs=True))
        handles.append(module.register_forward_hook(end, with_kwargs=True))
    with torch.no_grad():
        model.eval()(batch)
    for handle in handles:
        handle.remove()
    return rows


def given(module: nn.Module, args: Any, kwargs: Any) -> list[Shape]:
    """Of the arguments that are tensors, or hold some; a context or a closure does not."""
    forward = type(module).forward
    hints = get_type_hints(forward)
    bound = inspect.signature(forward).bind(module, *args, **kwargs).arguments
    return [shape for name, value in bound.items() for shape in shapes(value, hints.get(name))]


def shapes(value: Any, hint: Any) -> list[Shape]:
    sizes = [tuple(leaf.shape) for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]
    return [Shape(found, letters(hint, len(found))) for found in sizes]


def letters(hint: Any, ndim: int) -> list[str]:
    """Of `Float[Tensor, "#b h t k"] | None` b, h, t, k; nothing where it does not name each dimension."""
    said = next((kind.dim_str for kind in (hint, *get_args(hint)) if hasattr(kind, "dim_str")), "")
    names = [name.lstrip("#") for name in said.split()]
    return names if len(names) == ndim and all(len(name) == 1 and name.isalpha() for name in names) else []


def sizes_of(rows: Sequence[Row], known: Sizes) -> Sizes:
    """Each letter with the first size that an annotation gives it; f from the nonlinearity of the feed-forward."""
    found = dict(known)
    for row in rows:
        for shape in (*row.given, *row.made):
            for letter, n in zip(shape.letters, shape.sizes, strict=False):
                found.setdefault(letter, n)
        if row.name == "act":
            found.setdefault("f", row.made[0].sizes[-1])
    return {letter: found[letter] for letter in (*LEGEND, *found) if letter in found}


def lines(rows: Sequence[Row], known: Sizes) -> Iterator[str]:
    """The letters, then one line a call, indented by what calls it."""
    known = sizes_of(rows, known)
    yield ", ".join(f"{letter} {n} {LEGEND.get(letter, '')}".rstrip() for letter, n in known.items())
    yield ""
    shown = [row for row in rows if row.name == "act" or row.kind not in ("Dropout", "Identity")]
    left = max(2 * row.depth + len(row.name) for row in shown)
    middle = max(len(row.kind) for row in shown)
    for row, like in folded(shown):
        label, into, out = "  " * row.depth + row.name, row.given, row.made
        words = [", ".join(shape.worded(known) for shape in side) for side in (into, out)]
        yield f"{label:<{left}}  {row.kind:<{middle}}  {' -> '.join(words)}{like and f'  as {like}'}"


def folded(rows: Sequence[Row]) -> Iterator[tuple[Row, str]]:
    """Each row, and the sibling that it is like inside, or "": the first of numbered ones that are alike is shown."""
    start, before, name = 0, [], ""
    while start < len(rows):
        row, end = rows[start], start + 1
        while end < len(rows) and rows[end].depth > row.depth:
            end += 1
        numbered = re.fullmatch(r"(.*)\.\d+", row.name)
        inside = [inner.structure() for inner in rows[start + 1 : end]]
        if numbered and inside == before and numbered[1] == name.rpartition(".")[0]:
            yield row, name
        else:
            before, name = (inside, row.name) if numbered else ([], "")
            yield row, ""
            yield from folded(rows[start + 1 : end])
        start = end


def describe(overrides: Sequence[str], n_rows: Count = 1, n_tokens: Count = 10) -> list[str]:
    """The walk of the model that these overrides compose."""
    cfg = compose(overrides)
    check(cfg)
    config = resolve(cfg)
    vocab_size = config["model"]["vocab_size"] or vocabulary(config["tokenizer"])
    model, _ = build_model({**config["model"], "vocab_size": vocab_size})
    assert isinstance(model, Decoder)
    build(config["init"], "init")(model, config["seed"] or 0)
    tokens = torch.arange(n_rows * n_tokens).view(n_rows, n_tokens) % vocab_size
    sizes = {"b": n_rows, "t": n_tokens, "d": config["model"]["dim"], "v": vocab_size}
    return list(lines(walk(model, Batch(tokens)), sizes))


def vocabulary(tokenizer: dict[str, Any]) -> int:
    """Of a tokenizer that knows it before it has seen a text."""
    recipe = build(tokenizer, "tokenizer")
    if not hasattr(recipe, "vocab_size"):
        raise ConfigError("model.vocab_size: this tokenizer tells it when it is loaded; model.vocab_size=... sets it")
    return recipe.vocab_size
