"""Telemetry in a run: when it looks, what it records, and that training does not notice."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from models import VOCAB, config, tiny
from running import copied, data, events, fit, metrics, same, silent, telemetry, trainer
from torch import Tensor, nn

from modernllm.batch import Batch
from modernllm.config.build import build
from modernllm.family.external import External
from modernllm.objective import Objective
from modernllm.runs.directory import RunDirectory, read_rows
from modernllm.runs.recorder import Recorder
from modernllm.telemetry.noise_scale import NoiseScale

QUIET = config("telemetry=none")["telemetry"]
BUSY = config("telemetry=full")["telemetry"] | {"every": 1, "probe_every": 3, "sharpness": 2}


def watched(folder: Path, node: dict[str, Any], *overrides: str, **changed: Any) -> nn.Module:
    """A model trained under this telemetry."""
    model = tiny("model.dropout=0.1", *overrides)
    made = build(node, "telemetry", model=model, steps=changed.get("steps", 20))
    fit(trainer(folder, model, telemetry=made, **changed))
    return model


@pytest.mark.parametrize(
    ("overrides", "changed"),
    [
        ((), {}),
        ((), {"micro_batch": 3, "precision": "bf16"}),
        (("moe=topk_lossfree",), {"micro_batch": 2}),
        (("position=rope_ntk_dynamic", "attention=differential"), {}),
        (("placement=post", "activation=relu"), {"precision": "fp16"}),
    ],
)
def test_bitwise_nothing_changes(overrides: tuple[str, ...], changed: dict[str, Any], tmp_path: Path) -> None:
    """Losses, norms and weights, with dropout and adaptive routers, however often it looks."""
    without = watched(tmp_path / "without", QUIET, *overrides, **changed)
    with_it = watched(tmp_path / "with", BUSY, *overrides, **changed)
    assert same(copied(without), copied(with_it))
    for key in ("grad_norm", "val_loss"):
        assert metrics(tmp_path / "without", key) == metrics(tmp_path / "with", key)
    assert not (tmp_path / "without" / "telemetry.jsonl").exists()
    assert len(telemetry(tmp_path / "with")) == 20


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the compiler's own
def test_bitwise_nothing_changes_under_compile(tmp_path: Path) -> None:
    compiled = {"compile": True, "steps": 6, "eval_every": 6}
    without = watched(tmp_path / "without", QUIET, **compiled)
    with_it = watched(tmp_path / "with", BUSY, **compiled)
    assert same(copied(without), copied(with_it))
    assert [row["step"] for row in telemetry(tmp_path / "with", "probe")] == [0, 3, 6]


def test_when_it_looks_unless_told() -> None:
    made = {steps: build(config()["telemetry"], "telemetry", model=tiny(), steps=steps) for steps in (40, 1000, 3000)}
    assert [step for step in range(1, 41) if made[40].due(step)] == list(range(1, 41))
    assert [step for step in range(41) if made[40].probe_due(step)] == [0, 40]
    assert [step for step in range(1, 1001) if made[1000].due(step)] == [1, *range(10, 1001, 10)]
    assert [step for step in range(1001) if made[1000].probe_due(step)] == list(range(0, 1001, 50))
    assert [step for step in range(3001) if made[3000].probe_due(step)] == list(range(0, 3001, 150))


def test_rows_of_a_step_and_of_a_probe(tmp_path: Path) -> None:
    watched(tmp_path, config()["telemetry"] | {"every": 7, "probe_every": 10})
    rows = telemetry(tmp_path)
    assert [row["step"] for row in rows] == [1, 7, 14, 20]
    assert rows[1]["tokens"] == metrics(tmp_path)[6]["tokens"]
    for row, step in zip(rows, (0, 6, 13, 19), strict=True):
        whole = metrics(tmp_path)[step]["grad_norm"]
        for norms in (row["grad_norm"], row["tensors"]["grad_norm"]):
            assert sum(norm**2 for norm in norms.values()) == pytest.approx(whole**2, rel=1e-4)
    assert rows[0]["memory"]["peak_mb"] > 10
    probes = telemetry(tmp_path, "probe")
    assert [row["step"] for row in probes] == [0, 10, 20]
    assert probes[2]["probe"]["loss"] < probes[0]["probe"]["loss"]
    assert not {"tensors", "memory"} & probes[0].keys()


def test_a_run_that_was_cut_is_watched_as_one_that_was_not(tmp_path: Path) -> None:
    node = config()["telemetry"] | {"every": 2, "probe_every": 5}
    watched(tmp_path / "whole", node, checkpoint_every=5)

    class Killed(Exception):
        pass

    def train(step: int) -> Batch:
        if step == 13 and (tmp_path / "cut" / "metrics.jsonl").exists():
            raise Killed
        return data(step)

    with pytest.raises(Killed):
        watched(tmp_path / "cut", node, checkpoint_every=5, train=train)
    watched(tmp_path / "cut", node, checkpoint_every=5)

    def plain(folder: Path) -> list[dict[str, Any]]:
        rows = read_rows(folder / "telemetry.jsonl")
        return [{key: value for key, value in row.items() if key != "memory"} for row in rows]

    assert plain(tmp_path / "cut") == plain(tmp_path / "whole")


class Table(nn.Module):
    """Logits of the next token from the token alone, with a backward that refuses in eval mode, as cuDNN's RNNs do."""

    def __init__(self, refuses: bool) -> None:
        super().__init__()
        self.table, self.refuses = nn.Embedding(VOCAB, VOCAB), refuses

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.table(tokens)
        if self.refuses and not self.training and logits.requires_grad:
            logits.register_hook(self.refuse)
        return logits

    @staticmethod
    def refuse(gradient: Tensor) -> Tensor:
        raise RuntimeError("backward can only be called in training mode\nand more")


