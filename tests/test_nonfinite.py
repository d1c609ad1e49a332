"""A fault is planted; the place that the event names must be the planted one, and looking must change nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import faults
import pytest
import torch
from models import tiny
from running import copied, data, events, fit, metrics, optimizer, reads_late, same, trainer
from torch import Tensor, nn

from modernllm import checkpoint
from modernllm.batch import Batch
from modernllm.nonfinite import bundle, inquest
from modernllm.nonfinite.examine import Moment, Step, examine
from modernllm.nonfinite.place import way
from modernllm.objective import Objective
from modernllm.trainer import Trainer

SITE = "blocks.1.joins.feedforward.norm.1"
"""Where `planted` puts its fault."""
Q = "blocks.1.sublayers.attention.q.weight"
FORWARD = {
    faults.Overflow: "pow",
    faults.LogOfZero: "log",
    faults.Division: "div",
    faults.MaskedRowOfOurs: "_softmax",
}
BACKWARD = {faults.RootOfZero: ("div", "SqrtBackward0"), faults.MaskedRow: ("div", "DivBackward0")}


def planted(fault: type[faults.Fault], *overrides: str, at: int = 5) -> tuple[nn.Module, Callable[[int], Batch]]:
    """A model with a fault behind a norm, and training data that arm it at step `at`."""
    model, made = tiny("model.dropout=0.1", *overrides), fault()
    join = model.get_submodule("blocks.1.joins.feedforward")
    join.norm = nn.Sequential(join.get_submodule("norm"), made)

    def train(step: int) -> Batch:
        made.armed = step == at - 1
        return data(step)

    return model, train


def told(folder: Path, kind: str = "nonfinite") -> dict[str, Any]:
    """The one event, without what is not in every one."""
    (event,) = events(folder, kind)
    return event


# --- forward


@pytest.mark.parametrize("fault", FORWARD)
def test_a_forward_fault_is_named(fault: type[faults.Fault], tmp_path: Path) -> None:
    model, train = planted(fault)
    assert fit(trainer(tmp_path, model, train)).first_nonfinite_step == 5
    event = told(tmp_path)
    place = event["place"]
    assert (place["phase"], place["kind"], place["module"]) == ("forward", "activation", SITE)
    assert (place["operation"], place["micro_batch"]) == (FORWARD[fault], 1)
    assert not math.isfinite(event["loss"])
    assert event["message"].startswith(
        f"non-finite at step 5: loss {event['loss']}; first non-finite: forward of {SITE}"
    )


def test_the_magnitudes_that_went_in(tmp_path: Path) -> None:
    model, train = planted(faults.Overflow)
    fit(trainer(tmp_path, model, train))
    event = told(tmp_path)
    (given,) = event["place"]["inputs"]
    assert (given["shape"], given["dtype"]) == ([4, 32, 32], "float16")
    assert (given["nan"], given["positive"], given["negative"]) == (0, 0, 0)
    assert 65504**0.5 < given["largest"] < 512 * 32**0.5 * 1.2  # rms 1, so no entry is above sqrt(32) times the gain
    assert f"operation pow, inputs up to {given['largest']:.3g}" in event["where"]
    assert given["smallest"] < 50


@pytest.mark.parametrize(
    ("overrides", "changed"),
    [
        ([], {"micro_batch": 1}),
        ([], {"precision": "bf16"}),
        ([], {"precision": "fp16"}),
        ([], {"z_loss": 1e-4}),
        (["moe=topk"], {"micro_batch": 3}),
        (["moe=topk_lossfree", "head=tied"], {}),
        (["position=alibi", "attention=gqa"], {}),  # -inf where a key is hidden is no fault
        (["attention=differential"], {}),
        (["model.attention.softcap=20.0"], {"precision": "bf16"}),
    ],
    ids=str,
)
def test_it_is_named_whatever_the_model_and_the_step_are_made_of(
    overrides: list[str], changed: dict[str, Any], tmp_path: Path
) -> None:
    model, train = planted(faults.Division, *overrides)
    fit(trainer(tmp_path, model, train, **changed))
    place = told(tmp_path)["place"]
    assert (place["phase"], place["module"], place["operation"]) == ("forward", SITE, "div")


def test_the_micro_batch_is_named(tmp_path: Path) -> None:
    """The third row is the only one whose first token is 7."""
    model = tiny()

    def poison(module: nn.Module, args: tuple[Tensor], out: Tensor) -> Tensor:
        return out / (args[0][:, :1, None] != 7)

    def train(step: int) -> Batch:
        batch = data(step)
        batch.tokens[:, 0] = torch.tensor([1, 2, 7 if step == 4 else 3, 4])
        return batch

    model.get_submodule("embedding").register_forward_hook(poison)
    fit(trainer(tmp_path, model, train, micro_batch=1))
    event = told(tmp_path)
    assert (event["place"]["micro_batch"], event["place"]["module"]) == (3, "embedding")
    assert "micro-batch 3" in event["where"]


def test_logits_and_loss_are_named_as_such(tmp_path: Path) -> None:
    for name, factor, module, kind in (("logits", 1e39, "head", "logit"), ("loss", 6e37, "loss", "loss")):
        model, on = tiny(), []
        model.get_submodule("head").register_forward_hook(lambda m, a, out, on=on, f=factor: out * f if on else out)

        def train(step: int, on: list[int] = on) -> Batch:
            on[:] = [1] if step == 4 else []
            return data(step)

        fit(trainer(tmp_path / name, model, train))
        place = told(tmp_path / name)["place"]
        assert (place["kind"], place["tensor"], place["module"]) == (kind, name, module)


# --- backward


@pytest.mark.parametrize("fault", BACKWARD)
@pytest.mark.parametrize("changed", [{}, {"micro_batch": 1}, {"precision": "bf16"}], ids=str)
def test_a_backward_fault_is_named(fault: type[faults.Fault], changed: dict[str, Any], tmp_path: Path) -> None:
    model, train = planted(fault)
    fit(trainer(tmp_path, model, train, **changed))
    event = told(tmp_path)
    place = event["place"]
    assert math.isfinite(event["loss"])
    assert (place["phase"], place["kind"], place["module"]) == ("backward", "gradient", SITE)
    assert (place["operation"], place["node"]) == BACKWARD[fault]
    assert place["tensor"] == "gradient of blocks.1.joins.feedforward.norm.0.gain"
    assert "embedding.weight" in event["gradients"]
    assert "head.weight" not in event["gradients"]
    assert "down to 0" in event["where"]


def test_what_forward_left_for_a_backward_fault_is_found_too() -> None:
    model, train = planted(faults.MaskedRow, at=1)
    batch = train(0)
    found = examine(Step(Objective(model), batch, 4, "fp32", Moment.now(torch.device("cpu"), {})))
    assert [operation.name for operation in found.left][:2] == ["sub", "exp"]  # -inf - -inf; the mask is no fault
    assert found.left[0].output.nan == 4 * 32
    assert found.way[0].phase == "backward"
    assert found.way == way(found.way[-1])


def test_gradients_whose_squares_overflow_are_told_as_finite(tmp_path: Path) -> None:
    model = tiny()
    model.get_parameter(Q).register_hook(lambda gradient: gradient * 1e22)
    fit(trainer(tmp_path, model))
    event = told(tmp_path)
    (given,) = event["place"]["inputs"]
    assert (event["place"]["phase"], event["place"]["tensor"]) == ("clip", f"gradient of {Q}")
    assert given["nan"] + given["positive"] + given["negative"] == 0
    assert 1e19 < given["largest"] < 1e22


# --- parameters and the optimizer


def test_weights_that_begin_broken_are_told_so(tmp_path: Path) -> None:
    model = tiny()
    with torch.no_grad():
        model.get_parameter(Q).fill_(math.inf)
    fit(trainer(tmp_path, model))
    event = told(tmp_path)
    assert event["where"] == f"parameter {Q} (1,024 of 1,024 entries) before step 1 began, as it was initialised"


def test_weights_that_a_run_goes_on_with_broken_are_told_so(tmp_path: Path) -> None:
    model = tiny()
    fit(trainer(tmp_path, model, checkpoint_every=10))
    (path, *_) = checkpoint.complete(tmp_path / "checkpoints")
    path.unlink()
    (path,) = checkpoint.complete(tmp_path / "checkpoints")
    content = checkpoint.load(path)
    content["model"][Q][1, 2] = math.nan
    torch.save(content, path)
    assert fit(trainer(tmp_path, tiny())).first_nonfinite_step == 11
    where = told(tmp_path)["where"]
    assert where == f"parameter {Q} (1 of 1,024 entries) before step 11 began, as the run went on with it"


@pytest.mark.parametrize("choice", ["adamw", "sgd"])
@pytest.mark.parametrize(("watched", "noticed"), [({"checkpoint_every": 1}, 3), ({"eval_every": 1000}, 4)], ids=str)
@pytest.mark.parametrize("every", [1, 16])
def test_an_infinite_update_of_finite_gradients_is_the_optimizers(
    choice: str, watched: dict[str, Any], noticed: int, every: int, tmp_path: Path
) -> None:
    """The loss shows it one step later; nothing evaluates or saves such weights before."""
    model = tiny()
    made = trainer(
        tmp_path,
        model,
        optimizer=optimizer(model, choice),
        schedule=lambda step: 1e39 / 3e-3 if step == 3 else 1.0,
        **({"eval_every": 1000} | watched),
    )
    reads_late(made, every)
    assert fit(made).first_nonfinite_step == noticed
    event = told(tmp_path)
    place = event["place"]
    assert (place["phase"], place["kind"], place["operation"]) == (
        "optimizer",
        "parameter",
        type(made.update.optimizer).__name__,
    )
    assert place["tensor"] == "embedding.weight"
    row = metrics(tmp_path)[2]
    assert place["scalars"]["step"] == row["step"] == 3
    assert place["scalars"]["learning rate"] == row["lr"] == pytest.approx(1e39)
    assert 0 < place["scalars"]["gradient norm"] < row["grad_norm"]
    assert f"by {place['operation']}, step 3, learning rate 1e+39, gradient norm " in event["where"]
    steps = [checkpoint.step_of(path) for path in checkpoint.complete(tmp_path / "checkpoints")]
    assert steps == ([2, 1] if noticed == 3 else [])
    assert [row["step"] for row in metrics(tmp_path)] == list(range(1, noticed + 1))
    assert [row["step"] for row in metrics(tmp_path, "val_loss")] == [0]


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_one_weight_and_the_optimizers_state_of_it_are_named(policy: str, tmp_path: Path) -> None:
    """Nothing repairs it: a run that skips ends there too."""
    model = tiny()
    made = trainer(tmp_path, model, nonfinite=policy)

    def train(step: int) -> Batch:
        if step == 4:
            made.update.optimizer.state[model.get_parameter(Q)]["exp_avg"][3, 3] = math.inf  # type: ignore[attr-defined]
        return data(step)

    made.train = train
    assert fit(made).first_nonfinite_step == 6
    place = told(tmp_path)["place"]
    assert place["scalars"]["step"] == 5
    assert (place["phase"], place["kind"], place["tensor"]) == ("optimizer", "optimizer state", f"exp_avg of {Q}")
    assert place["inputs"][0]["nan"] + place["inputs"][0]["positive"] == 1


# --- looking changes nothing


@pytest.mark.parametrize("fault", [faults.Division, faults.RootOfZero])
@pytest.mark.parametrize("overrides", [[], ["moe=topk_lossfree"]], ids=str)
def test_a_run_that_skips_goes_on_as_if_nobody_had_looked(
    fault: type[faults.Fault], overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Dropout's stream, what a router counts, gradients: bit for bit."""
    left: list[dict[str, Tensor]] = []
    for looked in (True, False):
        if not looked:
            monkeypatch.setattr(inquest, "examine", lambda step: 1 / 0)
        model, train = planted(fault, *overrides)
        made = trainer(tmp_path / str(looked), model, train, nonfinite="skip", micro_batch=2)
        assert fit(made).first_nonfinite_step is None
        left.append(copied(made.model))
    assert same(*left)
    assert metrics(tmp_path / "True") == metrics(tmp_path / "False")
    seen, unseen = told(tmp_path / "True", "skipped"), told(tmp_path / "False", "skipped")
    assert (seen["place"]["module"], seen["step"]) == (SITE, 5)
    assert unseen["where"] == "unknown, the step could not be examined: ZeroDivisionError: division by zero"


