"""Tokenizers: round trips, bytes per id, specials, and what is learned from what."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st
from unheard import refused_at_once

from modernllm.data.synthetic import Synthetic
from modernllm.data.tokenizers import gpt
from modernllm.data.tokenizers.bpe import PATTERN, BytePairEncoding, train
from modernllm.data.tokenizers.byte import ByteTokenizer
from modernllm.data.tokenizers.gpt import TiktokenEncoding
from modernllm.data.tokenizers.ranks import RankTokenizer

TRAINING = [document.text for document in Synthetic(60).documents()]
HARD = [
    "<|endoftext|> <|pad|>",
    "emoji \U0001f9d1‍\U0001f680 é",
    "\x00\x7f\u0085\ufeff",
    "\t\n  \r\n",
    "中文 12345 don't",
]


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> RankTokenizer:
    return BytePairEncoding(600).fit(TRAINING, tmp_path_factory.mktemp("cache"), "training")


@pytest.fixture(params=["byte", "bpe"])
def tokenizer(request: pytest.FixtureRequest, bpe: RankTokenizer):
    return {"byte": ByteTokenizer(), "bpe": bpe}[request.param]


def test_text_survives_and_its_bytes_are_counted(tokenizer) -> None:
    """Special-token text is plain text (F-55), and token bytes sum to the bytes of the text (F-102)."""
    for text, ids in zip(HARD + TRAINING[:5], tokenizer.encode_batch(HARD + TRAINING[:5]), strict=True):
        assert tokenizer.decode(ids) == text
        assert tokenizer.token_bytes[ids].sum() == len(text.encode())
        assert ids.max() < tokenizer.eot


@given(st.text())
def test_any_text_survives(bpe: RankTokenizer, text: str) -> None:
    for tokenizer in (ByteTokenizer(), bpe):
        (ids,) = tokenizer.encode_batch([text])
        assert tokenizer.decode(ids) == text
        assert tokenizer.token_bytes[ids].sum() == len(text.encode())


@pytest.mark.parametrize("text", ["a" * 300_000, " " * 1_000_000, "\n" * 999_999 + "é"])
def test_long_runs_survive(bpe: RankTokenizer, text: str) -> None:
    (ids,) = bpe.encode_batch([text])
    assert bpe.decode(ids) == text


def test_special_ids_stand_at_the_end_and_for_nothing(tokenizer) -> None:
    size = tokenizer.vocab_size
    specials = [tokenizer.eot, tokenizer.pad, tokenizer.mask]
    assert specials == [size - 3, size - 2, size - 1]
    assert len(tokenizer.token_bytes) == size
    assert tokenizer.token_bytes[specials].tolist() == [0, 0, 0]
    assert tokenizer.decode([tokenizer.eot, 104, tokenizer.pad, tokenizer.mask]) == tokenizer.decode([104])
    assert tokenizer.decode(np.array([tokenizer.eot])) == ""
    assert sum(tokenizer.decode([i]) == "\ufffd" for i in range(256)) == 128


def test_byte_ids_are_bytes() -> None:
    (ids,) = ByteTokenizer().encode_batch(["aé"])
    assert ids.tolist() == [97, 0xC3, 0xA9]
    assert ByteTokenizer().vocab_size == 259
    assert ByteTokenizer().hash == ByteTokenizer().hash


def test_bpe_has_the_size_asked_for_and_compresses(bpe: RankTokenizer) -> None:
    assert bpe.vocab_size == 600
    assert len(set(bpe.pieces[:-3])) == 597
    ids = np.concatenate(bpe.encode_batch(TRAINING))
    assert sum(len(text.encode()) for text in TRAINING) / len(ids) > 2.5


def test_bpe_encodes_like_the_library_that_learned_it(bpe: RankTokenizer) -> None:
    """The merges are applied by tiktoken: id for id the result is that of `tokenizers`."""
    model = train(TRAINING, 597)
    texts = [*HARD, *TRAINING[:20], " ".join(TRAINING[:3]).upper()]
    for text, ids in zip(texts, bpe.encode_batch(texts), strict=True):
        assert model.encode(text).ids == ids.tolist()


def test_bpe_is_learned_once_per_text_and_size(tmp_path: Path) -> None:
    first = BytePairEncoding(300).fit(TRAINING, tmp_path, "a")

    def untouched():
        raise AssertionError("the texts of a known corpus are not read")
        yield ""

    again = BytePairEncoding(300).fit(untouched(), tmp_path, "a")
    assert again.hash == first.hash
    assert BytePairEncoding(301).fit(TRAINING, tmp_path, "a").hash != first.hash
    other = BytePairEncoding(300).fit([text.upper() for text in TRAINING], tmp_path, "b")
    assert other.hash != first.hash
    assert BytePairEncoding(300).fit(TRAINING, tmp_path / "elsewhere", "a").hash == first.hash
    (file,) = tmp_path.rglob("bpe-301-*.json")
    file.write_text("[", encoding="utf-8")
    assert BytePairEncoding(301).fit(TRAINING, tmp_path, "a").vocab_size == 301


def test_bpe_refuses_what_it_cannot_keep(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.vocab_size=200: at least 259"):
        BytePairEncoding(200)
    with pytest.raises(
        ValueError, match=r"tokenizer\.vocab_size=4096: .* too small for more than \d+;.*tokenizer=byte"
    ):
        BytePairEncoding(4096).fit(["a few words"], tmp_path, "a")


def test_gpt_without_a_network_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    with refused_at_once(monkeypatch, gpt) as url:
        monkeypatch.setattr(gpt, "HOST", url)
        with pytest.raises(ConnectionError, match=r"tokenizer=gpt2 .*tokenizer=byte or tokenizer=bpe"):
            TiktokenEncoding("gpt2").fit([], tmp_path, "")


def test_gpt_with_its_file_in_place_needs_no_network(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is found where tiktoken keeps it; it gives no pad, no mask and the published end."""
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    (file,) = gpt.FILES["cl100k_base"]
    (tmp_path / hashlib.sha1(f"{gpt.HOST}/{file}".encode()).hexdigest()).write_bytes(b"")
    monkeypatch.setattr(gpt, "reachable", lambda url: pytest.fail("no network needed"))
    ranks = {bytes([value]): value for value in range(256)} | {b"ab": 256}
    published = tiktoken.Encoding(
        "toy",
        pat_str=PATTERN,
        mergeable_ranks=ranks,
        special_tokens={"<|endoftext|>": 300},
        explicit_n_vocab=None,
    )
    monkeypatch.setattr(tiktoken, "get_encoding", lambda name: published)
    tokenizer = TiktokenEncoding("cl100k_base").fit([], tmp_path, "")
    assert (tokenizer.vocab_size, tokenizer.eot, tokenizer.pad, tokenizer.mask) == (301, 300, None, None)
    (ids,) = tokenizer.encode_batch(["ab<|endoftext|>é"])
    assert ids.max() <= 256
    assert tokenizer.decode([*ids.tolist(), 290, 300]) == "ab<|endoftext|>é"
    assert tokenizer.token_bytes[ids].sum() == len("ab<|endoftext|>é".encode())
