"""The shape walk: that of a width of 512 in 8 heads of 64, and one for every choice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from models import VOCAB, choices, tiny, windows
from processes import PATIENCE

from modernllm.batch import Batch
from modernllm.config.errors import ConfigError
from modernllm.report.shapes import describe, lines, walk

SCRIPT = Path(__file__).parents[1] / "scripts" / "shapes.py"


def rows_of(text: list[str]) -> dict[str, list[str]]:
    """Name -> what is printed of its calls, without spaces that align."""
    found: dict[str, list[str]] = {}
    for line in text[2:]:
        name, *words = line.split()
        found.setdefault(name, []).append(" ".join(words))
    return found


def test_ten_tokens_of_width_512_in_8_heads_of_64() -> None:
    text = describe(["model.dim=512", "model.n_heads=8", "activation=relu"])
    assert {"b 1 batch", "t 10 time (queries)", "d 512 width", "h 8 heads", "k 64 size of a head"} <= set(
        text[0].split(", ")
    )
    rows = rows_of(text)
    for name in "qkv":
        assert rows[name] == ["Linear b1 t10 d512 -> b1 t10 d512"]
    assert rows["attend"] == ["Attend b1 h8 t10 k64, b1 g8 s10 k64, b1 g8 s10 n64 -> b1 h8 t10 n64"]
    assert rows["scores"] == ["q k^T b1 h8 t10 k64, b1 g8 s10 k64 -> b1 h8 t10 s10"]
    assert rows["up"] == ["Linear b1 t10 d512 -> b1 t10 f2048"]
    assert rows["act"] == ["ReLU b1 t10 f2048 -> b1 t10 f2048"]
    assert rows["out"] == ["Linear b1 t10 d512 -> b1 t10 d512", "Linear b1 t10 f2048 -> b1 t10 d512"]
    assert rows["embedding"] == ["Embedding b1 t10 -> b1 t10 d512"]
    assert rows["head"] == ["UntiedHead b1 t10 d512 -> b1 t10 v259"]
    assert rows["blocks.5"] == ["SerialBlock b1 t10 d512 -> b1 t10 d512 as blocks.0"]


def test_fewer_key_heads() -> None:
    rows = rows_of(describe(["size=nano", "attention=gqa", "position=t5"], n_rows=2, n_tokens=6))
    assert rows["k"] == ["Linear b2 t6 d64 -> b2 t6 32"]  # two heads of 16
    given = "b2 h4 t6 k16, b2 g2 s6 k16, b2 g2 s6 n16, b1 h4 t6 s6"
    assert rows["attend"] == [f"Attend {given} -> b2 h4 t6 n16"]


def test_the_tree_is_that_of_the_calls() -> None:
    """A join calls its norm and its sublayer, in its own order."""
    depths = {row.path: row.depth for row in walk(tiny("placement=post"), windows(rows=1))}
    order = [path.removeprefix("blocks.0.") for path in depths if path.startswith("blocks.0.")]
    join, layer = "joins.attention", "sublayers.attention"
    assert order.index(join) < order.index(layer) < order.index(f"{layer}.out") < order.index(f"{join}.norm")
    assert [depths[f"blocks.0.{path}"] for path in (join, layer, f"{layer}.q", f"{join}.norm")] == [1, 2, 3, 2]


def test_layers_that_differ_are_both_shown() -> None:
    model = tiny()
    model.blocks[1].get_submodule("sublayers.feedforward").act = torch.nn.ReLU()  # type: ignore[assignment]
    rows = rows_of(list(lines(walk(model, windows(rows=1)), {"d": 32, "v": VOCAB})))
    assert [text.split()[0] for text in rows["act"]] == ["SiLU", "ReLU"]
    assert not rows["blocks.1"][0].endswith("as blocks.0")


@pytest.mark.parametrize("choice", choices("attention", "block", "moe", "placement"))
def test_every_choice_can_be_walked(choice: str) -> None:
    """Every called module once and with what it returned, and the model is left without hooks."""
    model = tiny(choice)
    batch = windows(rows=2, length=9)
    rows = walk(model, Batch(batch.tokens))
    assert all(row.made for row in rows)
    called = {row.path for row in rows}
    assert {path for path, module in model.named_modules() if path.endswith((".attend", ".act"))} <= called
    assert rows[0].made[0].sizes == (2, 9, 32)
    assert rows[-1].made[0].sizes == (2, 9, VOCAB)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert "" not in list(lines(rows, {"b": 2, "t": 9, "d": 32, "v": VOCAB}))[2:]


def test_what_cannot_be_built_says_why() -> None:
    with pytest.raises(ConfigError, match="did you mean size"):
        describe(["sizee=nano"])
    with pytest.raises(ConfigError, match=r"model\.vocab_size=\.\.\. sets it"):
        describe(["tokenizer=gpt2", "size=nano"])
    assert describe(["tokenizer=gpt2", "size=nano", "model.vocab_size=50257"])[-1].endswith("v50257")
    with pytest.raises(ValueError, match="position=learned has 64 positions and met 65"):
        describe(["size=nano", "position=learned"], n_tokens=65)


def test_the_script() -> None:
    words = [sys.executable, str(SCRIPT), "size=nano", "tokens=5", "rows=3"]
    environment = {key: value for key, value in os.environ.items() if key != "OMP_WAIT_POLICY"}
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1].endswith("b3 t5 d64 -> b3 t5 v259")
    wrong = subprocess.run([*words[:2], "tokens=0"], capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert wrong.returncode == 2
    assert "whole number >= 1" in wrong.stderr