@pytest.mark.parametrize(
    ("overrides", "changed"),
    [
        ([], {"micro_batch": 1}),
        ([], {"precision": "bf16"}),
        (["moe=topk_lossfree"], {"z_loss": 1e-3, "micro_batch": 3}),
    ],
    ids=str,
)
def test_a_step_done_again_is_that_step(overrides: list[str], changed: dict[str, Any], tmp_path: Path) -> None:
    """Dropout, precision and micro-batches included: the loss bit for bit, and a finite step has no place."""
    model = tiny("model.dropout=0.1", *overrides)
    made = trainer(tmp_path, model, **changed)
    rows = []
    made.model.train()
    for number in range(3):
        began = Moment.now(made.device, made.scale.state_dict())
        step = Step(made.inquest.objective, data(number), made.micro_batch, made.precision, began)
        found = examine(step)
        rows.append((found.place, found.loss, found.grad_norm))
        measured = made.train_step()
        made.step += 1
        assert found.loss == pytest.approx(float(measured.loss), rel=1e-6)
        assert found.grad_norm == pytest.approx(float(measured.norms.norm()), rel=1e-6)
    assert [place for place, _, _ in rows] == [None] * 3


def test_where_the_host_reads_late_the_place_is_the_same(tmp_path: Path) -> None:
    """As on a GPU: the generators are put back to the start of a step that is several steps ago."""
    found = []
    for every in (1, 16):
        model, train = planted(faults.RootOfZero)
        made = trainer(tmp_path / str(every), model, train, eval_every=1000)
        reads_late(made, every)
        assert fit(made).first_nonfinite_step == 5
        event = told(tmp_path / str(every))
        found.append({key: event[key] for key in ("loss", "gradients", "place", "where", "previous")})
    assert found[0] == found[1]


