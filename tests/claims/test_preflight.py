"""The preflight: honest arms pass, and every planted fault is found and named."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import planted_arms
import pytest
import torch
from models import choices
from running import SMALL

from modernllm import preparation
from modernllm.claims.preflight import Certificate, Check, preflight
from modernllm.claims.preflight.arm import Arm
from modernllm.claims.preflight.command import Arms
from modernllm.claims.preflight.confounders import confounders
from modernllm.claims.preflight.differ import check_alive, check_configurations, check_switches, differing
from modernllm.claims.preflight.equal import check_facts, check_shared_starts
from modernllm.claims.preflight.future import check_future, cuts_of
from modernllm.claims.preflight.reach import check_gradients, check_seeds
from modernllm.scripting import main
from modernllm.sweep.plan import Planned

SCRIPT = Path(__file__).parents[2] / "scripts" / "preflight.py"


ARMS = Arms()


@cache
def planned(*words: str) -> Planned:
    keys = {word.partition("=")[0] for word in words}
    return ARMS(words, [word for word in SMALL if word.partition("=")[0] not in keys])


def arm(*words: str, **changed: dict[str, Any]) -> Planned:
    """SMALL with these words; `model=` and `init=` merge into those sections, or replace a node that has a target."""
    planned_run = planned(*words)
    planned_run = replace(planned_run, config=deepcopy(planned_run.config))
    for section, values in changed.items():
        if "_target_" in values:
            planned_run.config[section] = values
        else:
            planned_run.config[section].update(values)
    return planned_run


def planted_attention(name: str, *words: str, **keys: Any) -> Planned:
    return arm(*words, model={"attention": {"_target_": f"planted_arms.{name}", "_partial_": True, **keys}})


def planted_init(name: str, *words: str) -> Planned:
    return arm(*words, init={"_target_": f"planted_arms.{name}"})


def made(run: Planned, name: str = "other") -> Arm:
    return Arm(name, run.config, run.asked)


@cache
def default() -> Arm:
    return made(arm(), "default")


def failed(checks: Iterable[Check]) -> dict[str, str]:
    return {check.name: check.sentence for check in checks if not check.passed}


def differ(*arms: Arm) -> tuple[dict[str, str], list[str]]:
    """What is refused of what must differ, and warnings."""
    (alive, rounding), (switches, idle) = check_alive(arms), check_switches(arms)
    return failed([check_configurations(arms), alive, switches]), [*rounding, *idle]


def equal(*arms: Arm, unlike: Iterable[str] = ()) -> dict[str, str]:
    """What is refused of what must be equal."""
    return failed([*check_facts(arms, list(unlike)), check_shared_starts(arms)])


# --- honest arms


@pytest.fixture(scope="module")
def honest() -> Certificate:
    with torch.random.fork_rng():
        return preflight({"pre": arm(), "post": arm("placement=post")})


def test_honest_arms_pass(honest: Certificate) -> None:
    assert honest.passed
    assert honest.refusals == []
    assert honest.warnings == ()
    by_name = {check.name: check for check in honest.checks}
    assert len(by_name) == len(honest.checks) == 21
    # Pre-Norm has the final norm's 32 gains more
    assert "41,824 and 41,792" in by_name["alive"].sentence
    assert by_name["shared starts"].details["post"] == {"all": 20, "shared": 20, "unequal": [], "excused": 0}
    assert by_name["no future"].sentence == "31 cuts a mode, eval and train, by values and gradients"
    assert by_name["gradients"].details == {"parameters": {"pre": 21, "post": 20}}
    assert by_name["seeds count"].details["pre"] == {"drawn": 16, "moved": 16}  # all but the five gains


def test_the_certificate_is_json_and_says_of_what_it_is(honest: Certificate) -> None:
    content = json.loads(json.dumps(honest.to_json(), allow_nan=False))
    assert content["passed"] is True
    assert content["hash"] == honest.hash
    assert len(content["checks"]) == 21
    assert len(honest.lines()) == 22
    assert honest.summary() == honest.lines()[-1:] == [f"preflight passed, 21 checks ({honest.hash})"]
    watched = {"pre": made(arm("logger=wandb", "telemetry=full")).hash, "post": made(arm("placement=post")).hash}
    assert honest.arms == watched
    assert replace(honest, unlike=("init",)).hash != honest.hash
    assert replace(honest, arms=watched | {"pre": made(arm("seed=1")).hash}).hash != honest.hash


def test_it_disturbs_nothing() -> None:
    torch.manual_seed(3)
    expected, threads = torch.rand(4), torch.get_num_threads()
    torch.manual_seed(3)
    preflight({"pre": arm("trainer.threads=2"), "post": arm("placement=post", "trainer.threads=2")})
    assert torch.equal(torch.rand(4), expected)
    assert torch.get_num_threads() == threads


SHORTER = {"attention=window": ["model.attention.size=8"], "attention=window_gqa": ["model.attention.size=8"]}
"""A window as long as the text is no window."""
REFERENCES = {"placement": "pre", "attention": "mha", "position": "rope"}


def shipped(group: str) -> list[str]:
    """Every choice of a group against its reference, but one that acts beyond the trained length."""
    first = f"{group}={REFERENCES[group]}"
    return [first, *(word for word in choices(group) if word not in (first, "position=rope_ntk_dynamic"))]


def passes(words: list[str]) -> None:
    certificate = preflight({word: arm(word, *SHORTER.get(word, [])) for word in words})
    assert failed(certificate.checks) == {}
    assert len(certificate.arms) == len(words)


@pytest.mark.parametrize("group", REFERENCES)
def test_shipped_choices_pass(group: str) -> None:
    first, *others = shipped(group)
    passes([first, *others[::5]])


@pytest.mark.slow
@pytest.mark.parametrize("group", REFERENCES)
def test_all_shipped_choices_pass(group: str) -> None:
    passes(shipped(group))


# --- what must differ


def test_one_arm_is_no_comparison() -> None:
    with pytest.raises(ValueError, match="1 arm: a comparison has two or more"):
        preflight({"alone": arm()})


def test_two_names_for_one_run_are_refused() -> None:
    found, _ = differ(default(), made(arm("placement=pre", "trainer.micro_batch=2", "telemetry=none")))
    assert found["arms"] == "default and other are the same run"


def test_a_switch_that_is_read_by_nothing_is_named() -> None:
    found, _ = differ(made(planted_attention("Deaf", strength=1.0), "faint"),
                      made(planted_attention("Deaf", strength=2.0), "strong"))  # fmt: skip
    assert list(found) == ["alive"]
    assert "faint / strong do the same: dead switch model.attention.strength" in found["alive"]


def test_a_dead_switch_beside_a_live_one_is_named() -> None:
    found, _ = differ(made(planted_attention("Deaf", strength=1.0), "faint"),
                      made(planted_attention("Deaf", "placement=post", strength=2.0), "strong"))  # fmt: skip
    assert found == {"switches": "dead: model.attention.strength=2.0, which changes nothing in strong"}


def test_a_group_that_nothing_reads_is_named() -> None:
    """placement=none has no norm."""
    unread = made(arm("placement=none", "norm=layernorm"))
    assert differ(default(), unread)[0] == {"switches": "dead: model.norm, which nothing reads in other"}
    found, _ = differ(made(arm("placement=none"), "one"), unread)
    assert found["arms"] == "one and other are the same run; what differs, model.norm, is read by nothing in them"


def test_a_scheme_that_acts_beyond_the_trained_length_is_dead() -> None:
    found, _ = differ(default(), made(arm("position=rope_ntk_dynamic")))
    assert "dead switch model.position" in found["alive"]


def test_a_key_that_repeats_what_its_choice_says_is_a_warning() -> None:
    """Grouped heads are half as many unless set."""
    found, warnings = differ(default(), made(arm("attention=gqa", "model.n_kv_heads=2")))
    assert found == {}
    assert warnings == ["model.n_kv_heads=2 changes nothing in other"]


@pytest.mark.parametrize(
    ("word", "shown"),
    [
        ("schedule.final=0.0", "other learning rates over the steps"),
        ("model.dropout=0.1", "losses of the first steps"),
        ("trainer.z_loss=1e-4", "losses of the first steps"),
    ],
)
def test_switches_that_only_training_shows(word: str, shown: str) -> None:
    alive, warnings = check_alive([default(), made(arm(word))])
    assert alive.passed
    assert warnings == []
    assert shown in alive.sentence


def test_a_policy_for_later_is_said() -> None:
    alive, warnings = check_alive([default(), made(arm("trainer.nonfinite=skip"))])
    assert alive.passed
    assert "acts on a step that is not finite" in warnings[0]


@pytest.mark.parametrize("word", ["model.norm.eps=1.2e-6", "trainer.clip=0.1"])
def test_no_more_than_rounding_is_said(word: str) -> None:
    """1 / sqrt(1 + eps): a fifth of eps is 1e-7 of the stream. Adam divides by what clipping multiplies with."""
    alive, warnings = check_alive([default(), made(arm(word))])
    assert alive.passed
    assert "differ by no more than rounding" in warnings[0]


def test_what_is_exchanged_is_a_whole_component_or_one_key() -> None:
    one, other = arm("schedule.warmup=0.2"), arm("placement=post", "optimizer=sgd", "model.dropout=0.1")
    found = {".".join(path) for path in differing(one.config, other.config)}
    assert found == {"model.placement", "model.readout", "model.dropout", "optimizer", "schedule.warmup"}


# --- what must be equal


@pytest.mark.parametrize(
    ("words", "names", "key"),
    [
        (["data.n_documents=50"], {"corpus", "validation windows", "batches of 50 steps"}, "data"),
        (["trainer.batch_size=8"], {"tokens a step", "batches of 50 steps"}, "trainer.batch_size"),
        (["trainer.steps=300"], {"steps", "steps between evaluations"}, "trainer.steps"),
        (["trainer.eval_every=10"], {"steps between evaluations"}, "trainer.eval_every"),
        (["seed=5"], {"seed", "batches of 50 steps", "shared starts"}, "seed"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_unequal_conditions_are_refused(words: list[str], names: set[str], key: str) -> None:
    found = equal(default(), made(arm("placement=post", *words)))
    assert set(found) == names
    assert any(f"declare it: unlike: [{key}]" in sentence for sentence in found.values())


def test_another_tokenizer_is_refused() -> None:
    """F-102"""
    found = equal(default(), made(arm("tokenizer=bpe", "tokenizer.vocab_size=300")))
    assert set(found) == {"tokenizer", "validation windows", "batches of 50 steps"}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["tokenizer=bpe", "tokenizer.vocab_size=300"], {"tokenizer", "validation windows"}),
        (["trainer.validation_tokens=128"], {"validation windows"}),
        (["data.n_documents=50"], {"validation windows"}),
        (["model.context_length=16"], {"validation windows"}),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_losses_under_two_yardsticks_are_refused_whatever_is_declared(words: list[str], names: set[str]) -> None:
    declared = ["tokenizer", "data", "trainer", "model"]
    found = equal(default(), made(arm(*words)), unlike=declared)
    assert set(found) == names
    assert all("whatever is declared: make it equal" in sentence for sentence in found.values())


def test_what_is_declared_may_differ() -> None:
    longer = made(arm("placement=post", "trainer.steps=300", "trainer.eval_every=50"))
    assert equal(default(), longer, unlike=["trainer.steps"]) == {}
    assert equal(default(), longer, unlike=["trainer"]) == {}
    assert set(equal(default(), longer, unlike=["trainer.batch_size"])) == {"steps"}


def test_an_arm_declares_the_schedule_that_it_sets() -> None:
    assert equal(default(), made(arm("schedule=wsd"))) == {}
    unsaid = arm("placement=post")
    unsaid.config["schedule"] = arm("schedule=wsd").config["schedule"]
    assert set(equal(default(), made(unsaid))) == {"schedule"}


def test_a_data_order_that_depends_on_the_model_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """F-91"""
    monkeypatch.setattr(preparation, "Windows", planted_arms.WindowsAfterModel)
    assert set(equal(made(arm(), "mha"), made(arm("attention=gated"), "gated"))) == {"batches of 50 steps"}


def test_shared_parameters_that_start_otherwise_are_refused() -> None:
    """F-91"""
    found = equal(made(planted_init("OneStream"), "mha"), made(planted_init("OneStream", "attention=gated"), "gated"))
    assert list(found) == ["shared starts"]
    assert "these should and do not: blocks.0" in found["shared starts"]


def test_another_init_is_exempt_and_said() -> None:
    """Xavier is fan-in where a matrix is square."""
    starts = check_shared_starts([default(), made(arm("init=xavier"))])
    assert starts.passed
    assert "15 of 21 tensors" in starts.sentence
    assert "6 may start otherwise (another init)" in starts.sentence


def test_a_table_of_another_role_is_exempt_and_said() -> None:
    """Of a tied head: drawn as the head is."""
    starts = check_shared_starts([default(), made(arm("head=tied"))])
    assert starts.passed
    assert "1 may start otherwise (their role or own start is another)" in starts.sentence


# --- the future (F-19)


@pytest.mark.parametrize("name", ["Peeking", "PeekingInTraining", "PeekingOnce"])
def test_an_arm_that_sees_the_future_is_refused(name: str) -> None:
    check = check_future([default(), made(planted_attention(name))])
    assert not check.passed
    assert "other, train mode" in check.sentence
    assert "default" not in check.sentence
    assert ("other, eval mode" in check.sentence) == (name != "PeekingInTraining")
    if name == "PeekingOnce":
        assert "position 20" in check.sentence
        assert "after position 20 do" in check.sentence


def test_a_leak_behind_a_zero_head_is_seen() -> None:
    asleep = ["head=zero", "init=zero_out"]
    assert check_future([made(arm(*asleep))]).passed
    assert not check_future([made(planted_attention("Peeking", *asleep))]).passed


def test_a_leak_that_values_do_not_show_is_seen_in_gradients() -> None:
    """1e-9 of the next token."""
    check = check_future([made(planted_attention("PeekingFaintly"))])
    assert "have a gradient to the token at position" in check.sentence


def test_a_model_to_which_tokens_do_not_matter_is_refused() -> None:
    assert "the tokens do not matter" in check_future([made(external("Blank"))]).sentence


def external(name: str, **keys: Any) -> Planned:
    module = {"_target_": f"planted_arms.{name}", "_partial_": True, **keys}
    return arm("family=external", f"model.module._target_=planted_arms.{name}", f"allow_targets=[planted_arms.{name}]",
               model={"module": module})  # fmt: skip


def test_models_of_other_hands_are_looked_at_too() -> None:
    assert preflight({"ours": arm(), "theirs": external("Bag", causal=True)}).passed
    check = check_future([made(external("Bag", causal=False))])
    assert "other, eval mode: the logits at position" in check.sentence


def test_every_position_is_a_cut_in_a_short_text_and_many_are_in_a_long_one() -> None:
    assert cuts_of(32) == list(range(31))
    long = cuts_of(1024)
    assert 8 <= len(long) <= 16
    assert {0, 1022} <= set(long)
    assert max(long) < 1023


# --- gradients and seeds


def test_a_parameter_without_a_gradient_is_refused() -> None:
    check, _ = check_gradients([default(), made(planted_attention("WithSpare"))])
    assert check.details["missing"] == [f"other: blocks.{layer}.sublayers.attention.spare" for layer in (0, 1)]


def test_zeros_that_no_step_leaves_are_refused() -> None:
    """y = a f(x) with a = 0 and W_out = 0: neither ever moves."""
    check, _ = check_gradients([made(arm("branch=rezero", "init=zero_out"))])
    assert "other: blocks.0.joins.attention.branch.scale" in check.details["missing"]
    assert len(check.details["missing"]) == 22
    check, _ = check_gradients([made(arm("branch=rezero")), made(arm("init=zero_out", "head=zero"))])
    assert check.passed


def test_experts_without_a_token_are_told_apart() -> None:
    check, warnings = check_gradients([made(arm("moe=topk", "model.moe.n_experts=100", "model.moe.k=1", *FEW_TOKENS))])
    assert check.passed
    assert "other: no token of the first steps visits what owns blocks" in warnings[0]


FEW_TOKENS = ("trainer.batch_size=1", "model.n_layers=1", "model.hidden=8")


def test_what_is_not_trained_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    check, warnings = check_gradients([made(external("Bag", causal=True, frozen=True))])
    assert check.passed
    assert warnings == ["other: not trained at all: module.embed.weight"]


@pytest.mark.parametrize("what", ["start", "batches"])
def test_seeds_that_change_nothing_are_refused(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """F-89"""
    if what == "batches":
        monkeypatch.setattr(preparation, "Windows", planted_arms.WindowsForAll)
    check = check_seeds([made(planted_init("SeedBlind") if what == "start" else arm())])
    assert not check.passed
    same = "the same initial values of embedding.weight" if what == "start" else "the same batches"
    assert check.sentence.startswith(f"other: the next seed draws {same}")


# --- confounders


def test_known_confounders_are_said() -> None:
    """Positions of RMS 1 on rows of RMS d^-0.5 where the head is tied, of sqrt(1/2) on rows of 0.02."""
    tied = made(arm("head=tied", "position=learned", "model.dim=128"), "tied")
    faint = made(arm("init=normal", "position=sinusoidal"), "faint")
    grids = {"tied": [1e-3, 3e-3], "faint": [1e-3, 3e-3, 1e-2]}
    warnings = "\n".join(confounders([tied, faint], grids))
    assert re.search(r"tied: positions start 1[0-3] times as large as token rows \(RMS 0.0[89]", warnings)
    assert re.search(r"faint: positions start 3[3-9] times as large as token rows", warnings)
    assert "parameters of learned positions: tied 4,096, faint 0" in warnings
    assert "non-embedding parameters are not matched: tied " in warnings
    assert "weight decay is coupled to the learning rate, which is tuned (tied, faint)" in warnings
    assert "learning rates tried: tied 2, faint 3, not the same ones" in warnings


def test_branches_that_swamp_the_embedding_are_said() -> None:
    """[P] RMS 1 of a normed branch on rows of 0.02."""
    found = confounders([default(), made(arm("placement=sandwich", "init=normal"))], {})
    assert any("other: the first block adds" in warning for warning in found)
    assert not any("first block" in warning for warning in confounders([default(), made(arm("placement=post"))], {}))


# --- the script


def load_script() -> Any:
    spec = spec_from_file_location("scripts_preflight", SCRIPT)
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["placement=pre", "placement=post"], 0, "preflight passed"),
        (["placement=pre", ""], 1, "REFUSED arms: placement=pre and default are the same run"),
        (["placement=pre", "placement=pots"], 10, "pots"),
        (["placement=pre"], 10, "a comparison has two or more"),
    ],
    ids=["passes", "refused", "error", "one"],
)
def test_the_script(words: list[str], code: int, said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    script, to = load_script(), tmp_path / "certificate.json"
    words = [*words, f"base={' '.join(SMALL)}", f"to={to}"]
    assert main(script.preflight, words, failed=script.FAILED, misused=script.MISUSED) == code
    printed = capsys.readouterr()
    assert said in printed.out + printed.err
    if code < 10:
        assert json.loads(to.read_text())["passed"] == (code == 0)
        assert "ok     " not in printed.out  # what failed, and how many
        assert ("passed, 21 checks" if code == 0 else " of 21 checks: arms") in printed.out
