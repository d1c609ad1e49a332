"""Composition: what is refused and with which words, and the jobs of a sweep."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from modernllm.config.command import expand, read_command
from modernllm.config.compose import (
    CONFIG_DIR,
    choices,
    compose,
    compose_with_choices,
    default_choices,
)
from modernllm.config.errors import ConfigError
from modernllm.config.nearest import nearest
from modernllm.config.overrides import dotted, with_full_key
from modernllm.config.tree import read_tree


def refused(overrides: list[str], config_dirs: list[Path] | tuple[()] = ()) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(overrides, config_dirs)
    assert caught.value.__cause__ is None
    return str(caught.value)


TYPOS = {
    "lrr=3": "lrr=3: no key lrr; did you mean optimizer.lr?",
    "lr=3": "lr=3: no key lr; did you mean optimizer.lr?",
    "optimizer.lrr=3": "optimizer.lrr=3: no key optimizer.lrr; did you mean optimizer.lr?",
    "optimizer={lrr: 1}": "optimizer={lrr: 1}: no key optimizer.lrr; did you mean optimizer.lr?",
    "modle.dim=3": "modle.dim=3: no key modle; did you mean model.dim?",
    "++modle.n_head=2": "++modle.n_head=2: no key modle; did you mean model.n_heads or model.head?",
    "+typo=1": "+typo=1: no key typo; python train.py --cfg job shows every key",
    "+sed=3": "+sed=3: no key sed; did you mean seed?",
    "n_layers=3": "n_layers=3: no key n_layers; did you mean model.n_layers?",
    "nrom=rmsnorm": "nrom=rmsnorm: no key nrom; did you mean norm?",
    "norm.epps=1": "model.norm.epps=1: no key model.norm.epps; did you mean model.norm.eps?",
    "attention.softcapp=30": (
        "model.attention.softcapp=30: no key model.attention.softcapp; did you mean model.attention.softcap?"
    ),
    "branch.gain=1": "model.branch.gain=1: no key model.branch.gain; model.branch has no keys",
    "~attention.softcap": "~model.attention.softcap: a key is not removed but set: model.attention.softcap=...",
    "seed.x=3": "seed.x=3: no key seed.x; seed has no keys",
    "optimizer.betas.2=0": "optimizer.betas.2=0: no key optimizer.betas.2; optimizer.betas has 0, 1",
    "model.norm=layernorm": "model.norm=layernorm: a component is chosen by its group; write norm=layernorm",
    "model/norm=layernrom": "model/norm=layernrom: a component is chosen by its group; write norm=layernorm",
    "model.placement=post": "model.placement=post: a component is chosen by its group; write placement=post",
    "+norm=layernorm": "+norm=layernorm: norm has a choice already; write norm=layernorm",
    "++norm=layernorm": "++norm=layernorm: norm has a choice already; write norm=layernorm",
    "norm@x=layernorm": "norm@x=layernorm: norm cannot be placed at x; write norm=layernorm",
    "norm=[none,rmsnorm]": "norm=[none,rmsnorm]: norm takes one choice; -m norm=none,rmsnorm runs each",
    "norm=null": "norm=null: a group always has a choice; norm=none is its absence",
    "~norm": "~norm: a group always has a choice; norm=none is its absence",
    "~norm=rmsnorm": "~norm=rmsnorm: a group always has a choice; norm=none is its absence",
    "~head": "~head: a group always has a choice; choose one of softcapped, tied, tied_softcapped, untied, zero",
    "~optimizer.lr": "~optimizer.lr: a key is not removed but set: optimizer.lr=...",
    "=3": "=3: no key stands before =",
    "lr": "lr: an override is key=value, as lr=...",
    "layernorm": "layernorm: an override is key=value, as norm=layernorm",
    "--seed": "--seed: options stand before the overrides; python train.py --help lists them",
    "optimizer.betas[0]=3": (
        "optimizer.betas[0]=3: a key is names joined by dots, as optimizer.lr or optimizer.betas.0"
    ),
    "study=a(b": (
        "study=a(b: the value cannot be read; text with one of ( ) [ ] { } , # or a quote in it is quoted "
        "twice: \"study='a(b'\""
    ),
    "study=a(b)": (
        "study=a(b): Unknown function 'a'; text with one of ( ) [ ] { } , # or a quote in it is quoted "
        "twice: \"study='a(b)'\""
    ),
    "seed=0,1": (
        "seed=0,1: several values for seed are several runs: put -m in front of the overrides; one list is "
        "seed=[0,1], one text \"seed='0,1'\""
    ),
    "seed=range(3)": ("seed=range(3): several values for seed are several runs: put -m in front of the overrides"),
}


@pytest.fixture(scope="module")
def told() -> list[str]:
    """The problems of all typos at once (one composition); those that cannot even be read come alone."""
    unreadable = [o for o in TYPOS if o in ("lr", "layernorm", "--seed") or "[0]" in o or "(b" in o]
    return [
        *refused(unreadable).splitlines(),
        *refused([override for override in TYPOS if override not in unreadable]).splitlines(),
    ]


@pytest.mark.parametrize("override", TYPOS)
def test_typo(override: str, told: list[str]):
    assert TYPOS[override] in told


def test_nothing_else_is_told(told: list[str]):
    assert sorted(told) == sorted(TYPOS.values())


@pytest.mark.parametrize("override", ["lrr=3", "+typo=1", "optimizer={lrr: 1}", "~norm", "seed=0,1"])
def test_typo_alone(override: str):
    assert refused([override]) == TYPOS[override]


def test_unknown_choice_lists_all_with_their_lines():
    first, *table = refused(["norm=rmsnrom"]).splitlines()
    assert first == "norm=rmsnrom: norm has no choice rmsnrom; did you mean rmsnorm?"
    names = [line.split()[0] for line in table]
    assert names == sorted(path.stem for path in (CONFIG_DIR / "norm").glob("*.yaml"))
    assert ["layernorm", "(x - mean) / std, with a gain and a bias"] in [line.split(maxsplit=1) for line in table]


def test_all_problems_are_told_together():
    told = refused(["lrr=3", "seed=0,1", "~norm", "head=x", "model.norm.epps=1"])
    for part in (
        "no key lrr",
        "seed=0,1: several",
        "~norm: a group",
        "head has no choice x",
        "model.norm.eps?",
    ):
        assert part in told


def test_quoting_suggested_is_quoting_that_works():
    assert compose(["study='a(b'"]).study == "a(b"


def test_hydras_own_settings_pass_and_its_errors_are_config_errors():
    assert compose(["hydra.job.chdir=true", "+hydra.anything=1", "hydra/launcher=basic"]).seed == 0
    assert "'foo' not in 'HydraConf'" in refused(["hydra.foo=3"])
    assert "Could not find 'hydra/launcher/nope'" in refused(["hydra/launcher=nope"])
    assert refused(["hydra.searchpath=3"]).startswith("hydra.searchpath=3: should be a list of folders")


def test_compose_leaves_no_hydra_node_and_later_overrides_win():
    cfg = compose(["optimizer.lr=1", "optimizer.lr=2e-3", "norm=none", "norm=layernorm"])
    assert "hydra" not in cfg
    assert cfg.optimizer.lr == 2e-3
    assert cfg.model.norm._target_ == "modernllm.norm.layernorm.LayerNorm"


def test_added_key_of_a_component_is_left_to_check():
    assert compose(["+optimizer.whatever=1"]).optimizer.whatever == 1


def test_choices_are_those_composed():
    defaults = default_choices()
    assert defaults["norm"] == "rmsnorm"
    assert choices([]) == defaults
    assert next(iter(defaults)) == "norm"
    changed = {group: c for group, c in choices(["placement=post", "norm=none"]).items() if c != defaults[group]}
    assert changed == {"placement": "post", "norm": "none", "readout": "none"}
    cfg, chosen = compose_with_choices(["head=tied"])
    assert (cfg.model.head._target_, chosen["head"]) == ("modernllm.head.tied.TiedHead", "tied")


def test_composing_inside_hydra_restores_its_state():
    from hydra.core.global_hydra import GlobalHydra

    before = GlobalHydra.instance().is_initialized()
    compose([])
    refused(["lrr=3"])
    assert GlobalHydra.instance().is_initialized() is before


# a group of the model in place of its section


SHORT = {
    "attention.softcap=30": ("model.attention.softcap", 30),
    "attention.sinks=learned": ("model.attention.sinks", "learned"),
    "++attention.scale=width": ("model.attention.scale", "width"),
    "+norm.new=1": ("model.norm.new", 1),
    "position.base=1e6": ("model.position.base", 1e6),
    "activation.expansion=6": ("model.activation.expansion", 6),
    "head.std=0.1": ("model.head.std", 0.1),
    "init.base=8": ("init.base", 8),  # a section of the root: as it stands
    "optimizer.lr=1": ("optimizer.lr", 1),
    "model.norm.eps=1": ("model.norm.eps", 1),
}


@pytest.mark.parametrize("override", SHORT)
def test_the_short_form_of_a_key(override: str):
    key, value = SHORT[override]
    cfg = compose([*(["init=mup"] if "init" in override else []), override])
    assert OmegaConf.select(cfg, key) == value


def test_every_group_of_the_model_has_a_short_form():
    """Also of a choice that sets more than itself, as a placement does; of no group that stands elsewhere."""
    tree = read_tree([CONFIG_DIR])
    shortened = {group for group in tree if with_full_key(f"{group}.x=1", tree) == f"model.{group}.x=1"}
    in_the_model = OmegaConf.to_container(compose([]).model)
    assert isinstance(in_the_model, dict)
    assert shortened == {name for name, node in in_the_model.items() if isinstance(node, dict)}
    assert shortened >= {"norm", "placement", "attention", "moe"}
    assert compose(["placement=mix", "placement.post=0.5"]).model.placement.post == 0.5
    for text in ("attention=mha", "attention@model.layers.other=mha", "model.attention.x=1", "attention", "nrom.x=1"):
        assert with_full_key(text, tree) == text


def test_short_forms_in_a_sweep_are_jobs_with_full_keys():
    words = ["attention.softcap=null,30", "attention=mha,gqa"]
    command = read_command(words, many=True)
    assert command.jobs == [
        [f"model.attention.softcap={cap}", f"attention={kind}"] for cap in ("null", "30") for kind in ("mha", "gqa")
    ]
    assert [compose(job).model.attention.softcap for job in command.jobs] == [None, None, 30, 30]
    assert read_command(["attention.softcap=30"], many=False).jobs == [["model.attention.softcap=30"]]
    told = refused(["attention=linear", "attention.softcap=30"])
    assert told == "model.attention.softcap=30: no key model.attention.softcap; model.attention has eps"


# a user's own folder


def written(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / f"{name.replace('__', '/')}.yaml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def test_own_choice_and_own_group(tmp_path: Path):
    mine = written(
        tmp_path / "with space, comma",
        norm__mine="# @package model.norm\n# of my own\n_target_: torch.nn.Identity\n_partial_: true\n",
        experiment__big="# @package _global_\ndefaults:\n  - override /norm: mine\nmodel:\n  dim: 8\n",
    )
    cfg, chosen = compose_with_choices(["+experiment=big"], [mine])
    assert (cfg.model.dim, chosen["norm"], chosen["experiment"]) == (8, "mine", "big")
    lines = refused(["norm=mien"], [mine]).splitlines()
    assert ["mine", "of my own"] in [line.split(maxsplit=1) for line in lines]
    assert refused(["experiment=big"], [mine]) == (
        "experiment=big: experiment is no part of train.yaml; write +experiment=big to add it"
    )
    assert refused(["+experiment=bg"], [mine]).startswith("+experiment=bg: experiment has no choice bg; did you")
    assert compose(["norm=mine", f"hydra.searchpath=['file://{mine}']"]).model.norm._target_ == "torch.nn.Identity"
    assert expand(["norm=glob(m*)"], [mine]) == [["norm=mine"]]


def test_shipped_choice_wins_over_one_of_the_same_name(tmp_path: Path):
    mine = written(tmp_path, norm__none="# @package model.norm\n_target_: torch.nn.ReLU\n")
    assert compose(["norm=none"], [mine]).model.norm._target_ == "torch.nn.Identity"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("# @package _global_\ndefaults:\n  - override /norm: nope\n", "Could not find 'norm/nope'"),
        ("# @package _global_\ndefaults:\n  - override /nrom: none\n", "Could not override 'nrom'"),
        ("a: [1\n", "line 2"),
        ("a: 1\na: 2\n", "duplicate key a"),
    ],
)
def test_broken_file_is_one_config_error(tmp_path: Path, text: str, told: str):
    assert told in refused(["+experiment=x"], [written(tmp_path, experiment__x=text)])


def test_missing_folder():
    assert refused([], [Path("/no/such")]) == "/no/such: no such folder to look for configurations in"


# sweeps


@pytest.mark.parametrize(
    ("overrides", "jobs"),
    [
        ([], [[]]),
        (["seed=3"], [["seed=3"]]),
        (
            ["study=a,b", "out=x,y"],
            [["study=a", "out=x"], ["study=a", "out=y"], ["study=b", "out=x"], ["study=b", "out=y"]],
        ),
        (["seed=range(0,3)"], [["seed=0"], ["seed=1"], ["seed=2"]]),
        (["seed=choice(4,2)"], [["seed=4"], ["seed=2"]]),
        (["norm=glob(*norm)"], [["norm=layernorm"], ["norm=rmsnorm"], ["norm=scalenorm"]]),
        (["norm=glob(r*,exclude=none)", "seed=1"], [["norm=rmsnorm", "seed=1"], ["norm=rmsnorm_low", "seed=1"]]),
        (["readout=glob(*,exclude=none)", "seed=1"], [["readout=norm", "seed=1"]]),
        (
            ["optimizer.betas=[.9,.95],[.9,.99]"],
            [["optimizer.betas=[0.9,0.95]"], ["optimizer.betas=[0.9,0.99]"]],
        ),
        (["optimizer.betas=[.9,.95]"], [["optimizer.betas=[0.9,0.95]"]]),
        (["seed=1,1"], [["seed=1"], ["seed=1"]]),
        (["study='1,2'"], [["study='1,2'"]]),
        (["seed=1,2", "seed=7"], [["seed=7"]]),
    ],
)
def test_expand(overrides: list[str], jobs: list[list[str]]):
    assert expand(overrides) == jobs


def test_hydra_settings_stand_in_every_job():
    assert expand(["seed=1,2", "hydra.job.chdir=true"]) == [
        ["hydra.job.chdir=true", "seed=1"],
        ["hydra.job.chdir=true", "seed=2"],
    ]


def test_sweep_in_a_file_is_expanded_too(tmp_path: Path):
    text = "# @package _global_\nhydra:\n  mode: MULTIRUN\n  sweeper:\n    params:\n      seed: 0,1\n"
    mine = written(tmp_path, sweeps__two=text)
    assert expand(["+sweeps=two", "head=tied,untied"], [mine]) == [
        ["seed=0", "+sweeps=two", "head=tied"],
        ["seed=0", "+sweeps=two", "head=untied"],
        ["seed=1", "+sweeps=two", "head=tied"],
        ["seed=1", "+sweeps=two", "head=untied"],
    ]


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("seed=interval(0,1)", "seed: an interval has no values to list for a product; write seed=a,b,c or range"),
        ("norm=glob(x*)", "norm=glob(x*): no value at all; norm has dyt, layernorm"),
        ("seed=glob(*)", "seed=glob(*): glob(...) runs over the choices of a group"),
        ("seed=range(3,3)", "seed=range(3,3): no value at all"),
        ("hydra.job.name=a,b", "hydra.job.name=a,b: Hydra's own settings are the same for every run"),
        ("lrr=1", "lrr=1: no key lrr; did you mean optimizer.lr?"),
    ],
)
def test_expand_refuses(override: str, told: str):
    with pytest.raises(ConfigError) as caught:
        expand([override])
    assert str(caught.value).startswith(told)


SWEEPS = st.lists(
    st.tuples(
        st.sampled_from(["seed", "study", "trainer.steps", "++optimizer.x"]),
        st.sampled_from(["1", "1,2", "a,b,c", "[1,2],[3]", "range(1,4)", "choice(x,1)", "null", "'q,r',s", "1e-3"]),
    ),
    max_size=4,
)


@settings(max_examples=10, deadline=None)
@given(SWEEPS)
def test_expand_is_what_hydras_sweeper_does(pairs: list[tuple[str, str]]):
    overrides = [f"{key}={value}" for key, value in pairs]
    parsed = OverridesParser.create().parse_overrides(overrides)
    assert expand(overrides) == BasicSweeper.split_arguments(parsed, None)[0]


# did you mean


PLAIN = OmegaConf.to_container(compose([]))
assert isinstance(PLAIN, dict)
KEYS = sorted({key for key in dotted(PLAIN) if len(key.rpartition(".")[2]) > 3 and "_target_" not in key})


@settings(deadline=None)
@given(st.sampled_from(KEYS), st.data())
def test_one_slip_is_understood(key: str, data: st.DataObject):
    section, _, last = key.rpartition(".")
    i = data.draw(st.integers(0, len(last) - 2))
    slips = [
        last[:i] + last[i + 1] + last[i] + last[i + 2 :],
        last[:i] + last[i + 1 :],
        last[:i] + "x" + last[i:],
    ]
    slip = data.draw(st.sampled_from(slips))
    assert key in nearest(f"{section}.{slip}" if section else slip, KEYS)


@given(st.text(max_size=8), st.lists(st.text(max_size=8), max_size=5))
def test_nearest_invents_nothing(word: str, names: list[str]):
    found = nearest(word, names)
    assert set(found) <= set(names)
    assert len(found) == len(set(found)) <= 3


def test_every_choice_has_a_line_about_it():
    for group, found in read_tree([CONFIG_DIR]).items():
        assert found, f"configs/{group} is empty"
        for name, choice in found.items():
            assert choice.summary, f"configs/{group}/{name}.yaml"


def test_neither_composition_nor_its_errors_nor_help_need_torch():
    code = """
import sys
from modernllm.config.command import expand, read_command
from modernllm.config.compose import compose
from modernllm.config.errors import ConfigError
from modernllm.config.help import help_text
expand(["seed=1,2"]); help_text()
try:
    compose(["lrr=3"])
except ConfigError:
    print(sorted({"torch", "pydantic", "numpy", "scipy", "wandb"} & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