def test_what_later_updates_have_changed_is_not_guessed_at(tmp_path: Path) -> None:
    model, train = planted(faults.Division)
    made = trainer(tmp_path / "skip", model, train, nonfinite="skip", eval_every=1000)
    reads_late(made)
    fit(made)
    model, train = planted(faults.Division)
    fit(trainer(tmp_path / "continue", model, train, nonfinite="continue"))
    for folder, kind in (("skip", "skipped"), ("continue", "nonfinite")):
        event = told(tmp_path / folder, kind)
        assert event["place"] is None
        assert event["where"].startswith("unknown, later updates have changed the weights that this step began with; ")
        assert "trainer.nonfinite=stop" in event["where"]
        assert not (tmp_path / folder / "nonfinite").exists()


def test_only_the_first_of_skipped_steps_is_examined(tmp_path: Path) -> None:
    model, _ = planted(faults.Division)
    fault = model.get_submodule(SITE)

    def train(step: int) -> Batch:
        fault.armed = step in (4, 6, 7)  # type: ignore[assignment]
        return data(step)

    fit(trainer(tmp_path, model, train, nonfinite="skip"))
    skipped = events(tmp_path, "skipped")
    assert [event["step"] for event in skipped] == [5, 7, 8]
    assert ["place" in event for event in skipped] == [True, False, False]
    assert [path.name for path in (tmp_path / "nonfinite").iterdir()] == ["step-00000005.pt"]


