"""Where two models part, and each usual suspect, planted."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_models import DESIGNS, drawn

from modernllm.interop.huggingface import quietly
from modernllm.interop.importing import import_folder
from modernllm.interop.layer_diff import Side, compare, load_side, suspects, walk
from modernllm.scripting import main

SCRIPTS = Path(__file__).parents[2] / "scripts"
SIZE = "size=nano model.dim=32 model.n_layers=3 model.hidden=40 model.vocab_size=61"
ATTENTION = "blocks.0.sublayers.attention"
TOKENS = torch.arange(24).view(2, 12) % 61

pytest.importorskip("transformers", reason="the folders are those of the package transformers")
pytestmark = pytest.mark.filterwarnings("ignore")


def fresh(words: str = "") -> Side:
    return load_side(f"arch=llama {SIZE} {words}", seed=0)


@cache
def ours(words: str = "") -> Side:
    """One for all tests that only look at it."""
    return fresh(words)


def found(first: Side, second: Side) -> dict[str, str]:
    return dict(suspects(first, second, TOKENS))


def first_apart(first: Side, second: Side) -> str:
    lines, _ = compare(first, second, 2, 12, 0, 1e-5)
    (line,) = [line for line in lines if line.startswith("first apart: ")]
    return line.removeprefix("first apart: ")


def script(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return getattr(module, name)


def test_equal_models_are_equal() -> None:
    lines, equal = compare(ours(), fresh(), 2, 12, 0, 1e-5)
    assert equal
    assert "first apart: nowhere, within 1e-05" in lines
    assert all(finding.startswith("equal") for finding in found(ours(), ours()).values())


def test_one_changed_weight_is_found_in_its_layer() -> None:
    second = fresh()
    with torch.no_grad():
        second.model.get_parameter("blocks.1.sublayers.feedforward.up.weight")[3, 4] += 0.5
    rows = walk(ours(), second, TOKENS)
    apart = [row.name for row in rows if row.relative > 1e-5]
    assert apart[0] == "blocks.1.sublayers.feedforward.up"
    assert [row.apart for row in rows if row.name == "blocks.0"] == [0.0]
    assert first_apart(ours(), second) == "blocks.1.sublayers.feedforward.up"
    said = found(ours(), second)
    assert said["weights (init)"].startswith("1 of ")
    assert "blocks.1.sublayers.feedforward.up.weight by 5.00e-01" in said["weights (init)"]


@pytest.mark.parametrize(
    ("words", "suspect", "says", "where"),
    [
        ("model.norm.eps=1e-3", "epsilon", "A 1e-06, B 0.001 in blocks.0.joins", "blocks.0.joins.attention.norm"),
        ("model.position.layout=interleaved", "rotary", "1.0, B rope, interleaved", f"{ATTENTION}.attend"),
        ("model.position.base=100.0", "rotary", "10000.0, 1.0, B rope, half, 100.0, 1.0", f"{ATTENTION}.attend"),
        ("init=fanin", "weights (init)", "tensors differ", "embedding"),
        ("head=tied", "head tied", "A no, B yes", "head"),
        ("model.dropout=0.2", "dropout", "A 0, B 0.2", "nowhere, within 1e-05"),
        ("activation=geglu", "parts", "activation swiglu and geglu", "blocks.0.sublayers.feedforward.act"),
    ],
)  # fmt: skip
def test_a_suspect(words: str, suspect: str, says: str, where: str) -> None:
    first, second = ours(), ours(words)
    said = found(first, second)
    assert says in said[suspect]
    assert first_apart(first, second) == where


def test_what_still_draws_in_eval_mode() -> None:
    second = fresh("model.dropout=0.5")

    class Drops(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.dropout(x, 0.5, training=True)

    second.model.get_submodule("blocks.1").sublayers["feedforward"].dropout = Drops()  # type: ignore[union-attr,operator]
    assert found(ours(), second)["training mode"] == "B draws in eval mode: two forwards differ"


def test_dtype() -> None:
    second = fresh()
    second.model.to(torch.bfloat16)
    assert found(ours(), second)["dtype"] == "A float32, B bfloat16"


def test_against_a_folder(tmp_path: Path) -> None:
    """A folder, the run made of it, and overrides given its weights."""
    kind, keys = DESIGNS["llama"]
    with quietly():
        drawn(kind, **keys).save_pretrained(tmp_path / "llama")
    path = import_folder(tmp_path / "llama", [f"out={tmp_path / 'runs'}"])
    theirs, mine = load_side(str(tmp_path / "llama"), 0), load_side(str(path), 0)
    rows = walk(mine, theirs, TOKENS)
    names = [row.name for row in rows]
    for name in (
        "embedding",
        "blocks.1.joins.feedforward.norm",
        "blocks.0.sublayers.attention.q",
        "blocks.1",
        "logits",
    ):
        assert name in names
    assert max(row.relative for row in rows) < 1e-5
    said = found(mine, theirs)
    assert all(finding.startswith("equal") for finding in said.values())
    words = f"arch=llama {SIZE} model.n_layers=2 model.norm.eps=1e-2"
    given = load_side(words, 0).given(theirs)
    assert first_apart(theirs, given) == "blocks.0.joins.attention.norm"
    assert found(theirs, given)["weights (init)"].startswith("equal")
    with pytest.raises(ValueError, match="gives weights to a model of our parts"):
        theirs.given(mine)


def test_the_scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind, keys = DESIGNS["gpt2"]
    with quietly():
        drawn(kind, **keys).save_pretrained(tmp_path / "gpt2")
    folder = str(tmp_path / "gpt2")
    assert main(script("import_hf"), [folder, f"out={tmp_path / 'runs'}"]) == 0
    path = capsys.readouterr().out.strip()
    assert Path(path, "run.json").exists()
    assert main(script("export_hf"), [path, f"to={tmp_path / 'back'}"]) == 0
    assert "GPT2LMHeadModel, logits equal" in capsys.readouterr().out
    assert main(script("inspect_model"), [folder, "arch=llama"]) == 0
    assert "placement" in capsys.readouterr().out
    assert main(script("diff_layers"), [path, str(tmp_path / "back")]) == 0
    assert main(script("diff_layers"), [path, f"arch=gpt2 {SIZE} model.n_layers=2"]) == 3
    assert "<- first" in capsys.readouterr().out
    assert main(script("diff_layers"), [path]) == 2
    assert main(script("diff_layers"), [path, str(tmp_path)]) == 1
    assert "neither a run folder" in capsys.readouterr().err
    assert main(script("diff_layers"), [path, "nowhere"]) == 1


@pytest.mark.parametrize("name", ["export_hf", "import_hf", "inspect_model", "diff_layers"])
def test_help_needs_no_package(name: str) -> None:
    words = [sys.executable, str(SCRIPTS / f"{name}.py"), "--help"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Hugging Face" in done.stdout


def test_without_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(ValueError, match="needs the package transformers: pip install transformers"):
        load_side(str(tmp_path), 0)
