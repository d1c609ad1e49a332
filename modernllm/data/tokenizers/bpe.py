"""Byte-pair encoding learned from the training text (Sennrich, Haddow & Birch, 2016), on bytes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from annotated_types import Ge

from modernllm.data.cache import key_of, locked, write_whole
from modernllm.data.tokenizers.ranks import RankTokenizer

if TYPE_CHECKING:
    import tokenizers

PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,2}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
"""Merges stay inside matches: GPT-4's pattern with numbers cut after two digits, for small vocabularies."""
SPECIALS = ("<|endoftext|>", "<|pad|>", "<|mask|>")
SMALLEST = 256 + len(SPECIALS)
TRAINING_BYTES = 100_000_000
"""More text than this changes the merges little and costs minutes."""


class BytePairEncoding:
    """`vocab_size` counts everything: 256 bytes, the merges, and at the end the three special ids.

    Merges are learned from the training split only, at most its first 100 MB, once per text and size.
    """

    def __init__(self, vocab_size: Annotated[int, Ge(SMALLEST)]):
        if vocab_size < SMALLEST:
            raise ValueError(
                f"tokenizer.vocab_size={vocab_size}: at least {SMALLEST}, for 256 bytes and the special ids"
            )
        self.vocab_size = vocab_size

    def fit(self, train_texts: Iterable[str], cache: Path, corpus_key: str) -> RankTokenizer:
        """Learn the merges, or read those learned before from the same text."""
        key = key_of(corpus=corpus_key, vocab_size=self.vocab_size, pattern=PATTERN, bytes=TRAINING_BYTES, version=1)
        path = cache / "tokenizers" / f"bpe-{self.vocab_size}-{key[:16]}.json"
        pieces = _read(path, self.vocab_size)
        if pieces is None:
            with locked(path):
                pieces = _read(path, self.vocab_size) or self._learn(train_texts, path)
        return _tokenizer(pieces)

    def _learn(self, texts: Iterable[str], path: Path) -> list[bytes]:
        pieces = pieces_of(train(texts, self.vocab_size - len(SPECIALS)))
        if len(pieces) < self.vocab_size - len(SPECIALS):
            raise ValueError(
                f"tokenizer.vocab_size={self.vocab_size}: the training text is too small for more than "
                f"{len(pieces) + len(SPECIALS)}; take a value up to that, more text, or tokenizer=byte"
            )
        write_whole(path, json.dumps([base64.b64encode(piece).decode() for piece in pieces]).encode())
        return pieces


def train(texts: Iterable[str], size: int) -> tokenizers.Tokenizer:
    """Learn with Hugging Face's trainer: the fastest at hand, and deterministic."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.Sequence(  # pyright: ignore[reportAttributeAccessIssue]
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False)
    model.train_from_iterator(_first(texts, TRAINING_BYTES), trainer)
    return model


def pieces_of(model: tokenizers.Tokenizer) -> list[bytes]:
    """The 256 bytes and the merges, in order of rank."""
    byte_of = bytes_by_symbol()
    by_id = sorted(model.get_vocab().items(), key=lambda item: item[1])
    pieces = [bytes(byte_of[symbol] for symbol in token) for token, _ in by_id]
    assert set(pieces[:256]) == {bytes([value]) for value in range(256)}
    return pieces


def _first(texts: Iterable[str], limit: int) -> Iterator[str]:
    for text in texts:
        if limit <= 0:
            return
        yield text[:limit]
        limit -= len(text.encode())


def bytes_by_symbol() -> dict[str, int]:
    """GPT-2's stand-ins: printable bytes stand for themselves, the others are code points from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printable]
    return {chr(value): value for value in printable} | {chr(256 + i): value for i, value in enumerate(others)}


def _read(path: Path, vocab_size: int) -> list[bytes] | None:
    try:
        pieces = [base64.b64decode(piece) for piece in json.loads(path.read_bytes())]
    except (OSError, ValueError, TypeError):
        return None
    return pieces if len(set(pieces)) == vocab_size - len(SPECIALS) else None


def _tokenizer(pieces: list[bytes]) -> RankTokenizer:
    import tiktoken

    first = len(pieces)
    encoding = tiktoken.Encoding(
        f"bpe-{first + len(SPECIALS)}",
        pat_str=PATTERN,
        mergeable_ranks={piece: rank for rank, piece in enumerate(pieces)},
        special_tokens={text: first + i for i, text in enumerate(SPECIALS)},
    )
    return RankTokenizer(encoding, eot=first, pad=first + 1, mask=first + 2)