def test_a_resumed_run_knows_that_a_skipped_step_was_examined(tmp_path: Path) -> None:
    def begun() -> Trainer:
        model, _ = planted(faults.Division)
        fault = model.get_submodule(SITE)

        def train(step: int) -> Batch:
            if step == 6 and not events(tmp_path, "resume"):
                raise KeyboardInterrupt
            fault.armed = step in (4, 7)  # type: ignore[assignment]
            return data(step)

        return trainer(tmp_path, model, train, nonfinite="skip", checkpoint_every=6)

    with pytest.raises(KeyboardInterrupt):
        fit(begun())
    fit(begun())
    skipped = events(tmp_path, "skipped")
    assert [event["step"] for event in skipped] == [5, 8]
    assert ["place" in event for event in skipped] == [True, False]
    assert [path.name for path in (tmp_path / "nonfinite").iterdir()] == ["step-00000005.pt"]


# --- what is kept


def test_the_event_repeats_the_steps_before_and_the_bundle_is_there(tmp_path: Path) -> None:
    model, train = planted(faults.Division, at=25)
    made = trainer(tmp_path, model, train, steps=30)
    fit(made)
    event = told(tmp_path)
    assert event["previous"] == [
        {key: row[key] for key in ("step", "loss", "grad_norm")} for row in metrics(tmp_path)[4:24]
    ]
    assert [row["step"] for row in event["previous"]] == list(range(5, 25))
    assert event["windows"] is None  # these are no windows of a text
    file = tmp_path / event["bundle"]["file"]
    assert event["bundle"]["megabytes"] == round(file.stat().st_size / 1e6, 1)
    kept = bundle.load(tmp_path)
    assert kept.number == bundle.load(file).number == 25
    assert same(kept.model, copied(made.model))
    assert torch.equal(kept.batch.tokens, data(24).tokens)
    assert kept.place is not None
    assert kept.place.module == SITE


