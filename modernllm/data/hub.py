"""Datasets of the Hugging Face Hub, or a folder laid out like one."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path

from modernllm.data.cache import default_cache, key_of, locked, write_whole
from modernllm.data.corpus import Document, Side, hash_documents
from modernllm.data.network import hub_endpoint, hub_offline, reachable
from modernllm.data.rows import column
from modernllm.quantities import Count


class HubDataset:
    """Rows of the training split of `repo`, and of its `validation` split if it names one: a document each.

    `limit` takes only so many training rows, from the front: they are streamed and kept, so a sample of a
    huge set costs its own size. `revision` pins a commit, tag or branch; the fingerprint names the commit.
    HF_ENDPOINT (a mirror) and HF_HUB_OFFLINE=1 (what was downloaded before) are honoured.
    """

    note = None

    def __init__(
        self,
        repo: str,
        config: str | None = None,
        revision: str = "main",
        field: str = "text",
        limit: Count | None = None,
        validation: str | None = None,
    ):
        self.repo = repo
        self.config = config
        self.revision = revision
        self.field = field
        self.limit = limit
        self.validation = validation
        self._commit: str | None = None

    @property
    def name(self) -> str:
        return Path(self.repo).name

    @property
    def local(self) -> bool:
        return Path(self.repo).expanduser().is_dir()

    def documents(self) -> Iterator[Document]:
        """Training rows, then those of the validation split."""
        given: Side | None = "train" if self.validation else None
        for number, text in enumerate(self.join(self._texts("train", self.limit))):
            yield Document(text, f"train:{number}", given)
        if self.validation:
            for number, text in enumerate(self.join(self._texts(self.validation, None))):
                yield Document(text, f"{self.validation}:{number}", "validation")

    def join(self, rows: Iterator[str]) -> Iterator[str]:
        """Rows to documents; sets that cut their documents into rows put them together here."""
        return rows

    def fingerprint(self) -> str:
        if self.local:
            return hash_documents(self.documents())
        return key_of(
            repo=self.repo,
            config=self.config,
            commit=self._resolve(),
            field=self.field,
            limit=self.limit,
            validation=self.validation,
            rows_to_documents=type(self).__name__,
        )

    def _texts(self, split: str, limit: int | None) -> Iterator[str]:
        source = f"{self.repo} ({split})"
        if self.local:
            # streamed: the cache of `datasets` goes by name, size and time of the files, and may be stale
            with tempfile.TemporaryDirectory() as folder:
                yield from column(self._load(split, True, folder), self.field, source, limit)
        elif limit is None:
            yield from column(self._load(split, False), self.field, source)
        else:
            yield from self._sample(split, limit)

    def _sample(self, split: str, limit: int) -> Iterator[str]:
        """The first rows, fetched once and kept under the commit that they are from."""
        import pyarrow as arrow
        from pyarrow import parquet

        path = self._samples() / self._resolve() / "train.parquet"
        if not path.is_file():
            with locked(path):
                if not path.is_file():
                    texts = list(column(self._load(split, True), self.field, self.repo, limit))
                    stream = arrow.BufferOutputStream()
                    parquet.write_table(arrow.table({self.field: texts}), stream)
                    write_whole(path, stream.getvalue().to_pybytes())
        for batch in parquet.ParquetFile(path).iter_batches(columns=[self.field]):
            yield from batch.column(0).to_pylist()

    def _load(self, split: str, streaming: bool, cache: str | None = None):
        import datasets

        place = str(Path(self.repo).expanduser()) if self.local else self.repo
        revision = None if self.local else self._pinned()
        try:
            return datasets.load_dataset(
                place, self.config, split=split, streaming=streaming, revision=revision, cache_dir=cache
            )
        except (ValueError, FileNotFoundError, ConnectionError) as error:
            raise ValueError(f"data.repo={self.repo} (config={self.config}, split={split}): {error}") from None

    def _resolve(self) -> str:
        """The commit that `revision` stands for, asked for once; offline the newest one in the cache."""
        if self._commit is None:
            self._require_network()
            if hub_offline() and self.limit is not None:
                self._commit = self._newest_sample().parent.name
            else:
                import datasets

                try:
                    builder = datasets.load_dataset_builder(self.repo, self.config, revision=self.revision)
                except (ValueError, FileNotFoundError, ConnectionError) as error:
                    advice = (
                        "not in the cache; data=stdlib needs none" if hub_offline() else f"revision={self.revision}"
                    )
                    raise ValueError(f"data.repo={self.repo} (config={self.config}): {error}; {advice}") from None
                self._commit = str(builder.hash)
        return self._commit

    def _pinned(self) -> str:
        """The commit itself where it is known, so that an upload between two reads changes nothing."""
        commit = self._resolve()
        return commit if re.fullmatch("[0-9a-f]{40}", commit) and not hub_offline() else self.revision

    def _require_network(self) -> None:
        """`datasets` tries for half a minute; a person learns more from one sentence now."""
        if not hub_offline() and not reachable(hub_endpoint()):
            raise ConnectionError(
                f"data.repo={self.repo}: {hub_endpoint()} does not answer; without a network use data=stdlib "
                f"(nothing to download), or HF_HUB_OFFLINE=1 for what is in the cache already; "
                f"HF_ENDPOINT names a mirror"
            )

    def _samples(self) -> Path:
        key = key_of(repo=self.repo, config=self.config, revision=self.revision, field=self.field, limit=self.limit)
        return default_cache() / "hub" / f"{self.name}-{key[:16]}"

    def _newest_sample(self) -> Path:
        there = sorted(self._samples().glob("*/train.parquet"), key=lambda path: path.stat().st_mtime)
        if not there:
            raise ValueError(
                f"data.repo={self.repo}: HF_HUB_OFFLINE is set and no sample of {self.limit} rows lies in "
                f"{self._samples()}; fetch it once with a network, or use data=stdlib"
            )
        return there[-1]
