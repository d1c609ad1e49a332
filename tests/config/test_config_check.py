"""The check of a composed configuration: keys, types, ranges, references; everything shipped passes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Union

import pytest
import yaml
from annotated_types import Ge, Gt, Le, Lt, MaxLen, MinLen
from cpu_time import cpu_seconds
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import DictConfig, OmegaConf, open_dict

from modernllm.config.build import resolve
from modernllm.config.check import check
from modernllm.config.compose import CONFIG_DIR, compose, default_choices
from modernllm.config.errors import ConfigError
from modernllm.config.settings import is_folder_name
from modernllm.config.tree import read_tree, sections
from modernllm.config.values import describe, problem, shown
from modernllm.quantities import Count, Natural, Positive, Probability, Share

DEFAULT = compose([])


def problems(cfg: DictConfig) -> list[str]:
    try:
        check(cfg)
    except ConfigError as error:
        return str(error).splitlines()
    return []


def changed(*overrides: str) -> DictConfig:
    """The default configuration with keys set as the command line would, without composing again."""
    cfg = OmegaConf.create(OmegaConf.to_container(DEFAULT))
    return OmegaConf.merge(cfg, OmegaConf.from_dotlist(list(overrides)))  # type: ignore[return-value]


OTHER_CHOICES = [
    (group, choice)
    for group, choices in read_tree([CONFIG_DIR]).items()
    for choice in choices
    if choice != default_choices().get(group)
]
NEEDED = {
    ("data", "files"): ["data.path=x.txt"],
    ("attention", "gqa"): ["model.n_kv_heads=2"],
    ("family", "external"): ["model.module._target_=torch.nn.Identity"],
    ("sweep", "list"): ["sweep.file=runs.txt"],
}


def test_the_defaults_check():
    check(DEFAULT)


@pytest.mark.parametrize(("group", "choice"), OTHER_CHOICES)
def test_every_other_choice_composes_and_checks(group: str, choice: str):
    plus = "" if group in default_choices() else "+"
    check(compose([f"{plus}{group}={choice}", *NEEDED.get((group, choice), [])]))


FOLDER = "should be the name of one folder (letters, digits, _ . + = -, no dot first)"
SEED = "should be a whole number >= 0, or null"
MADE = "is made by the program or chosen by a group, it has no value of its own"
MARKS = "is not allowed; only _target_, and _partial_ beside it"
VALUES = {
    "seed=abc": f"seed=abc: {SEED}",
    "seed=-1": f"seed=-1: {SEED}",
    "seed='01'": f"seed=01: {SEED}; 01 is text, write 1",
    "seed='0x10'": f"seed=0x10: {SEED}; 0x10 is text, write 16",
    "seed=none": f"seed=none: {SEED}; write null",
    "seed=[1,2]": f"seed=[1, 2]: {SEED}; several runs are -m seed=1,2",
    "seed=true": f"seed=true: {SEED}",
    "study=''": f"study=: {FOLDER}; nothing stands after =",
    "study=a/b": f"study=a/b: {FOLDER}",
    "study=.hidden": f"study=.hidden: {FOLDER}",
    "study=..": f"study=..: {FOLDER}",
    "study=5": f"study=5: {FOLDER}; as text: \"study='5'\"",
    "study=null": f"study=null: {FOLDER}",
    "out=''": "out=: should be text, not empty; nothing stands after =",
    "cache=3": "cache=3: should be text, not empty, or null; as text: \"cache='3'\"",
    "overwrite='yes'": "overwrite=yes: should be true or false; write true",
    "overwrite=1": "overwrite=1: should be true or false",
    "allow_targets=x": "allow_targets=x: should be a list, each text",
    "trainer.steps=1.5": "trainer.steps=1.5: should be a whole number >= 1",
    "trainer.steps=0": "trainer.steps=0: should be a whole number >= 1",
    "trainer.steps=1e3": "trainer.steps=1000.0: should be a whole number >= 1; write 1000",
    "trainer.precision=fp8": "trainer.precision=fp8: should be one of fp32, bf16, fp16",
    "trainer.precision=bf1": "trainer.precision=bf1: should be one of fp32, bf16, fp16; did you mean bf16?",
    "trainer.clip=0": "trainer.clip=0: should be a number > 0; write inf",
    "trainer.clip='off'": "trainer.clip=off: should be a number > 0; write inf",
    "trainer.clip=null": "trainer.clip=null: should be a number > 0; write inf",
    "trainer.eval_every=false": "trainer.eval_every=false: should be a whole number >= 1, or null; write null",
    "schedule.warmup=none": "schedule.warmup=none: should be a whole number >= 0 or a number >= 0 and < 1; write 0",
    "optimizer.lr=-1": "optimizer.lr=-1: should be a finite number > 0",
    "optimizer.lr=''": "optimizer.lr=: should be a finite number > 0; nothing stands after =",
    "optimizer.lr=.inf": "optimizer.lr=inf: should be a finite number > 0",
    "optimizer.lr=.nan": "optimizer.lr=nan: should be a finite number > 0",
    "optimizer.lr='1e-3'": "optimizer.lr=1e-3: should be a finite number > 0; 1e-3 is text, write 0.001",
    "optimizer.betas=[0.9,1]": "optimizer.betas=[0.9, 1]: should be a list, each a number >= 0 and < 1",
    "model.bias=1": "model.bias=1: should be true or false",
    "model.bias='off'": "model.bias=off: should be true or false; write false",
    "model.dropout=1.0": "model.dropout=1.0: should be a number >= 0 and < 1",
    "model.n_heads=null": "model.n_heads=null: should be a whole number >= 1",
    "model.head_dim=-2": "model.head_dim=-2: should be a whole number >= 1, or null",
    "model.norm=3": f"model.norm=3: {MADE}",
    "model.norm=null": f"model.norm=null: {MADE}",
    "model.norm.eps=0": "model.norm.eps=0: should be a finite number > 0",
    "schedule.warmup=1.5": "schedule.warmup=1.5: should be a whole number >= 0 or a number >= 0 and < 1",
    "trainer=3": "trainer=3: should be chosen by a group, trainer has no _target_",
    "typo=1": "typo: nothing reads this key",
    "modle.dim=1": "modle: nothing reads this key; did you mean model or moe?",
    "sed=1": "sed: nothing reads this key; did you mean seed?",
    "optimizer.lrr=1": "optimizer.lrr=1: AdamW has no lrr; did you mean optimizer.lr?",
    "model.norm.epps=1": "model.norm.epps=1: RMSNorm has no epps; did you mean model.norm.eps?",
    "model.branch.args=1": (
        "model.branch.args=1: Identity has no args; it takes nothing. Is it of another branch=...? "
        "(a choice is switched by its group, not by _target_)"
    ),
    "init._args_=[1]": f"init._args_: {MARKS}",
    "model._recursive_=false": f"model._recursive_: {MARKS}",
    "model.norm._convert_=all": f"model.norm._convert_: {MARKS}",
    "model._partial_='yes'": "model._partial_=yes: should be true or false",
    "model.norm._target_=3": "model.norm._target_=3: should be the dotted name of a class",
    "seed=${sed}": "seed=${sed}: Interpolation key 'sed' not found",
    "optimizer.lr=${optimizer.lrr}": ("optimizer.lr=${optimizer.lrr}: Interpolation key 'optimizer.lrr' not found"),
    "seed=${oc.env:NOT_SET_ANYWHERE}": (
        "seed=${oc.env:NOT_SET_ANYWHERE}: KeyError raised while resolving interpolation: "
        "\"Environment variable 'NOT_SET_ANYWHERE' not found\""
    ),
}


@pytest.mark.parametrize("override", VALUES)
def test_value(override: str):
    assert problems(changed(override)) == [VALUES[override]]


@pytest.mark.parametrize(
    "override",
    [
        *("seed=null", "seed=1_000", "trainer.clip=.inf", "optimizer.lr=1", "optimizer.lr=1e-3", "cache=x"),
        *("optimizer.betas=[0,0.5]", "study=a.b+c=1-2", "trainer.threads=null", "model.n_kv_heads=4"),
        *("seed=${trainer.steps}", "model.norm.eps=${optimizer.eps}", "model.vocab_size=null"),
    ],
)
def test_good_value(override: str):
    assert problems(changed(override)) == []


def test_all_problems_are_told_together_and_one_a_line():
    wrong = ["seed=abc", "trainer.steps=1.5", "optimizer.lrr=1", "typo=1", "init._target_=os.system"]
    keys = [line.partition("=")[0].partition(":")[0] for line in problems(changed(*wrong))]
    assert sorted(keys) == ["init._target_", "optimizer.lrr", "seed", "trainer.steps", "typo"]


def test_mandatory_value():
    cfg = changed()
    cfg.optimizer.lr = "???"
    assert problems(cfg) == ["optimizer.lr: is not set; optimizer.lr=... sets it"]
    assert problems(compose(["data=files"])) == ["data.path: is not set; data.path=... sets it"]


def test_missing_root_key_and_section():
    cfg = changed()
    with open_dict(cfg):
        del cfg["seed"], cfg["optimizer"]
    assert problems(cfg) == ["seed: is missing", "optimizer: is missing"]


def test_required_key_of_a_whole_object():
    cfg = changed()
    with open_dict(cfg):
        cfg.init = {"_target_": "modernllm.schedule.Cosine"}
        cfg.schedule = {"_target_": "modernllm.schedule.Cosine", "_partial_": True}
    assert problems(cfg) == ["init.steps: is missing, Cosine needs it"]


def test_sections_are_the_groups_of_train_yaml():
    keys = {"seed", "study", "out", "cache", "overwrite", "plan", "retry", "resume", "allow_targets"}
    assert set(sections()) == set(DEFAULT) - keys


def test_check_takes_what_is_saved(tmp_path: Path):
    """A run's config.yaml, read back, is as good as the composition."""
    saved = resolve(compose(["size=nano"]))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(saved))
    check(yaml.safe_load((tmp_path / "config.yaml").read_text()))


