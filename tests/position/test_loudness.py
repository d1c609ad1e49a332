"""Positions and tokens where the stream starts: which combinations are uneven, and that it is said with a way out."""

from __future__ import annotations

import re

import pytest
from models import FOREIGN, LENGTH, choices, made_fast, paired, tiny

from modernllm.config.compose import default_choices
from modernllm.position.loudness import EVEN, loudness
from modernllm.report.summary import uneven_start

PLACES = ("position", "embedding", "head", "init")


def said(words: list[str], ratio: float | None) -> list[str]:
    named = dict(word.split("=") for word in words)
    return list(uneven_start({"position_loudness": ratio, "choices": default_choices() | named}))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], None),  # rope turns, it adds nothing
        (["position=t5"], None),
        (["position=learned"], 1.0),
        (["position=sinusoidal"], 0.5**0.5),
        (["position=learned", "head=tied"], 32**0.5),
        (["position=sinusoidal", "head=tied"], 16**0.5),
        (["position=learned", "head=tied", "embedding=scaled"], 1.0),
        (["position=learned", "init=gpt2", "head=tied"], 1.0),
        (["position=learned", "init=gpt2", "embedding=normed"], 0.02),
        (["arch=gpt2"], 1.0),
        (["arch=transformer2017"], 0.5**0.5),
    ],
    ids=str,
)
def test_the_size_of_positions_in_that_of_tokens(words: list[str], expected: float | None) -> None:
    found = loudness(tiny(*words))
    assert found == (expected if expected is None else pytest.approx(expected, rel=0.1))
    uneven = expected is not None and not 1 / EVEN <= expected <= EVEN
    assert bool(said([w for w in words if "arch" not in w], found)) == uneven


def test_what_is_said() -> None:
    words = ["position=learned", "head=tied"]
    assert said(words, 8.04) == [
        "! position=learned starts with vectors 8.0 times as large as those of the tokens (embedding=plain head=tied "
        "init=fanin): embedding=normed makes them alike"
    ]
    assert "50.0 times smaller than those of the tokens" in said(["position=learned", "embedding=normed"], 0.02)[0]


def test_the_way_out_leads_out() -> None:
    """Of every combination of the parts that decide it, what is said to help does; none is left uneven."""
    uneven = 0
    for position in ("position=learned", "position=sinusoidal"):
        for init in choices("init"):
            for embedding in choices("embedding"):
                for head in ("head=untied", "head=tied"):
                    words = [position, init, embedding, head]
                    if init in FOREIGN or {init, head} == {"init=mup", "head=tied"}:
                        continue
                    for line in said(words, loudness(made_fast(paired(*words)))):
                        (advised,) = re.findall(r": embedding=(\w+) makes", line)
                        words[2], uneven = f"embedding={advised}", uneven + 1
                        assert said(words, loudness(made_fast(paired(*words)))) == []
    assert uneven > 10


def test_every_position_of_the_context_counts() -> None:
    model = tiny("position=learned")
    before = loudness(model)
    model.get_parameter("position.table").data[LENGTH - 1] *= 100
    after = loudness(model)
    assert before is not None
    assert after == pytest.approx((before**2 * (LENGTH - 1 + 10_000) / LENGTH) ** 0.5, rel=0.2)
