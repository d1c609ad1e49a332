"""Our tokenizers as Hugging Face's: the same ids for the same text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modernllm.config.build import build
from modernllm.data.cache import default_cache
from modernllm.data.prepare import prepare
from modernllm.data.tokenizers import Tokenizer
from modernllm.data.tokenizers.bpe import SPECIALS, BytePairEncoding, bytes_by_symbol
from modernllm.data.tokenizers.ranks import RankTokenizer

if TYPE_CHECKING:
    import tokenizers


def tokenizer_of(config: Mapping[str, Any], hash: str) -> Tokenizer:
    """The tokenizer that a run was trained with. ValueError or OSError where it cannot be had again: one that learned
    needs its text.
    """
    recipe = build(config["tokenizer"], "tokenizer")
    cache = Path(config["cache"]).expanduser() if config["cache"] else default_cache()
    learned = isinstance(recipe, BytePairEncoding)
    found = prepare(build(config["data"], "data"), recipe, cache).tokenizer if learned else recipe.fit([], cache, "")
    if found.hash != hash:
        raise ValueError("the text has changed since, and with it what the tokenizer learned from it")
    return found


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """`tokenizer.json` and what belongs to it, for `AutoTokenizer`."""
    from modernllm.interop.huggingface import quietly, transformers

    names = special_names(tokenizer)
    words = {"eos_token": tokenizer.eot, "pad_token": tokenizer.pad, "mask_token": tokenizer.mask}
    with quietly():
        made = transformers().PreTrainedTokenizerFast(
            tokenizer_object=converted(tokenizer),
            clean_up_tokenization_spaces=False,
            **{role: names[id] for role, id in words.items() if id is not None},
        )
        made.save_pretrained(folder)


def special_names(tokenizer: Tokenizer) -> dict[int, str]:
    if isinstance(tokenizer, RankTokenizer):
        return {id: name for name, id in tokenizer.encoding._special_tokens.items()}
    ids = (tokenizer.eot, tokenizer.pad, tokenizer.mask)
    return {id: name for id, name in zip(ids, SPECIALS, strict=True) if id is not None}


def converted(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """Byte-pair encoding by the same ranks within the same pieces of text; without merges where an id is a byte."""
    from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
    from tokenizers import Tokenizer as Theirs

    symbol = {value: letter for letter, value in bytes_by_symbol().items()}
    by_rank = isinstance(tokenizer, RankTokenizer)
    every = tokenizer.pieces if by_rank else [bytes([value]) for value in range(256)]
    pieces = [piece for piece in every if piece]
    written = {piece: "".join(symbol[value] for value in piece) for piece in pieces}
    merges = [(written[first], written[second]) for first, second in merges_of(pieces)]
    ids = {written[piece]: rank for rank, piece in enumerate(every) if piece}
    made = Theirs(models.BPE(vocab=ids, merges=merges, ignore_merges=True))
    steps = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    if by_rank:
        steps.insert(0, pre_tokenizers.Split(Regex(tokenizer.encoding._pat_str), "isolated"))  # type: ignore[arg-type]
    made.pre_tokenizer = pre_tokenizers.Sequence(steps)  # pyright: ignore[reportAttributeAccessIssue]
    made.decoder = decoders.ByteLevel()  # pyright: ignore[reportAttributeAccessIssue]
    made.add_special_tokens(
        [AddedToken(name, special=True, normalized=False) for _, name in sorted(special_names(tokenizer).items())]
    )
    return made


def merges_of(pieces: list[bytes]) -> list[tuple[bytes, bytes]]:
    """The two parts that each longer piece was merged of: what merging by lower ranks leaves of it."""
    ranks = {piece: rank for rank, piece in enumerate(pieces)}
    found = []
    for rank, piece in enumerate(pieces):
        parts = [bytes([value]) for value in piece]
        while len(parts) > 2:
            pairs = [ranks.get(parts[i] + parts[i + 1], rank) for i in range(len(parts) - 1)]
            at = min(range(len(pairs)), key=pairs.__getitem__)
            parts[at : at + 2] = [parts[at] + parts[at + 1]]
        if len(parts) == 2:
            found.append((parts[0], parts[1]))
    return found
