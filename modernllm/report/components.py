"""The table of groups and choices: what each is, its formula and source, what it costs at one size."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from modernllm.config.build import build_model, resolve
from modernllm.config.check import check
from modernllm.config.compose import CONFIG_DIR, compose
from modernllm.config.targets import resolve_target
from modernllm.config.tree import read_tree
from modernllm.runs.identity import forward_flops_per_token, parameter_counts

OF_THE_MODEL = ("norm", "placement", "readout", "branch", "position", "activation", "attention", "qk_norm", "moe")
OF_THE_MODEL += ("layers", "block", "embedding", "head", "init", "arch")


@dataclass(frozen=True)
class Entry:
    group: str
    choice: str
    description: str
    formula: str
    parameters: int
    flops: float


def entries(overrides: Sequence[str], groups: Sequence[str] = OF_THE_MODEL) -> Iterator[Entry]:
    """Every choice of the groups, one at a time, in a model that is otherwise what `overrides` say."""
    tree = read_tree([CONFIG_DIR])
    for group in groups:
        for name, choice in tree[group].items():
            cfg = compose([*overrides, f"{group}={name}"])
            check(cfg)
            config = resolve(cfg)
            model, _ = build_model(config["model"], vocab_size=config["model"]["vocab_size"] or 259)
            yield Entry(
                group,
                name,
                choice.summary,
                formula(_target(config, group)),
                parameter_counts(model)["total"],
                forward_flops_per_token(model, config["model"]["context_length"]),
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
        cost = f"{row.parameters:>9,} parameters {row.flops:>11,.0f} FLOPs/token"
        yield f"  {row.choice:<{width}}  {cost}  {row.formula or row.description}"
