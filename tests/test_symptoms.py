"""Every symptom on a run that has it, the advice on that run, and silence on runs that are well."""

from __future__ import annotations

import math
import re
import time
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from models import config, tiny
from running import fit, optimizer, run, trainer
from torch import nn

from modernllm.config.check import check
from modernllm.config.compose import compose
from modernllm.report import symptoms
from modernllm.report.inspection import speed, story
from modernllm.report.symptoms import Finding, findings
from modernllm.runs.directory import RunDirectory
from modernllm.runs.record import Run
from modernllm.telemetry.alarms import SIGNS

RATE = "optimizer.lr=3e-3"
SICK: dict[str, tuple[tuple[str, ...], str]] = {
    "stuck at the unigram floor": (
        ("placement=no_residual", "model.n_layers=4", "trainer.steps=150"),
        "placement=pre",
    ),
    "gradients vanish towards the input": (
        ("placement=no_residual", "model.n_layers=8", "trainer.steps=40"),
        "placement=pre",
    ),
    "attention collapses": (("init=normal", "init.base=1.0", "trainer.steps=20"), "qk_norm=head"),
    "NaN or infinity early on": (
        ("placement=none", "init=xavier", "model.n_layers=12", "trainer.steps=20"),
        "placement=pre",
    ),
    "loss spikes": (("optimizer.lr=1.0", "trainer.steps=30"), RATE),
    "diverged": (("optimizer.lr=5.0", "schedule=constant", "trainer.steps=30"), RATE),
    "output logits drift": (
        ("readout=none", "optimizer.lr=0.3", "optimizer.weight_decay=0.0", "schedule=constant", "trainer.steps=30"),
        "head=softcapped",
    ),
}
"""By symptom: overrides of a run that has it, and of the advice what cures it (of a smaller rate the last of many)."""


CURES: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    (
        "stuck at the unigram floor",
        ("placement=post", "model.n_layers=8", "optimizer.lr=1e-2", "trainer.steps=120"),
        ("placement=pre", "schedule.warmup=0.3", "optimizer.lr=0.0033"),
    ),
    (
        "gradients vanish towards the input",
        ("placement=post", "model.n_layers=8", "optimizer.lr=1e-2", "trainer.steps=120"),
        ("placement=pre", "schedule.warmup=0.3", "optimizer.lr=0.0033"),
    ),
    (
        "gradients explode towards the input",
        ("optimizer.lr=0.1", "schedule=constant", "model.n_layers=6", "trainer.steps=320"),
        ("optimizer.lr=0.033",),
    ),
    (
        "attention collapses",
        ("optimizer.lr=0.1", "trainer.steps=320"),
        ("qk_norm=head", "optimizer.lr=0.033", "model.attention.softcap=50"),
    ),
    ("attention collapses", ("init=normal", "init.base=1.0", "trainer.steps=20"), ("init=fanin",)),
    (
        "NaN or infinity early on",
        ("placement=none", "model.n_layers=8", "trainer.steps=20"),
        ("placement=pre", "branch=rezero"),
    ),
    (
        "NaN or infinity early on",
        ("norm=none", "model.n_layers=8", "trainer.steps=20"),
        ("norm=rmsnorm", "branch=rezero"),
    ),
    (
        "NaN or infinity early on",
        ("placement=none", "init=normal", "init.base=1.0", "trainer.steps=20"),
        ("placement=pre", "init=fanin"),
    ),
    (
        "NaN or infinity early on",
        ("placement=none", "model.n_layers=4", "optimizer.lr=3e-2", "schedule.warmup=0", "trainer.steps=60"),
        ("optimizer.lr=0.01",),
    ),
    (
        "NaN or infinity early on",
        (
            "placement=none", "init=xavier", "model.n_layers=5", "optimizer.lr=1e-2", "schedule.warmup=0",
            "trainer.steps=40",
        ),
        ("schedule.warmup=0.1",),
    ),
    (
        "NaN or infinity early on",
        ("trainer.precision=fp16", "placement=none", "init=xavier", "model.n_layers=5", "trainer.steps=20"),
        ("trainer.precision=bf16",),
    ),
    (
        "loss spikes",
        ("placement=none", "init=normal", "model.n_layers=8", "trainer.steps=320"),
        ("placement=pre", "branch=rezero", "init=depth_scaled"),
    ),
    (
        "loss spikes",
        ("optimizer.lr=0.6", "model.n_layers=4", "schedule=constant", "schedule.warmup=0", "trainer.steps=60"),
        ("optimizer.lr=0.2",),
    ),
    (
        "diverged",
        ("placement=none", "optimizer.lr=0.1", "schedule.warmup=0", "trainer.steps=60"),
        ("placement=pre", "branch=rezero", "optimizer.lr=0.033"),
    ),
    (
        "output logits drift",
        ("readout=none", "optimizer.lr=0.3", "optimizer.weight_decay=0.0", "trainer.steps=60"),
        ("optimizer.weight_decay=0.1", "head=softcapped", "optimizer.lr=0.1"),
    ),
    (
        "dead units",
        ("activation=relu", "model.bias=true", "optimizer.lr=1.0", "trainer.steps=60"),
        ("activation=leaky_relu", "activation=gelu", "optimizer.lr=0.33"),
    ),
    (
        "idle experts",
        ("moe=topk", "model.moe.k=1", "model.moe.balance=0.0", "optimizer.lr=0.1", "trainer.steps=60"),
        ("model.moe.balance=0.1", "moe=topk_lossfree"),
    ),
]  # fmt: skip
"""By symptom: a run that has it, and each advice on which it is gone."""


