"""Corpora: what is read, how it is named, and what is said when it cannot be."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from cpu_time import cpu_seconds
from unheard import PATIENCE, patiently, refused_at_once

from modernllm.data import hub as module
from modernllm.data import stdlib
from modernllm.data.files import TextFiles
from modernllm.data.hub import HubDataset
from modernllm.data.network import SECONDS, reachable
from modernllm.data.prepare import prepare
from modernllm.data.stdlib import StandardLibrary
from modernllm.data.synthetic import Stream, Synthetic
from modernllm.data.tokenizers.byte import ByteTokenizer
from modernllm.data.wikitext import WikiText


def texts(corpus) -> list[str]:
    return [document.text for document in corpus.documents()]


def test_stdlib_has_sources_and_topics_and_nothing_machine_specific() -> None:
    documents = list(StandardLibrary().documents())
    names = [document.name for document in documents]
    assert {"os.py", "json/decoder.py", "pydoc_data/topics/lambda"} <= set(names)
    assert names == sorted(names)
    assert len(set(names)) == len(names)
    folders = {part for name in names for part in name.split("/")[:-1]}
    assert not folders & {"test", "tests", "idlelib", "lib2to3", "turtledemo", "site-packages", "__pycache__"}
    assert not [name for name in names if "_sysconfigdata" in name or name == "pydoc_data/topics.py"]
    assert 5e6 < sum(len(document.text) for document in documents) < 20e6
    assert StandardLibrary().note is None
    assert StandardLibrary().fingerprint() == StandardLibrary().fingerprint()


def test_a_stripped_library_is_replaced_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    corpus = StandardLibrary()
    assert "torch" in (corpus.note or "")
    assert "modules/linear.py" in {document.name for document in corpus.documents()}
    monkeypatch.setattr(stdlib.importlib.util, "find_spec", lambda name: None)
    assert "data=synthetic" in (corpus.note or "")
    assert corpus.fingerprint() == Synthetic().fingerprint()


def test_synthetic_text_is_the_same_everywhere() -> None:
    assert [Stream(1).below(1 << 40) for _ in range(1)] == [(0x910A2DEC89025CC1 >> 16) % (1 << 40)]
    assert Synthetic().fingerprint() == "cbb37e59be8ae59e50e6f98623be2e46d83d61678134cf3fffe779c831b51a87"
    assert cpu_seconds(Synthetic().fingerprint) < 1
    assert 380_000 < sum(map(len, texts(Synthetic()))) < 480_000
    assert texts(Synthetic(5)) == texts(Synthetic())[:5]


def test_one_text_in_several_forms(tmp_path: Path) -> None:
    """UTF-8 with and without mark, CRLF and CR: one and the same corpus, also under LC_ALL=C (F-56)."""
    text = "caf\u00e9 \u4e2d\nzwei\n"
    forms = {
        "plain": text.encode(),
        "bom": b"\xef\xbb\xbf" + text.encode(),
        "crlf": text.replace("\n", "\r\n").encode(),
        "cr": text.replace("\n", "\r").encode(),
    }
    prints = set()
    for name, data in forms.items():
        (tmp_path / name).write_bytes(data)
        prints.add(TextFiles(str(tmp_path / name)).fingerprint())
        assert texts(TextFiles(str(tmp_path / name))) == [text]
    assert len(prints) == 1
    corpus = f"TextFiles({str(tmp_path / 'bom')!r})"
    script = f"from modernllm.data.files import TextFiles; print({corpus}.fingerprint())"
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    other = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
    assert other.stdout.strip() == prints.pop(), other.stderr


def test_another_encoding_is_named_and_used(tmp_path: Path) -> None:
    path = tmp_path / "quote.txt"
    path.write_bytes(b"ab\ncd\x92ef")
    with pytest.raises(ValueError, match=r"quote\.txt: byte 0x92 at offset 5 .*data\.encoding=gb18030"):
        texts(TextFiles(str(path)))
    assert texts(TextFiles(str(path), encoding="cp1252")) == ["ab\ncd\u2019ef"]
    path.write_bytes("中文".encode("gb18030"))
    assert texts(TextFiles(str(path), encoding="gb18030")) == ["中文"]
    path.write_bytes("中文".encode("utf-16"))
    assert texts(TextFiles(str(path), encoding="utf-16")) == ["中文"]
    with pytest.raises(ValueError, match=r"data\.encoding=utf-9"):
        TextFiles(str(path), encoding="utf-9")


def test_folders_and_patterns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.txt", "a/z.md", "a/.hidden", ".git/config", "a/empty.txt"):
        path = tmp_path / "all" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("" if "empty" in name else name, encoding="utf-8")
    folder = str(tmp_path / "all")
    assert texts(TextFiles(folder)) == ["a/z.md", "b.txt"]
    assert texts(TextFiles(f"{folder}/**/*.md")) == ["a/z.md"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert texts(TextFiles("~/all/b.txt")) == ["b.txt"]
    assert TextFiles("~/all/b.txt").name == "b"
    for path, message in {
        f"{folder}/c.txt": r"data\.path=.*c\.txt: no such file.*data=stdlib",
        f"{folder}/*.pdf": r"data\.path=.*\*\.pdf: no file matches",
        f"{folder}/.git/none": "no such file",
    }.items():
        with pytest.raises(FileNotFoundError, match=message):
            texts(TextFiles(path))
    (tmp_path / "void").mkdir()
    with pytest.raises(FileNotFoundError, match="holds no file"):
        texts(TextFiles(str(tmp_path / "void")))
    with pytest.raises(ValueError, match=r"data\.path=.*empty\.txt: there is no text"):
        texts(TextFiles(f"{folder}/a/empty.txt"))


def write_parquet(path: Path, columns: dict[str, list]) -> None:
    import pyarrow
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(columns), path)


def test_rows_of_tables_are_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    rows = [{"text": "one\r\nx", "n": 1}, {"text": "zwei\u00e9", "n": 2}, {"text": None, "n": 3}]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "r[1].jsonl").write_text(lines, encoding="utf-8")
    (tmp_path / "list.json").write_text(json.dumps(rows), encoding="utf-8")
    write_parquet(tmp_path / "t.parquet", {"text": ["one\r\nx", "zwei\u00e9", None]})
    for name in ("r[1].jsonl", "list.json", "t.parquet"):
        assert texts(TextFiles(str(tmp_path / name))) == ["one\r\nx", "zwei\u00e9"]
    with pytest.raises(ValueError, match=r"data\.field=body: .*r\[1\]\.jsonl has no such field; it has n, text"):
        texts(TextFiles(str(tmp_path / "r[1].jsonl"), field="body"))
    with pytest.raises(ValueError, match=r"data\.field=n: .*holds the int 1"):
        texts(TextFiles(str(tmp_path / "r[1].jsonl"), field="n"))
    (tmp_path / "bad.jsonl").write_bytes(b'{"text": "ab\x92"}\n')
    with pytest.raises(ValueError, match=r"bad\.jsonl: byte 0x92 at offset 12"):
        texts(TextFiles(str(tmp_path / "bad.jsonl")))
    (tmp_path / "broken.jsonl").write_text('{"text": "a"\n{"text": "b"}\n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"broken\.jsonl: not readable as json"):
        texts(TextFiles(str(tmp_path / "broken.jsonl")))
    (tmp_path / "broken.parquet").write_bytes(b"no parquet")
    with pytest.raises(ValueError, match=r"broken\.parquet: not readable as parquet"):
        texts(TextFiles(str(tmp_path / "broken.parquet")))
    assert not (tmp_path / "hf").exists()


@pytest.mark.parametrize("suffix", ["txt", "jsonl"])
def test_a_changed_byte_is_seen_at_equal_size_and_time(tmp_path: Path, suffix: str) -> None:
    """F-60 (b): caches that go by name, size and time serve the old text here."""
    path = tmp_path / f"text.{suffix}"
    body = '{"text": "first line"}\n{"text": "second line"}\n'
    path.write_text(body, encoding="utf-8")
    before = path.stat()
    old = prepare(TextFiles(str(path)), ByteTokenizer(), tmp_path / "cache", 0.5)
    path.write_text(body.replace("first", "fIrst"), encoding="utf-8")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    new = prepare(TextFiles(str(path)), ByteTokenizer(), tmp_path / "cache", 0.5)
    assert new.folder != old.folder
    both = new.tokenizer.decode(new.train) + new.tokenizer.decode(new.validation)
    assert "fIrst line" in both
    assert "first" not in both


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    root = tmp_path / "repo"
    write_parquet(root / "data/train-00000-of-00002.parquet", {"text": ["a", "b"], "id": [0, 1]})
    write_parquet(root / "data/train-00001-of-00002.parquet", {"text": ["c", "shared"], "id": [2, 3]})
    write_parquet(root / "data/validation-00000-of-00001.parquet", {"text": ["v", "Shared "], "id": [4, 5]})
    return root


def test_hub_layout_in_a_folder(repository: Path, tmp_path: Path) -> None:
    corpus = HubDataset(str(repository), validation="validation")
    documents = list(corpus.documents())
    assert [d.text for d in documents] == ["a", "b", "c", "shared", "v", "Shared "]
    assert [d.split for d in documents] == ["train"] * 4 + ["validation"] * 2
    assert texts(HubDataset(str(repository))) == ["a", "b", "c", "shared"]
    assert texts(HubDataset(str(repository), limit=3)) == ["a", "b", "c"]
    prepared = prepare(corpus, ByteTokenizer(), tmp_path / "cache")
    assert prepared.tokenizer.decode(prepared.train) == "abc"
    assert prepared.tokenizer.decode(prepared.validation) == "vShared "
    assert prepared.meta["split"]["left_out_documents"] == 1
    with pytest.raises(ValueError, match=r"data\.repo=.*split=dev"):
        texts(HubDataset(str(repository), validation="dev"))
    with pytest.raises(ValueError, match=r"data\.field=body: .* it has id, text"):
        texts(HubDataset(str(repository), field="body"))


def test_wikitext_rows_become_articles() -> None:
    rows = [" = One = \n", " A . \n", " = = Part = = \n", " B . \n", " = Two words = \n", " C = D . \n"]
    assert list(WikiText("x").join(iter(rows))) == ["".join(rows[:4]), "".join(rows[4:])]


@pytest.mark.parametrize("limit", [None, 10])
def test_no_network_is_one_sentence_at_once(monkeypatch: pytest.MonkeyPatch, limit: int | None) -> None:
    corpus = HubDataset("roneneldan/TinyStories", limit=limit)
    with refused_at_once(monkeypatch, module) as url:
        monkeypatch.setenv("HF_ENDPOINT", url)
        for use in (corpus.fingerprint, lambda: list(islice(corpus.documents(), 1))):
            with pytest.raises(ConnectionError, match=r"127\.0\.0\.1.*data=stdlib.*HF_HUB_OFFLINE=1"):
                use()


def test_a_silent_network_is_one_sentence_in_three_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packets that vanish, or a name server that does: neither may take longer."""
    over = threading.Event()

    def silent(*arguments, **options):
        over.wait(PATIENCE)
        raise TimeoutError

    assert SECONDS < 3
    patiently(monkeypatch, module)
    monkeypatch.setattr(module, "reachable", reachable)
    monkeypatch.setattr(socket, "create_connection", silent)
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    start = time.monotonic()
    with pytest.raises(ConnectionError, match=r"huggingface\.co does not answer"):
        HubDataset("roneneldan/TinyStories").fingerprint()
    assert time.monotonic() - start < PATIENCE
    over.set()