def test_a_full_disk_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bundle, "save", full)
    model, train = planted(faults.Division)
    assert fit(trainer(tmp_path, model, train)).first_nonfinite_step == 5
    event = told(tmp_path)
    assert event["place"]["module"] == SITE
    assert event["bundle"] == {"file": None, "reason": "[Errno 28] No space left on device"}


def test_a_run_that_goes_on_from_before_forgets_the_event(tmp_path: Path) -> None:
    model, train = planted(faults.Division, at=12)
    fit(trainer(tmp_path, model, train, checkpoint_every=5))
    assert (tmp_path / "nonfinite" / "step-00000012.pt").exists()
    healthy, _ = planted(faults.Division)
    made: Trainer = trainer(tmp_path, healthy, checkpoint_every=5)
    assert fit(made).first_nonfinite_step is None
    assert events(tmp_path, "nonfinite") == []
    assert [event["step"] for event in events(tmp_path, "resume")] == [10]
    assert list((tmp_path / "nonfinite").iterdir()) == []
    assert [row["step"] for row in metrics(tmp_path)] == list(range(1, 21))


def test_in_fp16_a_fault_is_told_once_the_scale_cannot_be_blamed(tmp_path: Path) -> None:
    model, _ = planted(faults.RootOfZero)
    model.get_submodule(SITE).armed = True  # type: ignore[assignment]
    assert fit(trainer(tmp_path, model, precision="fp16")).first_nonfinite_step == 17
    assert [event["step"] for event in events(tmp_path, "overflow")] == list(range(1, 17))  # from 2^16 down to 1
    place = told(tmp_path)["place"]
    assert (place["phase"], place["module"], place["node"]) == ("backward", SITE, "SqrtBackward0")


def test_an_overflow_of_the_loss_scale_is_no_event(tmp_path: Path) -> None:
    model = tiny()
    model.get_parameter(Q).register_hook(lambda gradient: gradient * math.inf if scale() > 2**14 else gradient)
    made = trainer(tmp_path, model, precision="fp16")

    def scale() -> float:
        return float(made.scale.state_dict()["value"])

    assert fit(made).first_nonfinite_step is None
    assert [event["step"] for event in events(tmp_path, "overflow")] == [1, 2]
    assert events(tmp_path, "nonfinite") == []
    assert not (tmp_path / "nonfinite").exists()
