"""The command line of every script: words against a signature."""

from __future__ import annotations

from typing import Literal

import pytest

from modernllm.quantities import Count
from modernllm.scripting import Misuse, main, parse, usage


def script(
    run: str,
    /,
    *,
    looks: list[Count] | None = None,
    names: list[str] | None = None,
    n: Count = 3,
    word: Literal["a", "b"] = "a",
    text: str = "",
    really: bool = False,
) -> int | None:
    """Do it."""


READ = [
    (["x"], ["x"], {}),
    (["x", "n=5"], ["x"], {"n": 5}),
    (["x", "looks=3,6"], ["x"], {"looks": [3, 6]}),
    (["x", "looks=3"], ["x"], {"looks": [3]}),
    (["x", "looks=[3,6]"], ["x"], {"looks": [3, 6]}),
    (["x", "names=a,b"], ["x"], {"names": ["a", "b"]}),
    (["x", "text=1,2: {3}"], ["x"], {"text": "1,2: {3}"}),
    (["x", "text="], ["x"], {"text": ""}),
    (["[x: y: \x01", "text=@a"], ["[x: y: \x01"], {"text": "@a"}),
    (["really=true", "x"], ["x"], {"really": True}),
    (["a=b=c.yaml"], None, "a=b=c.yaml: no such key"),
]


@pytest.mark.parametrize(("words", "positionals", "named"), READ, ids=[" ".join(words) for words, _, _ in READ])
def test_words_are_read_by_the_signature(words: list[str], positionals: list[str] | None, named: object) -> None:
    if positionals is None:
        with pytest.raises(Misuse, match=str(named)):
            parse(script, words)
    else:
        assert parse(script, words) == (positionals, named)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "run is missing"),
        (["x", "n=0"], "n=0: should be a whole number >= 1"),
        (["x", "looks=3,b"], "looks=[3, b]: should be a list"),
        (["x", "n=[3"], "n=[3: no value can be read there; it takes a whole number >= 1"),
        (["x", "word=c"], "word=c: should be one of a, b"),
        (["x", "loks=3"], "did you mean looks?"),
        (["x", "y"], "y: no such key"),
    ],
)
def test_what_makes_no_sense_is_one_error(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(script, words) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert told in error
    assert error.count("\n") == 1


def test_help_is_the_docstring_and_the_signature() -> None:
    text = usage(script)
    assert text.startswith("Do it.\n")
    assert "looks=" in text
    assert "one of a, b  [a]" in text


def test_errors_of_the_script_itself_have_a_code(capsys: pytest.CaptureFixture[str]) -> None:
    def broken() -> int | None:
        raise ValueError("no such run")

    assert main(broken, []) == 1
    assert capsys.readouterr().err == "error: no such run\n"