def test_check_changes_nothing():
    cfg = compose(["norm=none"])
    before = OmegaConf.to_yaml(cfg)
    check(cfg)
    assert OmegaConf.to_yaml(cfg) == before


# files of a user's own


def experiment(tmp_path: Path, text: str) -> list[str]:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "x.yaml").write_text(f"# @package _global_\n{text}")
    return problems(compose(["+experiment=x"], [tmp_path]))


def test_unknown_keys_of_a_users_file(tmp_path: Path):
    text = "modle: {dim: 3}\noptimizer: {lrr: 1e-3, betas: [0.9, 2]}\nmodel: {norm: {epsilon: 1e-5}}\n"
    assert set(experiment(tmp_path, text)) == {
        "modle: nothing reads this key; did you mean model or moe?",
        "optimizer.lrr=0.001: AdamW has no lrr; did you mean optimizer.lr?",
        "optimizer.betas=[0.9, 2]: should be a list, each a number >= 0 and < 1",
        "model.norm.epsilon=1e-05: RMSNorm has no epsilon; did you mean model.norm.eps?",
    }


def test_keys_that_survive_a_switch_by_target(tmp_path: Path):
    text = "model:\n  position:\n    _target_: modernllm.position.learned.Learned\n"
    assert experiment(tmp_path, text) == [
        f"model.position.{key}={value}: Learned has no {key}; it takes dim, n_heads, head_dim, context_length. "
        "Is it of another position=...? (a choice is switched by its group, not by _target_)"
        for key, value in {"base": "10000.0", "fraction": "1.0", "layout": "interleaved"}.items()
    ]