@pytest.mark.parametrize("refuses", [False, True])
def test_a_module_that_cannot_bear_the_look_is_trained_all_the_same(refuses: bool, tmp_path: Path) -> None:
    sizes = {"vocab_size": VOCAB, "context_length": 32, "dim": 1, "n_layers": 1, "n_heads": 1}
    model = External(**sizes, module=lambda *sizes: Table(refuses))
    fit(trainer(tmp_path, model, optimizer=torch_sgd(model)))
    said = [event["message"] for event in events(tmp_path, "telemetry")]
    sentence = "no look inside this model: RuntimeError: backward can only be called in training mode"
    assert said == [sentence] * refuses
    assert len(telemetry(tmp_path, "probe")) == (0 if refuses else 2)
    assert [row["step"] for row in metrics(tmp_path)] == list(range(1, 21))


def torch_sgd(model: nn.Module) -> Any:
    return build(config("optimizer=sgd")["optimizer"] | {"lr": 0.1}, "optimizer", model=model)


def test_an_alarm_is_an_event_once_and_not_again_after_a_restart(tmp_path: Path) -> None:
    """An attention with enormous queries looks at one key alone."""
    node = config()["telemetry"] | {"every": 5, "probe_every": 5}

    def sharp() -> nn.Module:
        model = tiny()
        with torch.no_grad():
            model.get_parameter("blocks.1.sublayers.attention.q.weight").mul_(3e5)
        return model

    def run(steps: int) -> None:
        model = sharp()
        made = build(node, "telemetry", model=model, steps=20)
        fit(trainer(tmp_path, model, telemetry=made, steps=steps, checkpoint_every=10))

    run(10)
    first = events(tmp_path, "warning")
    assert {event["about"] for event in first} >= {"attention_collapse", "attention_logits"}
    (collapse,) = [event for event in first if event["about"] == "attention_collapse"]
    assert collapse["message"] == "attention entropy collapsed in 4 of 4 heads of layer 1"
    assert collapse["step"] == 5
    run(20)
    again = [event["about"] for event in events(tmp_path, "warning")]
    assert len(again) == len(set(again))


def test_noise_scale_of_known_gradients() -> None:
    """|g|^2 = |G|^2 + S / n at both sizes gives G and S back."""
    p = nn.Parameter(torch.zeros(2))
    noise = NoiseScale([p])
    signal, variance, small, large = 4.0, 30.0, 10, 40
    p.grad = torch.tensor([0.0, math.sqrt(signal + variance / small) * small / large * 8])
    noise.accumulated(3, small, large, torch.tensor(8.0))
    p.grad *= 100  # a later micro-batch is not looked at
    noise.accumulated(3, small, large, torch.tensor(8.0))
    found = noise.series(3, torch.tensor([math.sqrt(signal + variance / large), 0.0]))
    assert found["noise"] == pytest.approx({"signal": signal, "variance": variance}, rel=1e-5)
    assert noise.series(3, torch.zeros(2)) == {}
    noise.accumulated(4, large, large, torch.tensor(8.0))
    assert noise.series(4, torch.zeros(2)) == {}


def test_noise_scale_of_the_first_micro_batch(tmp_path: Path) -> None:
    watched(tmp_path, BUSY, "model.dropout=0.0", micro_batch=3, steps=1)
    model, batch = tiny("model.dropout=0.0"), data(0)

    def square(part: Batch) -> float:
        model.zero_grad()
        nats, _ = Objective(model)(part)
        (nats / part.n_targets).backward()
        return sum(float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None)

    part = next(batch.split(3))
    b, whole = part.n_targets, batch.n_targets
    of_part, of_whole = square(part), square(batch)
    (row,) = telemetry(tmp_path, "noise")
    assert row["noise"]["signal"] == pytest.approx((whole * of_whole - b * of_part) / (whole - b), rel=1e-3)
    assert row["noise"]["variance"] == pytest.approx((of_part - of_whole) / (1 / b - 1 / whole), rel=1e-3)


class Spy:
    """A tracker that keeps what it is given."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.rows: list[dict[str, Any]] = []

    def start(self, **said: Any) -> None: ...

    def log(self, row: dict[str, Any]) -> None:
        self.rows.append(row)

    def event(self, event: dict[str, Any]) -> None: ...

    def finish(self, summary: dict[str, Any], failed: bool) -> None: ...


def test_the_tracker_is_given_layers_and_nothing_that_is_not_finite(tmp_path: Path) -> None:
    spy = Spy()
    recorder = Recorder(RunDirectory(tmp_path), spy, silent())
    row = {"step": 3, "tokens": 9, "grad_norm": {"layer.00": math.nan, "layer.01": 2.0}, "bad": {"x": math.inf}}
    recorder.telemetry(row | {"tensors": {"grad_norm": {"w": 1.0}}})
    recorder.directory.release()
    assert spy.rows == [{"step": 3, "tokens": 9, "grad_norm": {"layer.01": 2.0}}]
    (kept,) = read_rows(tmp_path / "telemetry.jsonl")
    assert math.isnan(kept["grad_norm"]["layer.00"])
    assert kept["tensors"] == {"grad_norm": {"w": 1.0}}
