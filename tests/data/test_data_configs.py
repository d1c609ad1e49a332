"""Each choice of `data` and `tokenizer`: its file names a class and every argument of it, and composes."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
from hydra.utils import get_class, instantiate
from omegaconf import OmegaConf

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted([*CONFIGS.glob("data/*.yaml"), *CONFIGS.glob("tokenizer/*.yaml")])


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}={path.stem}")
def test_a_choice_is_complete(path: Path) -> None:
    header, description, *_ = path.read_text(encoding="utf-8").splitlines()
    assert header == f"# @package {path.parent.name}"
    assert description.startswith("# ")
    node = OmegaConf.load(path)
    assert isinstance(node, type(OmegaConf.create({})))
    arguments = inspect.signature(get_class(node["_target_"])).parameters
    assert list(node) == ["_target_", *arguments]
    if path.stem == "files":
        node["path"] = "some.txt"
    made = instantiate(node, _convert_="all")
    assert hasattr(made, "documents") or hasattr(made, "fit")


def test_all_are_here() -> None:
    assert {f"{path.parent.name}={path.stem}" for path in FILES} >= {
        *("data=stdlib", "data=synthetic", "data=files", "data=tinystories", "data=wikitext103"),
        *("data=fineweb_edu", "tokenizer=byte", "tokenizer=bpe", "tokenizer=gpt2", "tokenizer=cl100k_base"),
        "tokenizer=o200k_base",
    }