def test_a_switch_by_group_is_clean(tmp_path: Path):
    assert experiment(tmp_path, "defaults:\n  - override /position: learned\n") == []


def test_component_inside_lists_and_plain_mappings(tmp_path: Path):
    text = "model: {activation: {extra: [{a: {_target_: torch.nn.GELU, approx: 1}}]}}\n"
    first, second = experiment(tmp_path, text)
    assert first.startswith("model.activation.extra=[{a: {_target_: torch.nn.GELU, approx: 1}}]: GatedFeedForward has")
    place = "model.activation.extra.0.a"
    assert second == f"{place}.approx=1: GELU has no approx; did you mean {place}.approximate?"


# annotations in words

HINTS: list[tuple[Any, str, list[Any], list[Any]]] = [
    (Count, "a whole number >= 1", [1, 10**30], [0, 1.0, True, "1", None]),
    (Natural, "a whole number >= 0", [0], [-1, False]),
    (Positive, "a finite number > 0", [1, 1e-30], [0, float("inf"), float("nan"), True]),
    (Share, "a number >= 0 and <= 1", [0, 1, 0.5], [1.01]),
    (Probability, "a number >= 0 and < 1", [0], [1]),
    (Union[Count, None], "a whole number >= 1, or null", [None, 1], [0]),  # noqa: UP007
    (bool, "true or false", [True], [1, "true"]),
    (str, "text", ["", "x"], [1, None]),
    (Literal["a", "b"], "one of a, b", ["a"], ["c", 1]),
    (Literal["auto"] | Count, "auto or a whole number >= 1", ["auto", 3], ["x", 0]),
    (list[int], "a list, each a whole number", [[], [1]], [[1.5], 1]),
    (tuple[float, float], "a list of 2, each a number", [[0.9, 1]], [[0.9], [1, 2, 3]]),
    (dict[str, float], "a mapping", [{"a": 1}], [{"a": "x"}, [1]]),
    (
        Annotated[list[str], MinLen(2), MaxLen(3)],
        "a list, each text, at least 2 long, at most 3 long",
        [["a"] * 2],
        [[]],
    ),
    (Annotated[int, Gt(2), Le(4)], "a whole number > 2 and <= 4", [3, 4], [2, 5]),
    (Annotated[float, Ge(0), Lt(2)], "a number >= 0 and < 2", [1.5], [2]),
]


@pytest.mark.parametrize(("hint", "words", "good", "bad"), HINTS, ids=[words for _, words, _, _ in HINTS])
def test_annotation(hint: Any, words: str, good: list[Any], bad: list[Any]):
    assert describe(hint) == words
    for value in good:
        assert problem("k", value, hint) is None
    for value in bad:
        assert str(problem("k", value, hint)).startswith(f"k={shown(value)}: should be {words}")


@given(st.integers() | st.floats(allow_nan=False) | st.booleans() | st.none() | st.text(max_size=5))
def test_count_takes_whole_numbers_from_one_and_nothing_else(value: Any):
    good = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    assert (problem("k", value, Count) is None) == good


@given(st.text(max_size=12))
def test_a_study_is_always_one_folder(text: str):
    if is_folder_name(text):
        assert Path(text).name == text
        assert text not in (".", "..", "")
        assert not text.startswith((".", "-"))


def test_fast():
    """The first check imports; the second is what a sweep pays for every job."""
    check(DEFAULT)
    assert cpu_seconds(lambda: check(compose(["norm=layernorm"]))) < 1.0  # 0.15 s on an idle core
