"""The vocabularies of the GPT models, as tiktoken publishes them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from modernllm.data.network import reachable
from modernllm.data.tokenizers.ranks import RankTokenizer

HOST = "https://openaipublic.blob.core.windows.net"
FILES = {
    "gpt2": ("gpt-2/encodings/main/vocab.bpe", "gpt-2/encodings/main/encoder.json"),
    "cl100k_base": ("encodings/cl100k_base.tiktoken",),
    "o200k_base": ("encodings/o200k_base.tiktoken",),
}


class TiktokenEncoding:
    """GPT-2's 50 257 ids, GPT-4's 100 277 or GPT-4o's 200 019; downloaded once, kept by tiktoken."""

    def __init__(self, name: Literal["gpt2", "cl100k_base", "o200k_base"]):
        self.name: str = name

    def fit(self, train_texts: Iterable[str], cache: Path, corpus_key: str) -> RankTokenizer:
        """Nothing is learned; the files are fetched if they are not there."""
        import tiktoken

        # tiktoken downloads without a timeout: on a network that drops packets it would wait for minutes
        if not all(map(_cached, FILES[self.name])) and not reachable(HOST):
            raise ConnectionError(
                f"tokenizer={self.name} has to be downloaded once and {HOST} does not answer; "
                f"without a network use tokenizer=byte or tokenizer=bpe, or fill TIKTOKEN_CACHE_DIR"
            )
        encoding = tiktoken.get_encoding(self.name)
        return RankTokenizer(encoding, eot=encoding.eot_token, pad=None, mask=None)


def _cached(file: str) -> bool:
    """Whether tiktoken has the file where it looks for it."""
    default = Path(tempfile.gettempdir(), "data-gym-cache")
    folder = os.environ.get("TIKTOKEN_CACHE_DIR", os.environ.get("DATA_GYM_CACHE_DIR", str(default)))
    return folder != "" and Path(folder, hashlib.sha1(f"{HOST}/{file}".encode()).hexdigest()).is_file()