@cache
def done(folder: Path, words: tuple[str, ...]) -> Run:
    return run(*words, f"out={folder}")[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


def _timeless(of: Run) -> Run:
    """Without what a busy machine makes of it."""
    return replace(of, metrics=[{key: x for key, x in row.items() if key != "tokens_per_s"} for row in of.metrics])


def named(of: Run) -> dict[str, Finding]:
    return {finding.symptom: finding for finding in findings(of)}


@pytest.mark.parametrize("symptom", SICK)
def test_a_sick_run_is_told_so_and_the_advice_cures_it(symptom: str, folder: Path) -> None:
    words, cure = SICK[symptom]
    found = named(done(folder, words))[symptom]
    key = cure.partition("=")[0]
    assert any(what == cure or (cure == RATE and what.startswith("optimizer.lr=")) for what, _ in found.advice)
    others = tuple(word for word in words if not word.startswith(f"{key}="))
    assert symptom not in named(done(folder, (*others, cure)))
    for what, why in found.advice:
        assert why
        if not what.startswith("python "):
            group = what.partition("=")[0]
            check(compose([word for word in words if not word.startswith((f"{group}=", f"{group}."))] + [what]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("symptom", "words", "advice"),
    [(symptom, words, advice) for symptom, words, each in CURES for advice in each],
    ids=lambda part: part if isinstance(part, str) else " ".join(part),
)
def test_each_advice_cures_a_run_that_has_the_symptom(
    symptom: str, words: tuple[str, ...], advice: str, folder: Path
) -> None:
    found = named(_timeless(done(folder, words)))[symptom]
    assert advice in [what for what, _ in found.advice]
    key = advice.partition("=")[0]
    others = tuple(word for word in words if not word.startswith((f"{key}=", f"{key}.")))
    assert symptom not in named(done(folder, (*others, advice)))


def test_no_advice_is_untested() -> None:
    """Whatever the source says may be tried; what is tried on hand-made series or by a script of ours stands below."""
    tried = {advice for _, _, each in CURES for advice in each}
    elsewhere = {"trainer.z_loss=1e-4", "trainer.profile=true", "trainer.threads=1"}
    source = Path(symptoms.__file__).read_text(encoding="utf-8")
    written = set(re.findall(r'\("([a-z_.]+=[^"]+)", ', source))
    assert written - elsewhere <= tried


@pytest.mark.slow
@pytest.mark.parametrize("advice", ["optimizer.lr=0.00017", "schedule.warmup=0.5", "optimizer.lr=0.05"])
def test_at_no_rate_does_anything_pass_where_there_is_no_residual_connection(advice: str, folder: Path) -> None:
    words = ("placement=no_residual", "model.n_layers=4", "trainer.steps=150")
    found = named(done(folder, words))["stuck at the unigram floor"]
    assert [what for what, _ in found.advice] == ["placement=pre"]
    assert "a smaller rate or a slower start: at no rate does it pass" in found.useless
    assert done(folder, (*words, advice)).outcome in ("stalled", "diverged")


def test_the_default_run_has_no_symptom(folder: Path) -> None:
    """The setting of the stalled run, but for its placement."""
    well = done(folder, ("model.n_layers=4", "trainer.steps=150", "placement=pre"))
    assert well.outcome == "ok"
    timeless = _timeless(well)
    assert named(timeless) == {}
    assert "no symptom was found" in list(story(timeless))


def test_the_evidence_is_measured(folder: Path) -> None:
    stalled = named(done(folder, SICK["stuck at the unigram floor"][0]))["stuck at the unigram floor"]
    assert "unigram floor 3.131" in stalled.evidence
    assert "the tokens of a text are alike after the last layer (mean cosine 1.000)" in stalled.evidence
    vanishing = named(done(folder, SICK["gradients vanish towards the input"][0]))["gradients vanish towards the input"]
    assert vanishing.evidence.startswith("layer 7 gradient norm ")
    nan = named(done(folder, SICK["NaN or infinity early on"][0]))["NaN or infinity early on"]
    assert "non-finite at step 1" in nan.evidence
    # the weights of the first step are those of the start: no rate helps
    assert not any(what.startswith(("optimizer.lr", "schedule")) for what, _ in nan.advice)


def test_what_is_said_not_to_help_does_not(folder: Path) -> None:
    nan = named(done(folder, SICK["NaN or infinity early on"][0]))["NaN or infinity early on"]
    assert nan.useless == (
        "trainer.clip: an infinite norm makes the factor 0, and 0 times infinity is NaN",
        "subtracting the maximum before softmax: every softmax here does that already, and it changes no weight",
    )
    p = nn.Parameter(torch.zeros(2))
    p.grad = torch.tensor([math.inf, 1.0])
    nn.utils.clip_grad_norm_([p], 1.0)
    assert math.isnan(p.grad[0])
    scores = torch.tensor([1e4, 1e4 - 1, 0.0])
    torch.testing.assert_close(scores.softmax(0), (scores - scores.max()).softmax(0))
    assert (scores + math.inf).softmax(0).isnan().all()
    # clipping leaves the ratio of two layers
    layers = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    for layer, size in zip(layers, (1e-3, 10.0), strict=True):
        layer.grad = torch.tensor([size])
    nn.utils.clip_grad_norm_(layers, 0.5)
    assert float(layers[1].grad / layers[0].grad) == pytest.approx(1e4)


@pytest.mark.slow
def test_more_steps_do_not_help_a_stalled_run(folder: Path) -> None:
    words = ("placement=no_residual", "model.n_layers=4", "trainer.steps=400")
    assert done(folder, words).outcome == "stalled"


def planted(path: Path, model: nn.Module, *overrides: str, steps: int = 20, **changed: Any) -> Run:
    """A run of a model in which something was planted."""
    fit(trainer(path, model, steps=steps, **changed))
    shipped = config(*overrides)
    made, given = RunDirectory(path), dict(word.partition("=")[::2] for word in overrides)
    metrics, events = made.rows()
    return Run(
        path=path,
        config=shipped | {"trainer": shipped["trainer"] | {"steps": steps}},
        identity={"choices": {"family": "decoder", "placement": "pre", "init": "fanin"} | given, "floors": {}},
        metrics=metrics,
        events=events,
        status={"status": "finished", "outcome": None},
        telemetry=made.telemetry_rows(),
    )


def test_dead_units(tmp_path: Path) -> None:
    model = tiny("activation=relu", "model.bias=true")
    with torch.no_grad():
        model.get_parameter("blocks.1.sublayers.feedforward.up.bias")[:96] = -1e3
    found = named(planted(tmp_path, model, "activation=relu"))["dead units"]
    assert found.evidence == "75% of the units of layer 1 are dead: no token turns them on"
    assert found.advice[0][0] == "activation=leaky_relu"
    # with a slope below zero the same units have a gradient
    cured = tiny("activation=leaky_relu", "model.bias=true")
    with torch.no_grad():
        cured.get_parameter("blocks.1.sublayers.feedforward.up.bias")[:96] = -1e3
    assert "dead units" not in named(planted(tmp_path / "cured", cured, "activation=leaky_relu"))


def test_idle_experts(tmp_path: Path) -> None:
    model = tiny("moe=topk")
    for block in model.blocks:  # no score depends on the token, and no gradient changes that
        router = block.get_submodule("sublayers.feedforward.router")
        router.weight.requires_grad_(False).zero_()
    found = named(planted(tmp_path, model, "moe=topk", optimizer=optimizer(model)))["idle experts"]
    assert found.evidence == "75% of the experts of layer 0 get no token of the probe"
    assert ("moe=topk_lossfree", "balances by a bias after each step") in found.advice


class Shifted(nn.Module):
    """Logits and one number more for all of them, which no probability depends on and a small force pulls at: what
    Adam makes of the rounding of a gradient that should be zero, in fewer steps.
    """

    def __init__(self, head: nn.Module):
        super().__init__()
        self.head, self.shift = head, nn.Parameter(torch.zeros(()))
        self.shift.register_hook(lambda gradient: gradient - 0.2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x) + 1000 * self.shift


@pytest.mark.parametrize("z_loss", [0.0, 1e-4])
def test_a_slow_drift_of_the_logits(z_loss: float, tmp_path: Path) -> None:
    """With the loss as good as ever  (Wortsman et al., 2023)."""
    model = tiny()
    model.head = Shifted(model.head)
    made = planted(tmp_path, model, steps=40, z_loss=z_loss)
    assert made.losses[-1] < made.losses[0]
    found = named(_timeless(made))
    assert ("output logits drift" in found) == (not z_loss)
    if not z_loss:
        assert "mean logit" in found["output logits drift"].evidence or "log Z" in found["output logits drift"].evidence
        assert found["output logits drift"].advice[0] == ("trainer.z_loss=1e-4", "holds log Z near 0")


def test_logits_that_come_down_do_not_drift() -> None:
    """A model without norms may start with enormous ones."""
    first, now = {"log_z": 1259.5, "mean": -90.0}, {"log_z": 10.6, "mean": -1.0}
    assert SIGNS["logit_drift"][2](now, first) is None
    assert SIGNS["logit_drift"][2](first, now) is not None


def test_a_profile_of_fewer_layers_than_there_are_says_so(folder: Path) -> None:
    """Of what was not finite in the deep ones nothing is recorded."""
    text = list(story(done(folder, SICK["NaN or infinity early on"][0])))
    (line,) = [line for line in text if line.startswith("  stream RMS")]
    assert re.search(r"\(of \d+ of 12 layers\)$", line)


def test_advice_for_what_was_measured(folder: Path) -> None:
    """Norms of queries where there are no norms are none; a run that broke has no spikes of its own."""
    bare = replace(done(folder, SICK["attention collapses"][0]))
    choices = bare.identity["choices"]
    without = replace(bare, identity=bare.identity | {"choices": choices | {"norm": "none"}})
    assert "qk_norm=head" in [what for what, _ in named(bare)["attention collapses"].advice]
    assert "qk_norm=head" not in [what for what, _ in named(without)["attention collapses"].advice]
    assert "loss spikes" not in named(done(folder, SICK["diverged"][0]))


def test_a_run_that_slows_down(tmp_path: Path) -> None:
    model, calls = tiny(), []

    def drag(*_: object) -> None:
        calls.append(0)
        time.sleep(0.15 * (len(calls) > 30))

    model.register_forward_pre_hook(drag)
    found = named(planted(tmp_path, model, steps=40))["steps get slower"]
    assert "tokens/s in the first quarter" in found.evidence
    assert ("trainer.profile=true", "names the ten hottest operations") in found.advice


@pytest.mark.filterwarnings("ignore")  # the profiler's own
def test_a_profile_names_what_takes_the_time(tmp_path: Path) -> None:
    model, matrix = tiny(), torch.rand(300, 300)

    def drag(*_: object) -> None:
        torch.linalg.svdvals(matrix)  # so long that no other operation seems as hot because it had to wait for a core

    model.register_forward_pre_hook(drag)
    text = list(speed(planted(tmp_path, model, profile=True)))
    start = text.index("hottest operations (trainer.profile=true):")
    assert any("svd" in line for line in text[start + 1 : start + 8])


def test_a_run_whose_memory_grows(tmp_path: Path) -> None:
    """The peak of this process says nothing of one run, so the series is written by hand."""
    well = planted(tmp_path, tiny())
    assert "memory grows" not in named(well)
    leaking = [{"step": step, "memory": {"peak_mb": 400.0 + 10 * step}} for step in range(1, 21)]
    found = named(replace(well, telemetry=leaking))["memory grows"]
    assert found.evidence == "peak memory 420 MB at step 2, 510 MB at step 11, 600 MB at step 20"
    levelled = [{"step": step, "memory": {"peak_mb": 400.0 + 100 * (step > 4)}} for step in range(1, 21)]
    assert "memory grows" not in named(replace(well, telemetry=levelled))


def test_no_advice_that_a_model_of_other_hands_cannot_take(folder: Path) -> None:
    spiky = done(folder, SICK["loss spikes"][0])
    foreign = replace(spiky, identity=spiky.identity | {"choices": {"family": "hf_llama"}})
    kept = [what.partition("=")[0] for what, _ in named(foreign)["loss spikes"].advice]
    assert kept == ["optimizer.lr"]


def test_a_story_says_where_a_run_broke_once(folder: Path) -> None:
    text = "\n".join(story(done(folder, SICK["NaN or infinity early on"][0])))
    assert text.count("non-finite at step 1") == 1
    assert "  measured: as said above\n" in text


def test_no_advice_that_is_followed_already(folder: Path) -> None:
    drifting = done(folder, SICK["output logits drift"][0])
    assert "optimizer.weight_decay=0.1" in [what for what, _ in named(drifting)["output logits drift"].advice]
    decayed = drifting.config["optimizer"] | {"weight_decay": 0.1}
    held = replace(drifting, config=drifting.config | {"optimizer": decayed})
    assert "optimizer.weight_decay=0.1" not in [what for what, _ in named(held)["output logits drift"].advice]


def test_the_story_of_a_run(folder: Path) -> None:
    lines = list(story(done(folder, SICK["stuck at the unigram floor"][0])))
    assert lines[0].startswith("nano-")
    text = "\n".join(lines)
    for part in (
        "outcome: stalled", "by depth, from the first layer to the last, at the end:", "  gradient norm ",
        "  attention entropy ", "events:", "warning: all tokens of a text have become alike",
        "symptom: stuck at the unigram floor", "  measured: ", "  try placement=pre: ",
        "  does not help: more steps alone", "peak memory",
    ):  # fmt: skip
        assert part in text, part
    for words, _ in SICK.values():
        assert list(story(done(folder, words)))