def test_offline_sample_is_kept_and_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sample lies under its commit; offline the newest is taken, and where there is none that is said."""
    monkeypatch.setenv("MODERNLLM_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    corpus = HubDataset("owner/name", limit=2)
    with pytest.raises(ValueError, match=r"HF_HUB_OFFLINE is set and no sample of 2 rows.*data=stdlib"):
        corpus.fingerprint()
    write_parquet(corpus._samples() / ("a" * 40) / "train.parquet", {"text": ["x", "y"]})
    assert texts(HubDataset("owner/name", limit=2)) == ["x", "y"]
    before = HubDataset("owner/name", limit=2).fingerprint()
    write_parquet(corpus._samples() / ("b" * 40) / "train.parquet", {"text": ["z", "y"]})
    os.utime(corpus._samples() / ("a" * 40) / "train.parquet", (1, 1))
    assert HubDataset("owner/name", limit=2).fingerprint() != before
    assert texts(HubDataset("owner/name", limit=2)) == ["z", "y"]


@pytest.fixture
def hub(repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """A hub that answers, whose `owner/name` is the folder and whose main branch stands for `commit`."""
    import datasets

    state = SimpleNamespace(commit="a" * 40, asked=[])
    load = datasets.load_dataset

    def load_dataset(repo, *arguments, revision, **options):
        assert repo == "owner/name"
        state.asked.append(revision)
        return load(str(repository), *arguments, **{**options, "cache_dir": str(tmp_path / "hf")})

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(
        datasets, "load_dataset_builder", lambda *arguments, **options: SimpleNamespace(hash=state.commit)
    )
    monkeypatch.setenv("MODERNLLM_CACHE", str(tmp_path / "cache"))
    patiently(monkeypatch, module)
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.getsockname()[1]}")
        yield state


def test_the_commit_identifies_the_data(hub: SimpleNamespace) -> None:
    """Reads are pinned to the commit that the branch stood for; the fingerprint tells commits apart."""
    corpus = HubDataset("owner/name", validation="validation")
    before = corpus.fingerprint()
    assert texts(corpus) == ["a", "b", "c", "shared", "v", "Shared "]
    assert hub.asked == ["a" * 40] * 2
    hub.commit = "b" * 40
    assert corpus.fingerprint() == before
    assert HubDataset("owner/name", validation="validation").fingerprint() != before
    assert HubDataset("owner/name").fingerprint() != HubDataset("owner/name", limit=2).fingerprint()


def test_a_sample_is_fetched_once(hub: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    assert texts(HubDataset("owner/name", limit=3)) == ["a", "b", "c"]
    assert texts(HubDataset("owner/name", limit=3)) == ["a", "b", "c"]
    assert len(hub.asked) == 1
    online = HubDataset("owner/name", limit=3).fingerprint()
    hub.commit = "b" * 40
    assert texts(HubDataset("owner/name", limit=3)) == ["a", "b", "c"]
    assert len(hub.asked) == 2
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert texts(HubDataset("owner/name", limit=3)) == ["a", "b", "c"]
    assert len(hub.asked) == 2
    assert HubDataset("owner/name", limit=3).fingerprint() != online
