"""Text from a small grammar, byte for byte the same on every machine and Python."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator
from itertools import accumulate

from modernllm.data.corpus import Document, hash_documents
from modernllm.quantities import Count

ONSETS = [
    "b",
    "br",
    "c",
    "d",
    "dr",
    "f",
    "g",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "pr",
    "r",
    "s",
    "st",
    "t",
    "tr",
    "v",
    "w",
    "z",
]
VOWELS = ["a", "e", "i", "o", "u", "ai", "ea", "ou"]
CODAS = ["", "", "n", "r", "l", "s", "t", "m"]
NAMES = ["Ada", "Bruno", "Cleo", "Dmitri", "Elif", "Farid", "Greta", "Hugo", "Ines", "Jonas", "Kira", "Luis"]
PLACES = ["harbour", "mill", "garden", "tower", "market", "bridge", "forest", "library"]


class Stream:
    """SplitMix64 (Steele, Lea & Flood, 2014): whole numbers only, so no library or platform can change it."""

    MASK = (1 << 64) - 1

    def __init__(self, seed: int):
        self.state = seed & self.MASK

    def below(self, n: int) -> int:
        """A number in [0, n)."""
        self.state = z = (self.state + 0x9E3779B97F4A7C15) & self.MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & self.MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & self.MASK
        return ((z ^ (z >> 31)) >> 16) % n


class Lexicon:
    """Made-up words whose frequencies fall as 1/rank (Zipf), from one shared stream."""

    def __init__(self, stream: Stream, size: int, ending: str):
        words: dict[str, None] = {}
        while len(words) < size:
            syllables = (
                ONSETS[stream.below(len(ONSETS))] + VOWELS[stream.below(len(VOWELS))]
                for _ in range(1 + stream.below(2))
            )
            words["".join(syllables) + CODAS[stream.below(len(CODAS))] + ending] = None
        self.words = list(words)
        self.sums = list(accumulate(1_000_000 // (rank + 2) for rank in range(size)))

    def draw(self, stream: Stream) -> str:
        return self.words[bisect(self.sums, stream.below(self.sums[-1]))]


class Synthetic:
    """Short stories with structure on several scales: spelling, word frequencies, agreement in number, names
    that come back (copying from the context) and sums that are right (computing).

    About 1 kB a document; the default makes 0.45 MB.
    """

    name = "synthetic"
    note = None

    def __init__(self, n_documents: Count = 400):
        self.n_documents = n_documents

    def documents(self) -> Iterator[Document]:
        stream = Stream(0)
        grammar = Grammar(stream)
        for number in range(self.n_documents):
            yield Document(grammar.story(Stream((number + 1) << 32)), f"story-{number}")

    def fingerprint(self) -> str:
        return hash_documents(self.documents())


class Grammar:
    def __init__(self, stream: Stream):
        self.nouns = Lexicon(stream, 2400, "")
        self.verbs = Lexicon(stream, 800, "e")
        self.adjectives = Lexicon(stream, 600, "ish")

    def story(self, stream: Stream) -> str:
        first, further = stream.below(len(NAMES)), 1 + stream.below(len(NAMES) - 1)
        names = [NAMES[first], NAMES[(first + further) % len(NAMES)]]
        place = PLACES[stream.below(len(PLACES))]
        lines = [f"{names[0]} and {names[1]} at the {place}\n"]
        lines += [self.sentence(stream, names, place) for _ in range(14 + stream.below(8))]
        return "\n".join(lines) + "\n"

    def sentence(self, stream: Stream, names: list[str], place: str) -> str:
        speaker = stream.below(2)
        who, other = names[speaker], names[1 - speaker]
        kind = stream.below(5)
        if kind == 0:
            a, b = stream.below(50), stream.below(50)
            return f"{who} counted {a} and {b}, which makes {a + b}."
        if kind == 1:
            return f'"{self.clause(stream)}," said {who} near the {place}.'
        if kind == 2:
            noun = self.nouns.draw(stream)
            return f"{who} gave the {noun} to {other}, and {other} took the {noun}."
        return f"Then {self.clause(stream)}, and {self.clause(stream)}."

    def clause(self, stream: Stream) -> str:
        plural = stream.below(2)
        noun, verb = self.nouns.draw(stream), self.verbs.draw(stream)
        adjective = self.adjectives.draw(stream) + " " if stream.below(2) else ""
        subject = f"many {adjective}{noun}s {verb}" if plural else f"the {adjective}{noun} {verb}s"
        return f"{subject} the {self.nouns.draw(stream)}"
