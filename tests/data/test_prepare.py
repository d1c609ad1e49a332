"""Token files: never stale, never wrapped, never half written."""

from __future__ import annotations

import errno
import hashlib
import json
import multiprocessing
import os
import time
from pathlib import Path

import numpy as np
import pytest

from modernllm.data import prepare as module
from modernllm.data.cache import default_cache, write_whole
from modernllm.data.corpus import Document, hash_documents
from modernllm.data.files import TextFiles
from modernllm.data.prepare import check_ids, prepare, token_dtype
from modernllm.data.synthetic import Synthetic
from modernllm.data.tokenizers.bpe import BytePairEncoding
from modernllm.data.tokenizers.byte import ByteTokenizer


class Numbers:
    """A vocabulary of 70 000 ids: each character is its code point, as far as there are ids."""

    name = "numbers"
    eot = 69_999
    pad = None
    mask = None

    def __init__(self, vocab_size: int = 70_000):
        self.vocab_size = vocab_size
        self.token_bytes = np.ones(vocab_size, int)
        self.hash = f"numbers {vocab_size}"

    def fit(self, train_texts, cache, corpus_key):
        return self

    def encode_batch(self, texts):
        return [np.array([ord(c) for c in text]) for text in texts]

    def decode(self, ids):
        return "".join(chr(i) for i in ids)


class Texts:
    """A corpus from texts."""

    name = "texts"
    note = None

    def __init__(self, *texts: str):
        self.texts = texts

    def documents(self):
        for number, text in enumerate(self.texts):
            yield Document(text, str(number))

    def fingerprint(self) -> str:
        return hash_documents(self.documents())


def test_documents_end_with_one_special_id_each(tmp_path: Path) -> None:
    """Special-token text is text: real ends of text = documents (F-55); bytes add up (F-102)."""
    documents = [f"{number} <|endoftext|> \u00e9\U0001f600" for number in range(40)]
    for recipe in (ByteTokenizer(), BytePairEncoding(280)):
        data = prepare(Texts(*documents), recipe, tmp_path, 0.2)
        text, n_bytes, n_documents = "", 0, 0
        for side, tokens in (("train", data.train), ("validation", data.validation)):
            assert (tokens == data.tokenizer.eot).sum() == data.meta[side]["documents"]
            assert tokens[-1] == data.tokenizer.eot
            assert len(tokens) == data.meta[side]["tokens"]
            assert data.tokenizer.token_bytes[tokens].sum() == data.meta[side]["bytes"]
            text += data.tokenizer.decode(tokens)
            n_bytes += data.meta[side]["bytes"]
            n_documents += data.meta[side]["documents"]
        assert n_documents == 40
        assert n_bytes == sum(len(document.encode()) for document in documents)
        assert sorted(text) == sorted("".join(documents))


def test_large_ids_do_not_wrap(tmp_path: Path) -> None:
    """F-50."""
    high = [chr(65_535), chr(65_536), chr(69_998)]
    data = prepare(Texts("".join(high) * 2, "".join(high)), Numbers(), tmp_path, 0.3)
    assert data.train.dtype == data.validation.dtype == np.uint32
    assert data.meta["dtype"] == "uint32"
    assert (data.folder / "train.bin").stat().st_size == 4 * len(data.train)
    assert set(data.train.tolist()) == {65_535, 65_536, 69_998, 69_999}
    assert token_dtype(65_536) == np.uint16
    assert token_dtype(65_537) == np.uint32


def test_ids_outside_the_vocabulary_are_refused(tmp_path: Path) -> None:
    """F-51: while writing, and in a file whose time does not tell that it was damaged."""
    with pytest.raises(ValueError, match=r"train\.bin: token \d+ is 69999, but the vocabulary has 69000 ids"):
        prepare(Texts("ab", "cd"), Numbers(69_000), tmp_path)
    assert not [path for path in (tmp_path / "tokens").iterdir() if path.suffix != ".lock"]
    data = prepare(Texts("ab", "cd"), ByteTokenizer(), tmp_path)
    file = data.folder / "train.bin"
    written = file.stat().st_mtime_ns
    tokens = np.memmap(file, np.uint16, mode="r+")
    tokens[1] = 259
    tokens.flush()
    os.utime(file, ns=(written, written))
    with pytest.raises(ValueError, match=r"train\.bin: token 1 is 259, but the vocabulary has 259 ids"):
        prepare(Texts("ab", "cd"), ByteTokenizer(), tmp_path)
    big = np.zeros((1 << 24) + 5, np.uint16)
    check_ids(big, 1, Path("x"))
    big[-2] = 7
    with pytest.raises(ValueError, match=rf"x: token {len(big) - 2} is 7"):
        check_ids(big, 7, Path("x"))


def test_what_shapes_the_files_names_them(tmp_path: Path) -> None:
    """F-60: another tokenizer, text or option is another folder; the same again is a hit."""
    first = prepare(Synthetic(30), ByteTokenizer(), tmp_path)
    stamp = (first.folder / "train.bin").stat().st_mtime_ns
    folders = {
        prepare(Synthetic(30), ByteTokenizer(), tmp_path).folder,
        prepare(Synthetic(30), BytePairEncoding(300), tmp_path).folder,
        prepare(Synthetic(30), BytePairEncoding(301), tmp_path).folder,
        prepare(Synthetic(31), ByteTokenizer(), tmp_path).folder,
        prepare(Synthetic(30), ByteTokenizer(), tmp_path, 0.2).folder,
    }
    assert len(folders) == 5
    assert first.folder in folders
    assert (first.folder / "train.bin").stat().st_mtime_ns == stamp


