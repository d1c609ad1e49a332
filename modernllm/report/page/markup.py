"""HTML as values: whatever is not HTML already is escaped."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


class Html(str):
    """Text that is markup and stays as it is."""


def text(value: object) -> Html:
    return value if isinstance(value, Html) else Html(html.escape(str(value)))


def joined(parts: Iterable[object]) -> Html:
    return Html("".join(map(text, parts)))


def tag(name: str, attributes: Mapping[str, object], *children: object) -> Html:
    """`<name key="value">children</name>`"""
    words = "".join(f' {key}="{html.escape(str(value))}"' for key, value in attributes.items())
    return Html(f"<{name}{words}>{joined(children)}</{name}>")


def table(identity: str, head: Sequence[object], rows: Iterable[Html]) -> Html:
    """In a box that scrolls sideways where it is too wide."""
    return grouped_table(identity, head, [("", rows)])


def grouped_table(identity: str, head: Sequence[object], groups: Iterable[tuple[str, Iterable[Html]]]) -> Html:
    """Each group of rows under its name, where it has one."""
    top = tag("thead", {}, tag("tr", {}, joined(th if isinstance(th, Html) else tag("th", {}, th) for th in head)))
    bodies = joined(tag("tbody", {}, *_group(name, len(head)), joined(rows)) for name, rows in groups)
    return tag("div", {"class": "wide"}, tag("table", {"id": identity}, top, bodies))


def _group(name: str, columns: int) -> list[Html]:
    cell = tag("th", {"colspan": columns, "scope": "rowgroup"}, tag("span", {}, name))
    return [tag("tr", {"class": "group"}, cell)] if name else []


def data(identity: str, value: Any) -> Html:
    """JSON for the scripts of the page: no text in it can end its element."""
    written = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    safe = written.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return Html(f'<script type="application/json" id="{html.escape(identity)}">{safe}</script>')
