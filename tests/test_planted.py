"""Faults in places that nobody thinks of: the named place is the planted one, and to do the step again finds it too."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from models import LENGTH, VOCAB, config, made_fast, tiny
from running import copied, data, events, fit, metrics, optimizer, run, same, trainer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as recomputed

from modernllm import checkpoint
from modernllm.batch import IGNORED, Batch
from modernllm.config.build import build
from modernllm.family.external import External
from modernllm.nonfinite import bundle
from modernllm.nonfinite.examine import Step, examine
from modernllm.nonfinite.replay import Replayed, lines, replay
from modernllm.objective import Objective

CPU = torch.device("cpu")
AT = 4
JOIN = "blocks.1.joins.attention"


class Inside(nn.Module):
    """x -> fault(x) while a step is armed; `table` is a buffer that it may use."""

    def __init__(self, fault: Callable[[Inside, Tensor], Tensor]):
        super().__init__()
        self.fault, self.armed = fault, False
        self.register_buffer("table", torch.ones(32))

    def forward(self, x: Tensor) -> Tensor:
        return self.fault(self, x) if self.armed else x


class Foreign(nn.Module):
    """Tokens to logits of other hands, with something in the middle."""

    def __init__(self, middle: nn.Module):
        super().__init__()
        self.embedding, self.first, self.middle = nn.Embedding(VOCAB, 32), nn.Linear(32, 32), middle
        self.out = nn.Linear(32, VOCAB)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.out(self.middle(torch.tanh(self.first(self.embedding(tokens)))))


@dataclass
class Plant:
    """A model, what arms its fault, and what a trainer is given beside."""

    model: nn.Module
    arm: Callable[[bool], None] = lambda armed: None
    changed: dict[str, Any] = field(default_factory=dict)
    at: int = AT

    def train(self, step: int) -> Batch:
        self.arm(step == self.at - 1)
        return data(step)


def armed(inside: Inside) -> Callable[[bool], None]:
    return lambda on: setattr(inside, "armed", on)


def behind_a_norm(fault: Callable[[Inside, Tensor], Tensor], *overrides: str, **changed: Any) -> Plant:
    """In a model of ours, at JOIN.norm.1."""
    model, inside = tiny(*overrides), Inside(fault)
    join = model.get_submodule(JOIN)
    join.norm = nn.Sequential(join.get_submodule("norm"), inside)
    return Plant(model, armed(inside), changed)


def at_output(name: str, fault: Callable[[Inside, Tensor], Tensor], *overrides: str, **changed: Any) -> Plant:
    """On what a module of ours gives."""
    model, inside = tiny(*overrides), Inside(fault)
    model.get_submodule(name).register_forward_hook(lambda module, args, out: inside(out))
    return Plant(model, armed(inside), changed)


def foreign(fault: Callable[[Inside, Tensor], Tensor], table: float = 1.0) -> Plant:
    inside = Inside(fault)
    inside.table[3] = table
    model = external(Foreign(inside))
    return Plant(model, armed(inside), {"optimizer": optimizer(model)})


def external(module: nn.Module) -> External:
    return External(
        vocab_size=VOCAB, context_length=LENGTH, dim=32, n_layers=1, n_heads=1, module=lambda *sizes: module
    )


def with_weight(name: str, at: tuple[int, ...], *overrides: str) -> Plant:
    model = tiny(*overrides)
    with torch.no_grad():
        model.get_parameter(name)[at] = math.inf
    return Plant(model, at=1)


def with_position(attribute: str, value: Any, choice: str) -> Plant:
    model = tiny(choice)
    setattr(model.position, attribute, value)
    return Plant(model, at=1)


def decayed(weight_decay: float) -> Plant:
    model = tiny()
    node = config()["optimizer"] | {"lr": 1e-3, "weight_decay": weight_decay}
    return Plant(model, changed={"optimizer": build(node, "optimizer", model=model)})


def at_rate(share: float, choice: str = "adamw", **changed: Any) -> Plant:
    model = tiny()
    rates = {"schedule": lambda step: share if step == 3 else 1.0, "optimizer": optimizer(model, choice)}
    return Plant(model, changed=rates | changed)


def summed() -> Plant:
    """Gradients of 2e38 in each micro-batch: the second is one too many."""
    plant, on = Plant(tiny(), changed={"micro_batch": 1}), []
    plant.arm = lambda armed: on.__setitem__(slice(None), [1] if armed else [])
    weight = plant.model.get_parameter("blocks.1.sublayers.attention.q.weight")
    weight.register_hook(lambda gradient: torch.full_like(gradient, 2e38) if on else gradient)
    return plant


def in_backward_of_micro_batch_3() -> Plant:
    plant = at_output("embedding", lambda self, x: x + (0 * x).sqrt(), micro_batch=1)
    calls: list[int] = []
    arm = plant.arm

    def count(module: nn.Module, args: Any) -> None:
        calls.append(0)
        arm(module.training and armed_now == [True] and len(calls) == 3)

    armed_now: list[bool] = []

    def arm_step(on: bool) -> None:
        armed_now[:] = [on]
        calls.clear()

    plant.model.get_submodule("embedding").register_forward_pre_hook(count)
    plant.arm = arm_step
    return plant


def masked_first_row() -> Plant:
    """Torch's own attention with a mask that hides from the first query all that there is."""

    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(32, 2, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            hidden = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(0)
            return self.attention(x, x, x, attn_mask=hidden)[0]

    model = external(Foreign(Attention()))
    return Plant(model, changed={"optimizer": optimizer(model)}, at=1)


class Infinite(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return gradient / 0


def in_place(self: Inside, x: Tensor) -> Tensor:
    y = x * 1.0
    y[:, 3].div_(torch.zeros(32))
    return y.mul_(2.0)


def written(value: float) -> Callable[[Inside, Tensor], Tensor]:
    def write(self: Inside, x: Tensor) -> Tensor:
        y = x * 1.0
        y[:, 3, 2] = value
        return y.mul_(2.0)

    return write


def wide(self: Inside, x: Tensor) -> Tensor:
    """3.4e38 fits into float32, and bf16 rounds it to infinity; the weights make it small again."""
    large = (x / x.abs().amax()).detach() * 3.3999e38
    return x + 1e-3 * nn.functional.linear(large, 1e-38 * torch.eye(32)).float()


EXPERT = "blocks.1.sublayers.feedforward.experts.3"
MIDDLE = "module.middle"
FORWARD: dict[str, tuple[Callable[[], Plant], str, str, str]] = {
    "one expert": (lambda: at_output(EXPERT, lambda self, x: x / (0 * x), "moe=topk"), EXPERT, "div", "down to 0"),
    "loss of a router": (
        lambda: at_output("blocks.1.sublayers.feedforward.router", lambda self, x: 1e25 * x, "moe=topk"),
        "blocks.1.sublayers.feedforward",
        "pow",
        "inputs up to ",
    ),
    "z-loss": (lambda: at_output("head", lambda self, x: 1e20 * x, z_loss=1e-4), "loss", "pow", "e+20"),
    "scale of a dropout of everything": (
        lambda: behind_a_norm(lambda self, x: x * torch.zeros_like(x) * math.inf),
        f"{JOIN}.norm.1",
        "mul",
        "up to 0 and the number inf",
    ),
    "under autocast alone": (
        lambda: behind_a_norm(wide, precision="bf16"),
        f"{JOIN}.norm.1",
        "_to_copy",
        "inputs up to 3.4e+38",
    ),
    "two streams": (
        lambda: at_output("blocks.1.sublayers.feedforward", lambda self, x: x * math.inf, "placement=residual_dual"),
        "blocks.1.sublayers.feedforward",
        "mul",
        "the number inf",
    ),
    "phases of RoPE": (
        lambda: with_position("base", 1e-60, "position=rope"),
        "position",
        "pow",
        "and the number 1e-60",
    ),
    "slopes of ALiBi": (lambda: with_position("slopes", [math.inf] * 4, "position=alibi"), "position", "new_full", ""),
    "in place, on a view": (lambda: foreign(in_place), MIDDLE, "div_", "down to 0"),
    "infinity written": (lambda: foreign(written(math.inf)), MIDDLE, "fill_", ""),
    "NaN written": (lambda: foreign(written(math.nan)), MIDDLE, "fill_", ""),
    "a mask in the stream": (
        lambda: foreign(lambda self, x: (1.0 * x).masked_fill_(x > 0, -math.inf).add_(1.0)),
        "module.out",
        "addmm",
        f"beside the infinities of masked_fill_ in {MIDDLE}",
    ),
    "a buffer of +inf": (
        lambda: foreign(lambda self, x: x * self.table, math.inf),
        MIDDLE,
        "mul",
        f"beside what is not finite in {MIDDLE}.table",
    ),
    "a buffer of NaN": (
        lambda: foreign(lambda self, x: x + self.table, math.nan),
        MIDDLE,
        "add",
        f"beside what is not finite in {MIDDLE}.table",
    ),
    "a buffer of -inf, added": (
        lambda: foreign(lambda self, x: x + self.table, -math.inf),
        "module.out",
        "addmm",
        f"beside the infinities of {MIDDLE}.table",
    ),
    "a scale without gradient": (
        lambda: foreign(lambda self, x: x * (1 / (0 * x.detach().abs().amax()))),
        MIDDLE,
        "reciprocal",
        "down to 0",
    ),
    "a row that sees nothing": (masked_first_row, f"{MIDDLE}.attention", "_softmax", ""),
}
BACKWARD: dict[str, tuple[Callable[[], Plant], str, str, str]] = {
    "tied head": (
        lambda: at_output("head", lambda self, x: x + (0 * x).sqrt(), "head=tied"),
        "head",
        "div",
        "SqrtBackward0",
    ),
    "micro-batch 3": (in_backward_of_micro_batch_3, "embedding", "div", "SqrtBackward0"),
    "sum over micro-batches": (summed, "blocks.1.sublayers.attention.q", "add_", "AccumulateGrad"),
    "a function of one's own": (
        lambda: foreign(lambda self, x: Infinite.apply(x)),  # type: ignore[arg-type, return-value]
        MIDDLE,
        "div",
        "InfiniteBackward",
    ),
    "what is computed again in backward": (
        lambda: foreign(lambda self, x: recomputed(lambda y: y + (0 * y).sqrt(), x, use_reentrant=False)),
        MIDDLE,
        "div",
        "SqrtBackward0",
    ),
}


def planted(plant: Plant, folder: Path, kind: str = "nonfinite") -> dict[str, Any]:
    """The event of the run, after its step was done again: the same place."""
    ending = fit(trainer(folder, plant.model, plant.train, **plant.changed))
    (event,) = events(folder, kind)
    assert ending.first_nonfinite_step == event["step"]
    kept = bundle.load(folder)
    precision = plant.changed.get("precision", "fp32")
    kept = replace(kept, config={"trainer": {"precision": precision}, "model": {}})
    checkpoint.restore(plant.model, kept.model)
    plant.arm(plant.at == event["step"])
    objective = Objective(plant.model, plant.changed.get("z_loss", 0.0))
    again = Replayed(kept, examine(Step(objective, kept.batch, kept.rows, precision, kept.began)), CPU)
    assert again.reproduced
    told = list(lines(again))
    if event["place"]["phase"] in ("forward", "backward"):
        assert f"  {event['place']['phase']} of {event['place']['module']}" in told
        assert told[-1] in ("  loss: not finite", f"  {event['place']['tensor']}: not finite")
    return event


@pytest.mark.parametrize("name", FORWARD)
def test_forward(name: str, tmp_path: Path) -> None:
    make, module, operation, said = FORWARD[name]
    plant = make()
    event = planted(plant, tmp_path)
    place = event["place"]
    assert event["step"] == plant.at
    assert (place["phase"], place["module"], place["operation"]) == ("forward", module, operation)
    assert said in event["where"]
    before = metrics(tmp_path)[:-1]
    assert event["previous"] == [{key: row[key] for key in ("step", "loss", "grad_norm")} for row in before]


@pytest.mark.parametrize("name", BACKWARD)
def test_backward(name: str, tmp_path: Path) -> None:
    make, module, operation, node = BACKWARD[name]
    event = planted(make(), tmp_path)
    place = event["place"]
    assert math.isfinite(event["loss"])
    assert (place["phase"], place["kind"], place["module"]) == ("backward", "gradient", module)
    assert (place["operation"], place["node"]) == (operation, node)
    assert place["micro_batch"] == {"micro-batch 3": 3, "sum over micro-batches": 2}.get(name, 1)


def test_under_autocast_alone_means_that_without_it_nothing_is_wrong(tmp_path: Path) -> None:
    plant = behind_a_norm(wide)
    assert fit(trainer(tmp_path, plant.model, plant.train)).first_nonfinite_step is None


@pytest.mark.parametrize("policy", ["stop", "skip", "continue"])
def test_an_entry_that_was_infinite_from_the_start_is_no_updates_doing(policy: str, tmp_path: Path) -> None:
    """A row of the table that no batch reads: seen when the weights are looked at, and not before."""
    plant = with_weight("embedding.weight", (60, 5))

    def train(step: int) -> Batch:
        batch = data(step)
        return Batch(batch.tokens.clamp(max=59), batch.targets)

    assert fit(trainer(tmp_path, plant.model, train, nonfinite=policy)).first_nonfinite_step == 10
    (event,) = events(tmp_path, "nonfinite")
    assert event["where"] == (
        "parameter embedding.weight (1 of 1,952 entries) before step 10 began, as the run went on with it"
    )


@pytest.mark.parametrize(
    ("choice", "share"),
    [
        ("adamw", math.nan),
        ("adamw", math.inf),
        ("sgd", math.inf),
        ("lion", math.nan),
        ("muon", math.inf),
        ("adafactor", math.nan),  # which bounds a rate that is infinite
    ],
)
def test_a_rate_that_is_no_number(share: float, choice: str, tmp_path: Path) -> None:
    event = planted(at_rate(share, choice), tmp_path)
    place = event["place"]
    assert (event["step"], place["phase"], place["scalars"]["step"]) == (4, "optimizer", 3)
    assert f"learning rate {share}" in event["where"]
    assert str(event["previous"][-1]["step"]) == "3"
    assert str(metrics(tmp_path)[2]["lr"]) == str(share)


def test_a_rate_that_is_no_number_where_steps_are_skipped(tmp_path: Path) -> None:
    """Nothing repairs weights that are not finite."""
    event = planted(at_rate(math.nan, nonfinite="skip"), tmp_path)
    assert event["place"]["phase"] == "optimizer"


def test_weight_decay_beyond_all_numbers(tmp_path: Path) -> None:
    event = planted(decayed(1e44), tmp_path)
    assert (event["step"], event["place"]["phase"]) == (2, "optimizer")
    assert event["place"]["tensor"] == "blocks.0.sublayers.attention.q.weight"  # a table is not decayed
    assert event["place"]["scalars"]["weight decay"] == 1e44
    assert "weight decay 1e+44" in event["where"]


def test_a_batch_without_a_target(tmp_path: Path) -> None:
    def train(step: int) -> Batch:
        batch = data(step)
        return Batch(batch.tokens, torch.full_like(batch.tokens, IGNORED)) if step == 3 else batch

    fit(trainer(tmp_path, tiny(), train))
    (event,) = events(tmp_path, "nonfinite")
    assert (event["step"], event["place"]["module"], event["place"]["operation"]) == (4, "loss", "div")


def test_after_a_restart(tmp_path: Path) -> None:
    """The steps before are those of both parts."""

    class Killed(Exception):
        pass

    for second in (False, True):
        plant = behind_a_norm(lambda self, x: x / (0 * x), "model.dropout=0.1")
        plant.at = 15

        def train(step: int, plant: Plant = plant, second: bool = second) -> Batch:
            if step == 12 and not second:
                raise Killed
            return plant.train(step)

        made = trainer(tmp_path, plant.model, train, checkpoint_every=5)
        if second:
            assert fit(made).first_nonfinite_step == 15
        else:
            with pytest.raises(Killed):
                fit(made)
    (event,) = events(tmp_path, "nonfinite")
    assert event["place"]["module"] == f"{JOIN}.norm.1"
    assert [row["step"] for row in event["previous"]] == list(range(1, 15))


def test_what_the_event_lists(tmp_path: Path) -> None:
    """Step, rate, loss, norm, gradients, micro-batch, kind, tensor, module, operation, magnitudes, what was before."""
    event = planted(in_backward_of_micro_batch_3(), tmp_path)
    row = metrics(tmp_path)[-1]
    assert (event["step"], event["loss"], event["lr"]) == (4, row["loss"], row["lr"])
    assert str(event["grad_norm"]) == str(row["grad_norm"]) == "nan"
    assert event["gradients"] == ["embedding.weight"]
    place = event["place"]
    assert (place["micro_batch"], place["kind"], place["tensor"]) == (3, "gradient", "gradient of embedding.weight")
    assert place["rows"] == [2, 3]
    assert {"shape", "dtype", "largest", "smallest", "nan", "positive", "negative"} <= place["inputs"][0].keys()
    assert len(event["previous"]) == 3
    assert (tmp_path / event["bundle"]["file"]).exists()


class Replacing(nn.Module):
    """A table whose forward puts a new tensor where a buffer was, and counts in place."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.sick = nn.Embedding(VOCAB, VOCAB), False
        self.register_buffer("last", torch.zeros(()))
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, tokens: Tensor) -> Tensor:
        self.last = self.last + 1
        self.calls += 1
        logits = self.table(tokens)
        return logits / (0 * logits) if self.sick else logits


def test_examination_puts_replaced_buffers_back(tmp_path: Path) -> None:
    """A skipped step is examined, and the run goes on with the buffers of one that was not."""
    left = []
    for examined in (True, False):
        module = Replacing()
        torch.nn.init.zeros_(module.table.weight)
        plant = Plant(external(module), lambda on, module=module: setattr(module, "sick", on))
        made = trainer(
            tmp_path / str(examined), plant.model, plant.train, optimizer=optimizer(plant.model), nonfinite="skip"
        )
        made.examined = not examined
        fit(made)
        left.append(copied(plant.model))
    assert same(*left)


# --- whole runs


@pytest.mark.parametrize(
    ("words", "module", "operation"),
    [
        (("model.position.base=1e-60",), "position", "pow"),
        (("optimizer.weight_decay=1e44", "trainer.micro_batch=2"), None, "AdamW"),
        pytest.param(("model.position.base=1e-60", "trainer.compile=true"), "position", "pow", marks=pytest.mark.slow),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore")  # of the compiler's own
def test_a_run_is_replayed(words: tuple[str, ...], module: str | None, operation: str, tmp_path: Path) -> None:
    code, done = run(*words, "trainer.steps=6", f"out={tmp_path}")
    assert code == 4
    (event,) = events(done.path, "nonfinite")
    assert module in (None, event["place"]["module"])
    assert event["place"]["operation"] == operation
    assert len(event["windows"]) == 4
    again = replay(done.path, CPU)
    assert again.reproduced
    assert any(event["where"] in line for line in lines(again))


@pytest.mark.filterwarnings("ignore")  # theirs
def test_the_rotary_table_of_a_model_of_other_hands(tmp_path: Path) -> None:
    model = made_fast(config("family=hf_llama"))
    name = "module.llama.model.rotary_emb"
    model.get_submodule(name).inv_freq[0] = math.inf  # type: ignore[index]
    event = planted(Plant(model, changed={"optimizer": optimizer(model)}, at=1), tmp_path)
    assert event["place"]["module"] == name
    assert f"beside what is not finite in {name}.inv_freq" in event["where"]
