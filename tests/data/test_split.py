"""Train and validation share no text, whatever the documents are (F-58)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from modernllm.data.corpus import Document, hash_documents
from modernllm.data.split import cut_position, group_of, split_documents
from modernllm.data.stdlib import StandardLibrary


@dataclass
class Listed:
    """A corpus from a list."""

    listed: list[Document]
    name: str = "listed"
    note: str | None = None

    def documents(self) -> Iterator[Document]:
        yield from self.listed

    def fingerprint(self) -> str:
        return hash_documents(self.listed)


def corpus(*texts: str) -> Listed:
    return Listed([Document(text, str(number)) for number, text in enumerate(texts)])


def sides(listed: Listed, share: float = 0.05) -> tuple[list[str], list[str]]:
    split = split_documents(listed, share)
    return [d.text for d in split.documents("train")], [d.text for d in split.documents("validation")]


words = st.text(alphabet="aAbB \n\u00e9", min_size=1, max_size=12)


@given(st.lists(words, min_size=1, max_size=30), st.floats(0, 0.3))
def test_both_sides_are_non_empty_disjoint_and_complete(texts: list[str], share: float) -> None:
    assume(split_documents(corpus(*texts), share).cut is None)
    train, validation = sides(corpus(*texts), share)
    assert train
    assert validation
    assert not {group_of(text) for text in train} & {group_of(text) for text in validation}
    assert Counter(train + validation) == Counter(texts)


@given(st.permutations([f"document {number} " * (1 + number % 5) for number in range(40)]))
def test_the_order_of_documents_does_not_matter(texts: list[str]) -> None:
    assert set(sides(corpus(*texts))[1]) == set(sides(corpus(*sorted(texts)))[1])


@pytest.mark.parametrize("share", [0.01, 0.05, 0.1, 0.3])
def test_the_share_is_met(share: float) -> None:
    texts = [f"{number} " * (5 + number % 50) for number in range(2000)]
    train, validation = sides(corpus(*texts), share)
    held = sum(map(len, validation)) / sum(map(len, train + validation))
    assert share <= held < share + 0.005


def test_one_large_document_does_not_eat_the_training_text() -> None:
    """Documents taken blindly from the front would put it into validation for every fourth name."""
    for large in range(20):
        train, validation = sides(corpus(f"{large:02} " * 60, "small one", "small two", "small three"), 0.2)
        assert train[0] == f"{large:02} " * 60
        assert all(text.startswith("small") for text in validation)
        text = f"{large}\n" * 1000
        train, (tail,) = sides(corpus("small one", text, "small two"))
        assert train == ["small one", text[: len(text) * 95 // 100], "small two"]
        assert train[1] + tail == text


def test_repeats_up_to_case_and_space_stay_together_and_are_counted() -> None:
    texts = [f"Text  number {n}" for n in range(50)] + [f"text NUMBER {n}\n" for n in range(50)]
    split = split_documents(corpus(*texts), 0.2)
    train, validation = sides(corpus(*texts), 0.2)
    assert split.repeated == 50
    assert len(validation) == 20
    assert not {" ".join(t.lower().split()) for t in train} & {" ".join(t.lower().split()) for t in validation}


def test_a_split_given_by_the_source_is_kept() -> None:
    listed = Listed(
        [
            Document("a", "0", "train"),
            Document("B ", "1", "train"),
            Document("b", "2", "validation"),
            Document("c", "3", "train"),
            Document("d", "4", "validation"),
        ]
    )
    assert sides(listed) == (["a", "c"], ["b", "d"])
    assert split_documents(listed, 0.05).left_out == 1
    with pytest.raises(ValueError, match="all training documents"):
        split_documents(Listed(listed.listed[1:3]), 0.05)


def test_a_single_document_is_cut_at_a_line_end() -> None:
    text = "".join(f"line {number}\n" for number in range(1000))
    (train,), (validation,) = sides(corpus(text))
    assert train + validation == text
    assert train.endswith("\n")
    assert 0.045 < len(validation) / len(text) < 0.055
    (train,), (validation,) = sides(corpus("x" * 1000))
    assert (len(train), len(validation)) == (950, 50)
    assert sides(corpus("ab")) == (["a"], ["b"])
    with pytest.raises(ValueError, match="one character long"):
        sides(corpus("a"), 0.05)
    with pytest.raises(ValueError, match="holds no text"):
        split_documents(corpus("", ""), 0.05)


@given(st.text(alphabet="ab\n", min_size=2, max_size=200), st.floats(0, 1))
def test_a_cut_leaves_something_on_both_sides(text: str, share: float) -> None:
    assert 0 < cut_position(text, share) < len(text)


def test_the_default_corpus() -> None:
    split = split_documents(StandardLibrary(), 0.05)
    names = {side: [d.name for d in split.documents(side)] for side in ("train", "validation")}
    assert len(names["train"]) > 500
    assert len(names["validation"]) > 20
    assert not set(names["train"]) & set(names["validation"])