def test_a_hit_reads_the_sources_once_and_is_equal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare(Synthetic(30), BytePairEncoding(300), tmp_path)
    monkeypatch.setattr(module, "split_documents", lambda *a: pytest.fail("a prepared corpus is not split again"))
    again = prepare(Synthetic(30), BytePairEncoding(300), tmp_path)
    assert np.array_equal(first.train, again.train)
    assert first.meta == again.meta
    assert (first.corpus_hash, first.tokenizer_hash) == (again.corpus_hash, again.tokenizer_hash)
    assert isinstance(again.train, np.memmap)
    assert not again.train.flags.writeable


@pytest.mark.parametrize("damage", ["short", "missing", "dtype", "sidecar", "byte"])
def test_a_damaged_folder_is_built_again(tmp_path: Path, damage: str) -> None:
    data = prepare(Synthetic(30), ByteTokenizer(), tmp_path)
    whole = (data.folder / "train.bin").read_bytes()
    if damage == "short":
        (data.folder / "train.bin").write_bytes(whole[:-2])
    elif damage == "byte":
        (data.folder / "train.bin").write_bytes(bytes([whole[0] ^ 1]) + whole[1:])
    elif damage == "missing":
        (data.folder / "validation.bin").unlink()
    elif damage == "dtype":
        meta = {**data.meta, "dtype": "uint32"}
        (data.folder / "meta.json").write_text(json.dumps(meta), encoding="utf-8")
    else:
        (data.folder / "meta.json").write_text("{", encoding="utf-8")
    again = prepare(Synthetic(30), ByteTokenizer(), tmp_path)
    assert again.meta == data.meta
    assert again.train.tobytes() == whole


def test_files_are_hashed_once_for_every_time_that_they_were_modified(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed: list[str] = []
    digest = hashlib.file_digest
    monkeypatch.setattr(hashlib, "file_digest", lambda file, kind: (hashed.append(file.name), digest(file, kind))[1])
    folder = prepare(Synthetic(30), ByteTokenizer(), tmp_path).folder
    assert [Path(name).name for name in hashed] == ["train.bin", "validation.bin"]
    prepare(Synthetic(30), ByteTokenizer(), tmp_path)
    assert len(hashed) == 2
    os.utime(folder / "train.bin", ns=(0, 0))
    for _ in range(2):
        prepare(Synthetic(30), ByteTokenizer(), tmp_path)
    assert len(hashed) == 4


class Slow(ByteTokenizer):
    """Leaves a mark each time that it is at work, long enough for the other process to arrive."""

    def __init__(self, log: Path):
        super().__init__()
        self.log = log

    def encode_batch(self, texts: list[str]) -> list[np.ndarray]:
        with self.log.open("a", encoding="utf-8") as file:
            file.write("x")
        time.sleep(0.3)
        return super().encode_batch(texts)


def _prepare(cache: Path, log: Path, results) -> None:
    data = prepare(Synthetic(30), Slow(log), cache)
    results.put((str(data.folder), len(data.train)))


def test_two_processes_prepare_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=_prepare, args=(tmp_path, tmp_path / "log", results)) for _ in range(2)]
    for process in processes:
        process.start()
    first, second = results.get(timeout=300), results.get(timeout=300)
    for process in processes:
        process.join()
    assert first == second
    assert (tmp_path / "log").read_text(encoding="utf-8") == "xx"


def test_a_killed_writer_leaves_nothing_that_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ByteTokenizer, "encode_batch", lambda *a: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        prepare(Synthetic(30), ByteTokenizer(), tmp_path)
    assert [path.suffix for path in (tmp_path / "tokens").iterdir()] == [".lock"]
    monkeypatch.undo()
    folder = prepare(Synthetic(30), ByteTokenizer(), tmp_path).folder
    (folder / "meta.json").unlink()
    left = folder.parent / f".{folder.name}-killed"
    left.mkdir()
    prepare(Synthetic(30), ByteTokenizer(), tmp_path)
    assert not left.exists()


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    for recipe in (ByteTokenizer(), BytePairEncoding(300)):
        with pytest.raises(OSError, match=r"cannot write the data cache at .*file.*MODERNLLM_CACHE"):
            prepare(Synthetic(30), recipe, blocked)

    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.Path, "open", full)
    with pytest.raises(OSError, match=r"cannot write .*train\.bin: No space left on device") as caught:
        prepare(Synthetic(30), ByteTokenizer(), tmp_path)
    assert caught.value.errno == errno.ENOSPC


def test_a_text_that_changes_while_it_is_read_is_refused(tmp_path: Path) -> None:
    class Changing(Synthetic):
        calls = 0

        def fingerprint(self) -> str:
            self.calls += 1
            return f"version {self.calls}"

    with pytest.raises(ValueError, match="changed while it was read"):
        prepare(Changing(30), ByteTokenizer(), tmp_path)


def test_one_file_is_enough(tmp_path: Path) -> None:
    path = tmp_path / "play.txt"
    path.write_text("".join(f"line {number}\n" for number in range(500)), encoding="utf-8")
    data = prepare(TextFiles(str(path)), ByteTokenizer(), tmp_path / "cache")
    assert data.tokenizer.decode(data.train) + data.tokenizer.decode(data.validation) == path.read_text("utf-8")
    assert data.folder.name.startswith("play-byte-")


def test_the_place_of_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MODERNLLM_CACHE", "~/own")
    monkeypatch.setenv("HOME", "/home/x")
    assert default_cache() == Path("/home/x/own")
    monkeypatch.delenv("MODERNLLM_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert default_cache() == Path("/xdg/modernllm")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert default_cache() == Path("/home/x/.cache/modernllm")
    write_whole(tmp_path / "a/b", b"1")
    write_whole(tmp_path / "a/b", b"2")
    assert [path.read_bytes() for path in (tmp_path / "a").iterdir()] == [b"2"]
