"""The table of groups and choices: what each is, its formula and source, what it costs at one size."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from modernllm.config.build import resolve
from modernllm.config.check import check
from modernllm.config.compose import CONFIG_DIR, compose
from modernllm.config.targets import resolve_target
from modernllm.config.tree import default_choices, read_tree
from modernllm.cost import planned_cost

OF_THE_MODEL = ("norm", "placement", "readout", "branch", "position", "activation", "attention", "qk_norm", "moe")
OF_THE_MODEL += ("layers", "block", "embedding", "head", "init", "arch")

NOTES = {
    "placement": "where the norm stands; each brings the readout that belongs to it",
    "readout": "what stands between the last block and the head",
    "branch": "what a sublayer's output is multiplied with",
    "activation": "the feed-forward; the gated ones have the parameters of the plain ones",
    "attention": "with `model.n_kv_heads`, and on those with a softmax `attention.softcap` `.sinks` `.scale`",
    "moe": "experts are whatever `activation` is",
    "layers": "which layer has what",
    "arch": "a whole design as choices of the groups above, which the command line still overrides",
    "family": "our decoder, or a model of other hands (with the package that it is of)",
    "size": "from 0.2M parameters (`nano`) to 17M (`small`) and GPT-2's 124M (`gpt2` with `head=tied`): dims, batch, "
    "steps and learning rate together",
    "tokenizer": "a larger size picks its own",
    "trainer": "`smoke` is three steps of everything, for CI",
}
"""What the README says of a group beside its choices."""
BEGIN, END = "<!-- choices: python scripts/components.py into=README.md -->", "<!-- end of choices -->"


@dataclass(frozen=True)
class Entry:
    group: str
    choice: str
    description: str
    formula: str
    parameters: int
    active: int
    flops: float


def entries(overrides: Sequence[str], groups: Sequence[str] = OF_THE_MODEL) -> Iterator[Entry]:
    """Every choice of the groups, one at a time, in a model that is otherwise what `overrides` say."""
    tree = read_tree([CONFIG_DIR])
    for group in groups:
        for name, choice in tree[group].items():
            cfg = compose([*overrides, f"{group}={name}"])
            check(cfg)
            config = resolve(cfg)
            found = planned_cost({**config["model"], "vocab_size": config["model"]["vocab_size"] or 259})
            yield Entry(
                group,
                name,
                choice.summary,
                formula(_target(config, group)),
                found["parameters"]["total"],
                found["parameters"]["active"],
                found["flops_per_token"]["algorithmic"],
            )


def _target(config: dict[str, Any], group: str) -> str | None:
    node = config.get(group) or config["model"].get(group)
    return node["_target_"] if isinstance(node, dict) else None


def formula(target: str | None) -> str:
    """The first paragraph of what the class says of itself; torch's own classes speak for themselves."""
    if target is None or not target.startswith("modernllm."):
        return target or ""
    text = inspect.getdoc(resolve_target(target, [])) or ""
    return " ".join(text.split("\n\n")[0].split())


def choices() -> Iterator[str]:
    """The README's table: a row a group, its default first."""
    tree, defaults = read_tree([CONFIG_DIR]), default_choices()
    yield "| group | choices (first: the default) |"
    yield "|---|---|"
    for group in dict.fromkeys((*OF_THE_MODEL, *defaults)):
        names = sorted(tree[group], key=lambda name: (name != defaults[group], name))
        note = f": {NOTES[group]}" if group in NOTES else ""
        yield f"| `{group}` | {' '.join(f'`{name}`' for name in names)}{note} |"


def with_choices(text: str) -> str:
    """`text` with the table between its marks. ValueError where they are not."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the table of choices stands between {BEGIN} and {END}, which are not there")
    return "\n".join((before + begin, *choices(), end + after))


def markdown(rows: Sequence[Entry]) -> Iterator[str]:
    yield "| group | choice | what it is | parameters | FLOPs/token |"
    yield "|---|---|---|--:|--:|"
    for row in rows:
        yield f"| `{row.group}` | `{row.choice}` | {row.description} | {row.parameters:,} | {row.flops:,.0f} |"


def text(rows: Sequence[Entry]) -> Iterator[str]:
    width = max(len(row.choice) for row in rows)
    group = None
    for row in rows:
        if row.group != group:
            group = row.group
            yield ""
            yield group
        active = f" ({row.active:,} active)" if row.active != row.parameters else ""
        cost = f"{row.parameters:>9,} parameters{active} {row.flops:>11,.0f} FLOPs/token"
        own = row.formula and not row.formula.startswith("torch.")  # a class of torch has no formula to show
        yield f"  {row.choice:<{width}}  {cost}  {row.formula if own else row.description}"
