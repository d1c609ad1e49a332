"""A run as a Hugging Face folder, and a folder as a run."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from hf_models import BESIDE, DESIGNS, drawn
from models import close
from running import run

from modernllm.batch import Batch
from modernllm.data.tokenizers.bpe import PATTERN
from modernllm.data.tokenizers.byte import ByteTokenizer
from modernllm.data.tokenizers.ranks import RankTokenizer
from modernllm.generate import generate
from modernllm.interop.exporting import export
from modernllm.interop.huggingface import quietly, transformers
from modernllm.interop.importing import import_folder
from modernllm.interop.tokenizer import save_tokenizer
from modernllm.model import Decoder
from modernllm.runs.record import load_run

pytest.importorskip("transformers", reason="folders are those of the package transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

TEXT = "Zwölf  laxe Typen qualmen\n\tverdächtig süß: 1234, x_1 = f(x)!  \n"


@cache
def trained(out: Path, *words: str) -> Path:
    return run("trainer.steps=3", f"out={out}", *words)[1].path


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def logits_of(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(Batch(tokens)) if isinstance(model, Decoder) else model(tokens).logits


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (["arch=gpt2"], "gpt2"),
        ([], "llama"),  # interleaved pairs, which are put in another order
        (["arch=deepseek", "model.dropout=0.1"], "deepseek_v3"),
        (["arch=qwen3", "model.position.layout=interleaved", "model.position.base=100.0"], "qwen3"),
        (["arch=gemma2", "model.attention.softcap=5.0", "model.layers.other.softcap=5.0"], "gemma2"),
    ],
)
def test_a_run_is_loaded_by_their_auto_class(words: list[str], kind: str, out: Path, tmp_path: Path) -> None:
    path = trained(out, *words)
    lines = export(path, tmp_path / "hf")
    assert "logits equal to" in lines[0]
    assert lines[1] == "tokenizer: byte"
    assert json.loads((tmp_path / "hf" / "config.json").read_text())["model_type"] == kind
    assert list((tmp_path / "hf").glob("*.safetensors"))
    library = transformers()
    theirs = library.AutoModelForCausalLM.from_pretrained(tmp_path / "hf", local_files_only=True).eval()
    tokens = torch.randint(259, (2, 21), generator=torch.Generator().manual_seed(1))
    model = load_run(path).model()
    close(logits_of(theirs, tokens), logits_of(model, tokens), 1e-5)
    tokenizer = library.AutoTokenizer.from_pretrained(tmp_path / "hf", local_files_only=True)
    assert tokenizer(TEXT)["input_ids"] == ByteTokenizer().encode_batch([TEXT])[0].tolist()
    assert tokenizer.decode(tokenizer(TEXT)["input_ids"]) == TEXT
    assert theirs.config.eos_token_id == tokenizer.eos_token_id == 256
    longer = theirs.generate(tokens[:, :4], max_new_tokens=6, do_sample=False, eos_token_id=None)
    assert longer.tolist() == generate(model, tokens[:, :4], 6, temperature=0.0).tolist()


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["norm=dyt"], "norm=dyt, theirs is rmsnorm"),
        (["placement=post", "attention=gqa"], "placement=post, theirs is pre"),
        (["attention=linear"], "attention=linear, theirs is gqa"),
        (["arch=gpt2", "branch=layerscale"], "branch=layerscale, theirs is none"),
        (["arch=mixtral", "model.moe.score=sigmoid"], r"model\.moe\.score=sigmoid, theirs is softmax"),
        (["arch=gemma2", "attention=mha"], r"model\.n_kv_heads=2 and 4"),
        (["model.attention.sinks=zero"], r"model\.attention\.sinks=zero, theirs is none"),
    ],
)
def test_what_no_class_of_theirs_has_is_named(words: list[str], named: str, out: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"comes nearest, but for .*{named}"):
        export(trained(out, *words), tmp_path / "hf")
    assert not (tmp_path / "hf").exists()


def test_nothing_is_written_over(out: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("kept")
    with pytest.raises(ValueError, match="holds something already"):
        export(trained(out, "arch=gpt2"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


@pytest.mark.parametrize("design", ["mixtral", "deepseek", "gemma2", "falcon of 2023"])
def test_a_folder_becomes_a_run_and_goes_back(design: str, tmp_path: Path) -> None:
    """Also through the names that their saved experts have, which are not those in memory."""
    kind, keys = (DESIGNS | BESIDE)[design]
    theirs = drawn(kind, **({"num_key_value_heads": 4} | keys))
    with quietly():
        theirs.save_pretrained(tmp_path / "given")
    save_tokenizer(ByteTokenizer(), tmp_path / "given")
    path = import_folder(tmp_path / "given", [f"out={tmp_path / 'runs'}", "study=others", "model.dropout=0.1"])
    assert path.parent == tmp_path / "runs" / "others"
    done = load_run(path)
    assert done.config["model"]["dropout"] == 0.1
    assert done.identity["imported"]["model_type"] == kind
    assert done.status["status"] == "finished"
    assert done.word == "undecided"
    tokens = torch.randint(61, (2, 13), generator=torch.Generator().manual_seed(1))
    close(logits_of(done.model(), tokens), logits_of(theirs, tokens), 1e-5)
    assert import_folder(tmp_path / "given", [f"out={tmp_path / 'runs'}", "study=others", "model.dropout=0.1"]) == path
    lines = export(path, tmp_path / "back")
    assert lines[1] == "tokenizer: the tokenizer that came with it"
    library = transformers()
    again = library.AutoModelForCausalLM.from_pretrained(tmp_path / "back", local_files_only=True).eval()
    close(logits_of(again, tokens), logits_of(theirs, tokens), 1e-5)
    given, back = ((tmp_path / name / "tokenizer.json").read_bytes() for name in ("given", "back"))
    assert given == back


def test_a_folder_that_ours_cannot_be(tmp_path: Path) -> None:
    with quietly():
        drawn("qwen2", **DESIGNS["llama"][1]).save_pretrained(tmp_path / "given")
    with pytest.raises(ValueError, match="qwen2 is not among our designs here: biases in q, k and v alone"):
        import_folder(tmp_path / "given", [f"out={tmp_path / 'runs'}"])
    assert not (tmp_path / "runs").exists()


def test_ranks_as_their_merges(tmp_path: Path) -> None:
    """A learned vocabulary gives the same ids, within pieces and across them."""
    import tiktoken

    from modernllm.data.tokenizers.bpe import pieces_of, train

    words = (TEXT, "the theme of these themes is the sea, the sea; she sells sea shells " * 3)
    pieces = pieces_of(train(words, 320))
    specials = {"<|endoftext|>": len(pieces), "<|pad|>": len(pieces) + 1, "<|mask|>": len(pieces) + 2}
    encoding = tiktoken.Encoding(
        "tiny", pat_str=PATTERN, mergeable_ranks={piece: i for i, piece in enumerate(pieces)}, special_tokens=specials
    )
    ours = RankTokenizer(encoding, *specials.values())
    save_tokenizer(ours, tmp_path)
    theirs = transformers().AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)
    assert len(theirs) == ours.vocab_size
    for text in (*words, TEXT * 2, "shesells\r\n\r\n  12345 ünï", ""):
        ids = theirs(text)["input_ids"]
        assert ids == ours.encode_batch([text])[0].tolist()
        assert theirs.decode(ids) == text
    assert theirs.eos_token_id == len(pieces)
