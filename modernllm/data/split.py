"""Train and validation are parted by document, before anything else happens to the text.

The rule knows no seed, so all runs on a corpus share one validation set:

* Documents whose texts coincide up to case and white space are one group, and a group stays on one side.
* Groups are ordered by the SHA-256 of that text and taken into validation from the front until it holds
  `share` of all bytes. A group that would take validation past twice the share is passed over; where that
  leaves nothing, the smallest group is taken.
* Where all is one document, or the others are less than half the share beside it, that document is cut in two
  near the end of a line: its tail is the validation text.
* Where the source has a validation split of its own, that one is used; documents of its training split that
  occur in it are left out and counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from modernllm.data.corpus import Corpus, Document, Side

RULE = "documents by sha256 of case- and space-folded text, v1"
RULE_GIVEN = "given by the source, train documents that occur in validation left out, v1"
RULE_CUT = "one document beside which others are small, cut at a line end, v1"


def group_of(text: str) -> bytes:
    """Equal for texts that differ only in case and white space."""
    folded = " ".join(text.lower().split())
    return hashlib.sha256(folded.encode("utf-8", "surrogatepass")).digest()[:16]


@dataclass(frozen=True)
class Split:
    """Which documents of `corpus` are on which side; the texts are read from it again when asked for."""

    corpus: Corpus
    rule: str
    validation: frozenset[bytes]
    share: float
    repeated: int = 0
    left_out: int = 0
    cut: bytes | None = None

    def documents(self, side: Side) -> Iterator[Document]:
        """The documents of one side, in the order of the corpus, empty ones dropped."""
        for document in self.corpus.documents():
            if not document.text:
                continue
            if self.cut and group_of(document.text) == self.cut:
                at = cut_position(document.text, self.share)
                piece = document.text[:at] if side == "train" else document.text[at:]
                yield replace(document, text=piece, name=f"{document.name} ({side} part)")
            elif self._side(document) == side:
                yield document

    def _side(self, document: Document) -> Side | None:
        inside = group_of(document.text) in self.validation
        if self.rule == RULE_GIVEN and document.split != "validation":
            return None if inside else "train"
        return "validation" if inside else "train"


def split_documents(corpus: Corpus, share: float) -> Split:
    """Decide the sides of all documents in one pass; both are non-empty and share no text."""
    size: dict[bytes, int] = {}
    given: set[bytes] = set()
    n_documents, in_train = 0, []
    for document in corpus.documents():
        if not document.text:
            continue
        n_documents += 1
        group = group_of(document.text)
        size[group] = size.get(group, 0) + len(document.text.encode("utf-8", "surrogatepass"))
        if document.split == "validation":
            given.add(group)
        else:
            in_train.append(group)
    if not size:
        raise ValueError(f"data: {corpus.name} holds no text")
    repeated = n_documents - len(size)
    if given:
        left_out = sum(group in given for group in in_train)
        if left_out == len(in_train):
            raise ValueError(f"data: all training documents of {corpus.name} are in its validation split too")
        return Split(corpus, RULE_GIVEN, frozenset(given), share, repeated, left_out)
    largest = max(size, key=lambda group: (size[group], group))
    if size[largest] >= (1 - share / 2) * sum(size.values()):
        return Split(corpus, RULE_CUT, frozenset(), share, repeated, cut=largest)
    return Split(corpus, RULE, _front(size, share), share, repeated)


def _front(size: dict[bytes, int], share: float) -> frozenset[bytes]:
    total = sum(size.values())
    chosen: list[bytes] = []
    held = 0
    for group in sorted(size):
        if held >= share * total or len(chosen) == len(size) - 1:
            break
        if held + size[group] <= 2 * share * total:
            chosen.append(group)
            held += size[group]
    return frozenset(chosen or [min(size, key=lambda group: (size[group], group))])


def cut_position(text: str, share: float) -> int:
    """Where the tail begins: at the nearest start of a line that leaves between half and twice the share."""
    if len(text) < 2:
        raise ValueError("data: the text is one character long; training and validation need one each")
    target = min(max(round(len(text) * (1 - share)), 1), len(text) - 1)
    before, after = text.rfind("\n", 0, target) + 1, text.find("\n", target) + 1
    lines = [at for at in (before, after) if 0 < at < len(text)]
    tail = len(text) - target
    fitting = [at for at in lines if tail / 2 <= len(text) - at <= 2 * tail]
    return min(fitting, key=lambda at: abs(at - target), default=target)
