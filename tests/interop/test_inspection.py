"""Configurations that transformers itself writes, in our words; and one that nobody knows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hf_models import settings

from modernllm.config.compose import compose
from modernllm.interop.design import designs
from modernllm.interop.facts import counted, design_of, differences, facts_of
from modernllm.interop.huggingface import quietly, read_config, words_of
from modernllm.interop.inspection import inspect

pytest.importorskip("transformers", reason="the configurations are those of the package transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

LLAMA3 = {"rope_parameters": {"rope_type": "default", "rope_theta": 500000.0}, "num_key_value_heads": 8}
KNOWN: dict[str, tuple[str, dict[str, Any], str]] = {
    "gpt2": ("gpt2", {}, "arch=gpt2"),
    "gpt-neox": ("gpt_neox", {}, "arch=neox"),
    "llama 2": ("llama", {}, "arch=llama"),
    "llama 3": ("llama", LLAMA3, "arch=llama attention=gqa model.position.base=500000.0"),
    "mistral": ("mistral", {}, "arch=mistral model.attention.size=4096"),
    "mixtral": ("mixtral", {}, "arch=mixtral model.norm.eps=1e-05"),
    "qwen3": ("qwen3", {}, "arch=qwen3 attention=mha model.position.base=10000.0"),
    "gemma": (
        "gemma",
        {},
        "arch=llama activation=geglu embedding=scaled head=tied model.activation.act.approximate=tanh",
    ),
    "gemma 2": ("gemma2", {"query_pre_attn_scalar": 256}, "arch=gemma2 model.layers.other.size=4096"),
    "olmo": ("olmo", {}, "arch=llama norm=nonparametric"),
    "olmo2": ("olmo2", {}, "arch=olmo2 model.norm.eps=1e-05 model.position.base=10000.0"),
    "deepseek-v3": ("deepseek_v3", {}, "arch=deepseek model.moe.scale=2.5"),
    "phi-3": ("phi3", {}, "arch=llama model.norm.eps=1e-05"),
    "stablelm": ("stablelm", {}, "arch=llama norm=layernorm model.position.fraction=0.25"),
    "falcon": (
        "falcon",
        {},
        "arch=neox attention=gqa block=parallel head=tied model.position.fraction=1.0 model.bias=false",
    ),
}
"""Model type, keys beside its defaults, and the overrides that are more than a size."""


def written(folder: Path, kind: str, keys: dict[str, Any]) -> Path:
    with quietly():
        settings(kind, **keys).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("name", KNOWN)
def test_a_known_design(name: str, tmp_path: Path) -> None:
    kind, keys, expected = KNOWN[name]
    config = read_config(written(tmp_path, kind, keys))
    lines = inspect(config)
    assert lines[0] == f"{kind}: {expected}"
    assert f"the overrides that rebuild it: {expected}" in lines
    assert not any("not in our words" in line for line in lines)
    (size,) = [line.removeprefix("at its size: ") for line in lines if line.startswith("at its size: ")]
    found = facts_of(compose([*expected.split(), *size.split()])["model"])
    wanted, _ = designs()[kind].read(config)
    assert differences(design_of(counted(found)), design_of(wanted)) == {}
    assert found["model.dim"] == wanted["model.dim"]


def test_every_design_of_a_table_is_tested() -> None:
    assert {kind for kind, _, _ in KNOWN.values()} == designs().keys() - {"qwen2"}


def test_components_in_words(tmp_path: Path) -> None:
    lines = inspect(read_config(written(tmp_path, "gemma2", {"query_pre_attn_scalar": 256})), "llama")
    start = lines.index("against arch=llama:")
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[:start] if line.startswith("  ")}
    assert rows["norm"] == "rmsnorm eps 1e-06"
    assert rows["layers.other"].startswith("window size 4096, softcap 50.0")
    assert rows["position"] == "rope base 10000.0, fraction 1.0, layout half"
    assert "head_dim 256" in rows["model"]
    assert "n_kv_heads 4" in rows["model"]
    apart = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[start + 1 :] if line.startswith("  ")}
    assert apart["placement"] == "sandwich, there pre"
    assert apart["head"] == "tied_softcapped, there untied"
    assert apart["activation"] == "geglu, there swiglu"
    assert apart["model.attention.softcap"] == "50.0, there null"
    assert "norm" not in apart


def test_the_same_design_differs_in_nothing(tmp_path: Path) -> None:
    lines = inspect(read_config(written(tmp_path, "llama", {})), "llama")
    assert "against arch=llama: nothing differs but the size" in lines


@pytest.mark.parametrize(
    ("kind", "keys", "told"),
    [
        ("qwen2", {}, "biases in q, k and v alone"),
        ("llama", {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                   "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}}, "rope_type=llama3"),
        ("gemma2", {"query_pre_attn_scalar": 144}, "query_pre_attn_scalar=144"),
        ("falcon", {"alibi": True}, "alibi=True"),
        ("stablelm", {"qk_layernorm": True}, "qk_layernorm=True"),
        ("olmo", {"clip_qkv": 8.0}, "clip_qkv=8.0"),
        ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx=True"),
        ("llama", {"hidden_act": "mish"}, "hidden_act=mish"),
        ("deepseek_v3", {"topk_group": 2}, "theirs weighs a group by its 2 best experts"),
    ],
)  # fmt: skip
def test_what_ours_cannot_be_is_named(kind: str, keys: dict[str, Any], told: str, tmp_path: Path) -> None:
    config = read_config(written(tmp_path, kind, keys))
    lines = inspect(config)
    assert lines[0].startswith(f"{kind}: not quite arch=")
    assert any(line.startswith("  ") and told in line for line in lines)
    with pytest.raises(ValueError, match="is not among our designs"):
        words_of(config)


def test_an_unknown_design_says_what_could_be_read(tmp_path: Path) -> None:
    said = {"model_type": "brontosaurus", "d_model": 96, "n_layers": 7, "rms_norm_eps": 1e-6, "teeth": 12}
    (tmp_path / "config.json").write_text(json.dumps(said))
    lines = inspect(read_config(tmp_path / "config.json"))
    assert lines[0].startswith("model_type=brontosaurus: unknown here; known are deepseek_v3, falcon")
    assert "  model.dim                96  (d_model)" in lines
    assert "  model.n_layers           7  (n_layers)" in lines
    assert any("rmsnorm" in line for line in lines)
    assert not any("model.n_heads" in line for line in lines)


def test_what_is_no_configuration(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"no config\.json"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ValueError, match=r"config\.json is damaged"):
        read_config(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(ValueError, match="arch=lama: there is none; did you mean llama"):
        inspect(read_config(tmp_path), "lama")
