"""Every choice of every model group, with its formula and its cost: `python scripts/components.py size=nano`."""

import modernllm.startup  # noqa: F401 (before all others)

from pathlib import Path
from typing import Literal

from modernllm.report.components import OF_THE_MODEL, entries, markdown, text, with_choices
from modernllm.scripting import main


def components(
    *overrides: str,
    groups: list[str] = list(OF_THE_MODEL),  # noqa: B006 (shown, never changed)
    format: Literal["text", "markdown"] = "text",
    into: str | None = None,
) -> None:
    """The table of groups and choices: formula and source as the code states them, parameters of the whole model and
    FLOPs of a forward per token, each choice in a model that is otherwise what the overrides say (size=nano and such).

    into=README.md writes the names alone, of every group, between the marks of that file.
    """
    if into:
        file = Path(into)
        file.write_text(with_choices(file.read_text(encoding="utf-8")), encoding="utf-8")
        return
    rows = list(entries(overrides, groups))
    print(*(markdown(rows) if format == "markdown" else text(rows)), sep="\n")


if __name__ == "__main__":
    raise SystemExit(main(components))
