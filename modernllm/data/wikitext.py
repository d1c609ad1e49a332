"""WikiText comes a line a row: articles are put together again before they are split."""

from __future__ import annotations

import re
from collections.abc import Iterator

from modernllm.data.hub import HubDataset

TITLE = re.compile(r" = [^=].*[^=] = \n?| = [^=] = \n?")


class WikiText(HubDataset):
    """Merity et al. (2016). An article begins at a line ` = Title = `; ` = = Section = = ` is inside of one.

    Empty lines arrive as empty rows in the published set and are not kept.
    """

    def join(self, rows: Iterator[str]) -> Iterator[str]:
        article: list[str] = []
        for row in rows:
            if TITLE.fullmatch(row) and article:
                yield "".join(article)
                article = []
            article.append(row if row.endswith("\n") else row + "\n")
        if article:
            yield "".join(article)
