"""HTML as values: whatever is not HTML already is escaped."""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Mapping
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


def table(identity: str, head: Iterable[object], rows: Iterable[Html]) -> Html:
    """In a box that scrolls sideways where it is too wide."""
    top = tag("thead", {}, tag("tr", {}, joined(th if isinstance(th, Html) else tag("th", {}, th) for th in head)))
    return tag("div", {"class": "wide"}, tag("table", {"id": identity}, top, tag("tbody", {}, joined(rows))))


def data(identity: str, value: Any) -> Html:
    """JSON for the scripts of the page: no text in it can end its element."""
    written = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=False)
    safe = written.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return Html(f'<script type="application/json" id="{html.escape(identity)}">{safe}</script>')
