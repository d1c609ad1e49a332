"""The loop: what a step does to the weights, what it records, and that nothing else has a say in it."""

from __future__ import annotations

import errno
import json
import math
import os
import signal
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from models import LENGTH, VOCAB, tiny, windows
from processes import PATIENCE
from running import (
    SMALL,
    TRAIN,
    copied,
    data,
    events,
    fit,
    metrics,
    optimizer,
    prepare,
    reads_late,
    run,
    run_exactly,
    same,
    telemetry,
    trainer,
)  # fmt: skip
from torch import Tensor, nn

from modernllm import Run, checkpoint
from modernllm.batch import IGNORED, Batch
from modernllm.config.tree import CONFIG_DIR, read_tree
from modernllm.evaluation import evaluate
from modernllm.generate import generate
from modernllm.objective import Objective
from modernllm.optimizer import SGD
from modernllm.trainer import Trainer

OPTIMIZERS = list(read_tree([CONFIG_DIR])["optimizer"])


class Known(nn.Module):
    """Two output tokens; the loss at target 0 is `nats` of the input token, the gradient `scale` (p - 1)."""

    def __init__(self, nats: list[float], scale: float = 1.0):
        super().__init__()
        self.scale = scale
        self.shift = nn.Parameter(torch.zeros(2))
        # -log softmax([0, z])[0] = log(1 + e^z)
        self.register_buffer("z", torch.tensor([math.log(math.expm1(n)) for n in nats], dtype=torch.float64))

    def forward(self, batch: Batch, context: object = None) -> Tensor:
        z = self.z[batch.tokens]
        return torch.stack((torch.zeros_like(z), z), -1) + self.scale * self.shift


def known_batch(tokens: list[list[int]]) -> Batch:
    """Rows of input tokens, all with target 0, filled up with ignored positions."""
    length = max(map(len, tokens))
    ids = torch.tensor([row + [0] * (length - len(row)) for row in tokens])
    targets = torch.tensor([[0] * len(row) + [IGNORED] * (length - len(row)) for row in tokens])
    return Batch(ids, targets)


def masked(counts: list[int]) -> Batch:
    """Rows of which only the first `counts` positions have a target."""
    batch = windows(rows=len(counts))
    assert batch.targets is not None
    kept = torch.arange(LENGTH) < torch.tensor(counts)[:, None]
    return Batch(batch.tokens, batch.targets.where(kept, IGNORED))


def one_step(
    folder: Path, model: nn.Module, batch: Batch, lr: float = 1.0, clip: float = math.inf, **changed: Any
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """One step of plain gradient descent: its row and the weights after it."""
    made = trainer(
        folder, model, lambda step: batch, optimizer=SGD(model, lr=lr, momentum=0.0, weight_decay=0.0),
        steps=1, clip=clip, batch_size=len(batch.tokens), schedule=lambda step: 1.0, eval_every=1,
        validation=[batch], **changed,
    )  # fmt: skip
    fit(made)
    (row,) = metrics(folder)
    return row, copied(model)


# --- one step


@pytest.mark.parametrize("micro_batch", [1, 2, 3, 9])
def test_the_cut_into_micro_batches_changes_nothing(micro_batch: int, tmp_path: Path) -> None:
    """F-27: the mean over all targets of the step, not the mean of the means. F-29: one that holds more than the batch
    is the batch.
    """
    batch = masked([30, 2, 10, 6])
    whole, weights = one_step(tmp_path / "whole", tiny(), batch)
    cut, other = one_step(tmp_path / "cut", tiny(), batch, micro_batch=micro_batch)
    assert max(float((weights[name] - other[name]).abs().max()) for name in weights) < 1e-6
    assert max(float((weights[name] - value).abs().max()) for name, value in copied(tiny()).items()) > 1e-2
    assert cut["loss"] == pytest.approx(whole["loss"], abs=1e-6)
    assert cut["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-5)
    with torch.no_grad():
        nats, _ = Objective(tiny())(batch)
    assert whole["loss"] == pytest.approx(float(nats) / 48, abs=1e-6)


def test_a_micro_batch_without_targets_has_no_effect(tmp_path: Path) -> None:
    batch = masked([30, 0, 10, 6])
    kept = Batch(*(part[[0, 2, 3]] for part in (batch.tokens, batch.targets) if part is not None))
    row, weights = one_step(tmp_path / "a", tiny(), batch, micro_batch=1)
    other, without = one_step(tmp_path / "b", tiny(), kept)
    assert max(float((weights[name] - without[name]).abs().max()) for name in weights) < 1e-6
    assert row["loss"] == pytest.approx(other["loss"], abs=1e-6)


def test_the_last_micro_batch_is_what_is_left_of_the_step(tmp_path: Path) -> None:
    """F-29: 7 rows by 4 are 4 and 3 in every step, each weighted by its targets; nothing is left for the next step."""
    rows: list[int] = []
    model = Known([1.0, 2.0])
    model.register_forward_pre_hook(lambda module, args: rows.append(len(args[0].tokens)) if module.training else None)
    batch = known_batch([[0], [0], [0], [0], [1], [1], [1]])
    made = trainer(
        tmp_path, model, lambda step: batch, micro_batch=4, batch_size=7, steps=2, eval_every=2, validation=[batch],
        optimizer=SGD(model, lr=0.0, momentum=0.0, weight_decay=0.0),
    )  # fmt: skip
    fit(made)
    assert rows == [4, 3, 4, 3]
    assert [row["tokens"] for row in metrics(tmp_path)] == [7, 14]
    assert [row["loss"] for row in metrics(tmp_path)] == pytest.approx([10 / 7] * 2, abs=1e-6)


@pytest.mark.parametrize(
    ("rows", "loss"),
    [([[0], [1], [2], [3]], 3.0), ([[0], [1], [2], [3] * 5], 4.5), ([[0] * 9, [3]], 1.5)],
)
def test_the_logged_loss_is_weighted_by_tokens(rows: list[list[int]], loss: float, tmp_path: Path) -> None:
    """F-88: micro-batches of losses 1, 2, 3 and 6: neither the last nor a mean of means."""
    row, _ = one_step(tmp_path, Known([1.0, 2.0, 3.0, 6.0]), known_batch(rows), micro_batch=1)
    assert row["loss"] == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize(("clip", "clipped", "moved"), [(1.0, True, 1.0), (math.inf, False, 3.7), (4.0, False, 3.7)])
def test_the_logged_norm_is_that_before_clipping(clip: float, clipped: bool, moved: float, tmp_path: Path) -> None:
    """F-34, on a gradient of norm 3.7: at p = 1/2 it is scale (1/2, -1/2)."""
    model = Known([math.log(2)], scale=3.7 * math.sqrt(2))
    row, weights = one_step(tmp_path, model, known_batch([[0, 0]]), clip=clip)
    assert row["grad_norm"] == pytest.approx(3.7, rel=1e-6)
    assert row["clipped"] is clipped
    assert float(weights["shift"].norm()) == pytest.approx(moved, rel=1e-5)


def test_all_gradients_are_clipped_together(tmp_path: Path) -> None:
    """By one factor: the step has the direction of the unclipped one, and the length that was asked for."""
    before, batch = copied(tiny()), data(0)
    whole, free = one_step(tmp_path / "free", tiny(), batch)
    row, clipped = one_step(tmp_path / "clipped", tiny(), batch, clip=0.25)
    steps = {name: before[name] - clipped[name] for name, _ in tiny().named_parameters()}
    assert row["grad_norm"] == pytest.approx(whole["grad_norm"], rel=1e-6)
    assert math.sqrt(sum(float(step.square().sum()) for step in steps.values())) == pytest.approx(0.25, rel=1e-4)
    for name, step in steps.items():
        torch.testing.assert_close(step, (before[name] - free[name]) * 0.25 / row["grad_norm"], rtol=0, atol=1e-6)


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_the_norms_of_the_layers_add_up_and_a_tied_weight_counts_once(head: str, tmp_path: Path) -> None:
    model = tiny(f"head={head}")
    nats, _ = Objective(model)(data(0))
    (nats / data(0).n_targets).backward()
    whole = math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None))
    fit(trainer(tmp_path, tiny(f"head={head}"), steps=1))
    (row,), (layers,) = metrics(tmp_path), telemetry(tmp_path)
    parts = ["embedding", "layer.00", "layer.01", "readout", *(["head"] if head == "untied" else [])]
    assert list(layers["grad_norm"]) == parts
    assert row["grad_norm"] == pytest.approx(whole, rel=1e-5)
    assert sum(norm**2 for norm in layers["grad_norm"].values()) == pytest.approx(row["grad_norm"] ** 2, rel=1e-5)


def test_a_row_a_step_and_what_it_says(tmp_path: Path) -> None:
    fit(trainer(tmp_path, steps=20, eval_every=8, every=5))
    rows = metrics(tmp_path)
    assert [row["step"] for row in rows] == list(range(1, 21))
    assert [set(row) for row in rows] == [{"step", "tokens", "loss", "grad_norm", "clipped", "lr"}] * 20
    assert [row["tokens"] for row in rows] == [step * 4 * LENGTH for step in range(1, 21)]
    assert rows[1]["lr"] == max(row["lr"] for row in rows) == 3e-3  # a tenth of the steps is warm-up
    assert rows[-1]["lr"] == pytest.approx(3e-4)
    assert [row["step"] for row in metrics(tmp_path, "val_loss")] == [0, 8, 16, 20]
    assert [row["step"] for row in telemetry(tmp_path)] == [1, 5, 10, 15, 20]


def test_it_learns_and_bf16_runs(tmp_path: Path) -> None:
    losses = {}
    for precision in ("fp32", "bf16"):
        made = trainer(tmp_path / precision, tiny(), lambda step: data(0), precision=precision)
        assert fit(made).step == 20
        losses[precision] = [row["loss"] for row in metrics(tmp_path / precision)]
        assert {p.dtype for p in made.model.parameters()} == {torch.float32}
    for wide, narrow in zip(losses["fp32"], losses["bf16"], strict=True):
        assert narrow == pytest.approx(wide, rel=0.02)
    assert losses["fp32"] != losses["bf16"]
    assert losses["fp32"][-1] < losses["fp32"][0] - 1


# --- non-finite


def poisoned(
    folder: Path, at: int, value: float, choice: str = "adamw", **changed: Any
) -> tuple[Trainer, dict[int, dict[str, Tensor]]]:
    """A trainer in which one element of a gradient is `value` at step `at`; the weights before each step."""
    model, seen = tiny(), {}

    def train(step: int) -> Batch:
        seen[step] = copied(model)
        return data(step)

    def poison(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        if max(seen) == at - 1:
            gradient.view(-1)[3] = value
        return gradient

    model.get_parameter("blocks.1.sublayers.attention.q.weight").register_hook(poison)
    return trainer(folder, model, train, optimizer=optimizer(model, choice), **changed), seen


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("micro_batch", [None, 1])
def test_a_poisoned_step_is_not_taken(value: float, micro_batch: int | None, tmp_path: Path) -> None:
    """F-35: the weights stay those of step 2, the event says where, and the run ends there."""
    made, seen = poisoned(tmp_path, 3, value, micro_batch=micro_batch)
    ending = fit(made)
    assert (ending.step, ending.first_nonfinite_step, ending.interrupted_by) == (3, 3, None)
    assert same(copied(made.model), seen[2])
    assert not same(seen[2], seen[1])
    rows = metrics(tmp_path)
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert [math.isfinite(row["grad_norm"]) for row in rows] == [True, True, False]
    assert math.isfinite(rows[2]["loss"])
    (event,) = events(tmp_path, "nonfinite")
    assert event["step"] == 3
    assert event["gradients"] == ["blocks.1.sublayers.attention.q.weight"]
    assert "non-finite at step 3: loss" in event["message"]
    assert "gradients of blocks.1.sublayers.attention.q.weight are not finite" in event["message"]


@pytest.mark.parametrize("choice", OPTIMIZERS)
def test_no_optimizer_takes_a_poisoned_step(choice: str, tmp_path: Path) -> None:
    made, seen = poisoned(tmp_path, 3, math.nan, choice=choice, checkpoint_every=1)
    assert fit(made).first_nonfinite_step == 3
    assert same(copied(made.model), seen[2])
    assert not same(seen[2], seen[1])
    assert [path.name for path in checkpoint.complete(tmp_path / "checkpoints")] == [
        "step-00000002.pt", "step-00000001.pt",
    ]  # fmt: skip


def test_checkpoints_before_a_poisoned_step_stay_and_a_resumed_run_starts_from_finite_weights(
    tmp_path: Path,
) -> None:
    """F-37: poison at 12, saved every 5."""
    made, seen = poisoned(tmp_path, 12, math.nan, checkpoint_every=5, eval_every=6)
    fit(made)
    folder = tmp_path / "checkpoints"
    assert [path.name for path in checkpoint.complete(folder)] == ["step-00000010.pt", "step-00000005.pt"]
    for step in (5, 10):
        content = checkpoint.load(folder / f"step-{step:08d}.pt")
        assert same(content["model"], seen[step])
        assert all(value.isfinite().all() for value in content["model"].values())
    assert [row["step"] for row in metrics(tmp_path, "val_loss")] == [0, 6]
    again = trainer(tmp_path, tiny())
    again.resume()
    again.recorder.directory.release()
    assert again.step == 10
    assert same(copied(again.model), seen[10])


def test_poison_in_the_first_step_leaves_no_checkpoint(tmp_path: Path) -> None:
    made, seen = poisoned(tmp_path, 1, math.nan, checkpoint_every=1)
    assert fit(made).first_nonfinite_step == 1
    assert same(copied(made.model), seen[0])
    assert checkpoint.complete(tmp_path / "checkpoints") == []


def test_where_the_host_reads_late_the_latch_holds_the_weights(tmp_path: Path) -> None:
    """As on a GPU: steps after the poisoned one are done but change nothing, and are not recorded."""
    made, seen = poisoned(tmp_path, 3, math.nan, eval_every=8)
    reads_late(made)
    assert fit(made).first_nonfinite_step == 3
    assert len(seen) == 8
    assert same(copied(made.model), seen[2])
    assert [row["step"] for row in metrics(tmp_path)] == [1, 2, 3]


def test_a_signal_while_the_host_reads_late_saves_no_poisoned_step(tmp_path: Path) -> None:
    made, _ = poisoned(tmp_path, 3, math.nan, eval_every=1000)
    reads_late(made)
    train = made.train

    def signalled(step: int) -> Batch:
        if step == 5:
            os.kill(os.getpid(), signal.SIGINT)
        return train(step)

    made.train = signalled
    ending = fit(made)
    assert (ending.step, ending.first_nonfinite_step, ending.interrupted_by) == (3, 3, None)
    assert [row["step"] for row in metrics(tmp_path)] == [1, 2, 3]
    assert checkpoint.complete(tmp_path / "checkpoints") == []


def test_a_poisoned_step_may_be_skipped(tmp_path: Path) -> None:
    """The rest of the run is what it is without that step's update; the row and an event say so."""
    made, seen = poisoned(tmp_path, 3, math.nan, nonfinite="skip", micro_batch=1)
    ending = fit(made)
    assert (ending.step, ending.first_nonfinite_step) == (20, None)
    assert same(seen[3], seen[2])
    assert not same(seen[4], seen[3])
    assert all(value.isfinite().all() for value in copied(made.model).values())
    assert [row["step"] for row in metrics(tmp_path, "skipped")] == [3]
    (event,) = events(tmp_path, "skipped")
    assert (event["step"], event["gradients"]) == (3, ["blocks.1.sublayers.attention.q.weight"])
    assert "are not finite; first non-finite: backward of blocks.1.sublayers.attention.q" in event["message"]
    assert event["message"].endswith("; skipped")
    assert checkpoint.complete(tmp_path / "checkpoints")[0].name == "step-00000020.pt"


def test_a_poisoned_step_may_be_taken_but_never_saved(tmp_path: Path) -> None:
    made, seen = poisoned(tmp_path, 7, math.nan, nonfinite="continue", checkpoint_every=5)
    ending = fit(made)
    assert (ending.step, ending.first_nonfinite_step) == (20, 7)
    assert seen[7]["embedding.weight"].isnan().all()  # clipping by a norm that is NaN spreads it
    assert [event["step"] for event in events(tmp_path, "nonfinite")] == [7]
    assert [row["step"] for row in metrics(tmp_path)] == list(range(1, 21))
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-00000005.pt"]


def test_weights_that_a_run_went_on_with_are_never_the_best(tmp_path: Path) -> None:
    """F-37: an infinite gradient breaks the one weight that it is of, and validation need not read that."""

    def unread(batch: Batch) -> Batch:
        """Without the last token of the vocabulary."""
        assert batch.targets is not None
        return Batch(batch.tokens.clamp(max=VOCAB - 2), batch.targets.clamp(max=VOCAB - 2))

    model, now = tiny(), [0]

    def train(step: int) -> Batch:
        now[0] = step
        return unread(data(step))

    def poison(gradient: Tensor) -> Tensor:
        gradient = gradient.clone()
        gradient[VOCAB - 1, 3] += math.inf if now[0] == 6 else 0.0
        return gradient

    model.get_parameter("embedding.weight").register_hook(poison)
    validation = [unread(windows(rows=8, seed=7))]
    fit(trainer(tmp_path, model, train, validation=validation, nonfinite="continue", eval_every=2))
    losses = [row["val_loss"] for row in metrics(tmp_path, "val_loss")]
    assert losses == sorted(losses, reverse=True)  # finite, and better every time
    best = safetensors.torch.load_file(tmp_path / "checkpoints" / "best.safetensors")
    assert all(bool(weight.isfinite().all()) for weight in best.values())


def test_an_overflow_of_the_loss_scale_is_skipped_and_kept(tmp_path: Path) -> None:
    """F-42: the scale is halved, the step left out, and both survive a resume."""
    made, seen = poisoned(tmp_path, 3, math.inf, precision="fp16", checkpoint_every=5)
    assert fit(made).first_nonfinite_step is None
    assert same(seen[3], seen[2])
    assert (float(made.scale.value), float(made.scale.calm)) == (2.0**15, 17.0)
    assert [event["step"] for event in events(tmp_path, "overflow")] == [3]
    assert [row["step"] for row in metrics(tmp_path, "overflowed")] == [3]
    assert metrics(tmp_path, "skipped") == []
    again = trainer(tmp_path, tiny(), precision="fp16")
    again.resume()
    again.recorder.directory.release()
    assert (float(again.scale.value), float(again.scale.calm)) == (2.0**15, 17.0)


def test_the_best_and_the_last_weights_are_kept_by_themselves(tmp_path: Path) -> None:
    """The best is not the last where training goes wrong in the end."""
    model, seen = tiny("head=tied"), {}

    def train(step: int) -> Batch:
        seen[step] = copied(model)
        return data(0) if step < 12 else data(step)

    made = trainer(tmp_path, model, train, validation=[data(0)], eval_every=4, schedule=lambda step: 10.0)
    fit(made)
    rows = metrics(tmp_path, "val_loss")[1:]
    best = min(rows, key=lambda row: row["val_loss"])["step"]
    assert 4 <= best < 20
    for name, expected in (("best", seen[best]), ("final", copied(model))):
        kept = tiny("head=tied", seed=1)
        safetensors.torch.load_model(kept, tmp_path / "checkpoints" / f"{name}.safetensors")  # as other programs do
        assert same(copied(kept), expected)


def test_a_resumed_run_knows_its_best(tmp_path: Path) -> None:
    """Weights that are worse than those of before it was killed do not take their place."""

    def train(step: int) -> Batch:
        if step == 17 and not events(tmp_path, "resume"):
            raise Killed
        return data(0) if step < 12 else data(step)

    parts = {"validation": [data(0)], "eval_every": 4, "checkpoint_every": 4, "schedule": lambda step: 10.0}
    with pytest.raises(Killed):
        fit(trainer(tmp_path, tiny(), train, **parts))
    best = (tmp_path / "checkpoints" / "best.safetensors").read_bytes()
    assert fit(trainer(tmp_path, tiny(), train, **parts)).step == 20
    losses = [row["val_loss"] for row in metrics(tmp_path, "val_loss")]
    assert losses[-1] > min(losses[1:-1])
    assert (tmp_path / "checkpoints" / "best.safetensors").read_bytes() == best


# --- what must not change training


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """The rows and the last weights of 20 steps with dropout, evaluated at the end only."""
    folder = tmp_path_factory.mktemp("undisturbed")
    made = trainer(folder, eval_every=1000, every=1000)
    fit(made)
    return metrics(folder), copied(made.model)


@pytest.mark.parametrize(
    "watched",
    [
        {"eval_every": 5},
        {"eval_every": 1, "checkpoint_every": 3, "every": 1},
        {"eval_every": 50, "checkpoint_every": 3},
        {"every": 100, "validation": [windows(rows=1, seed=i) for i in range(3)]},
    ],
    ids=str,
)
def test_watching_changes_nothing(
    watched: dict[str, Any], tmp_path: Path, undisturbed: tuple[list[dict[str, Any]], dict[str, Tensor]]
) -> None:
    """F-92, with dropout: losses, norms and weights bit for bit."""
    made = trainer(tmp_path, **watched)
    fit(made)
    assert metrics(tmp_path) == undisturbed[0]
    assert same(copied(made.model), undisturbed[1])


def test_sampling_changes_nothing(tmp_path: Path, undisturbed: tuple[list[dict[str, Any]], dict[str, Tensor]]) -> None:
    model, written = tiny("model.dropout=0.1"), []

    def train(step: int) -> Batch:
        written.append(generate(model, torch.zeros(1, 1, dtype=torch.long), 4, seed=step))
        return data(step)

    fit(trainer(tmp_path, model, train, eval_every=1000))
    assert len({tuple(tokens[0].tolist()) for tokens in written}) > 10
    assert metrics(tmp_path) == undisturbed[0]
    assert same(copied(model), undisturbed[1])


@pytest.mark.parametrize("drawn", [1, 64])
def test_random_numbers_drawn_before_change_nothing(
    drawn: int, tmp_path: Path, undisturbed: tuple[list[dict[str, Any]], dict[str, Tensor]]
) -> None:
    """F-90: dropout has a stream of its own, seeded by the run."""
    torch.rand(drawn)
    fit(trainer(tmp_path))
    assert metrics(tmp_path) == undisturbed[0]
    fit(trainer(tmp_path / "seed", seed=1))
    assert metrics(tmp_path / "seed")[0]["loss"] != undisturbed[0][0]["loss"]


VARIANTS = [
    [],
    ["norm=layernorm", "placement=post"],
    ["position=learned", "activation=gelu"],
    ["attention=gqa", "head=tied", "model.bias=true"],
    ["block=parallel", "embedding=scaled", "init=gpt2", "model.dropout=0.5"],
    ["model.n_layers=1", "model.dim=16", "trainer.micro_batch=1"],
]


def test_every_variant_sees_the_same_batches_and_seeds_see_others() -> None:
    """F-91 and F-89."""
    first, *others = [prepare(*variant) for variant in VARIANTS]
    batches = [first.windows(step) for step in range(50)]
    for other in others:
        for step, batch in enumerate(batches):
            assert torch.equal(other.windows(step).tokens, batch.tokens)
        assert other.identity["validation"] == first.identity["validation"]
        assert other.run_id != first.run_id
    mine, theirs = copied(first.model), copied(others[0].model)
    assert sum(torch.equal(mine[name], theirs[name]) for name in mine.keys() & theirs.keys()) > 15
    seeded = prepare("seed=1")
    assert not any(torch.equal(seeded.windows(step).tokens, batch.tokens) for step, batch in enumerate(batches))
    assert not any(torch.equal(copied(seeded.model)[name], value) for name, value in mine.items() if value.ndim > 1)
    assert seeded.identity["validation"] == first.identity["validation"]


def test_batches_do_not_depend_on_the_cut(tmp_path: Path) -> None:
    """As the model sees them: micro-batches are slices of one global batch."""
    seen: dict[int | None, list[Tensor]] = {}
    for micro_batch in (None, 1, 3):
        model, rows = tiny(), []
        model.register_forward_pre_hook(lambda _, args, rows=rows: rows.extend(args[0].tokens.clone()))
        fit(trainer(tmp_path / str(micro_batch), model, micro_batch=micro_batch, steps=5, eval_every=1000))
        seen[micro_batch] = rows
    assert len(seen[None]) == 16 + 5 * 4 + 16  # evaluated and probed before and after
    assert all(torch.equal(torch.stack(rows), torch.stack(seen[None])) for rows in seen.values())


def test_seeds_give_other_losses(tmp_path: Path) -> None:
    losses = {}
    for seed in (0, 1, 2):
        _, done = run("trainer.steps=3", f"seed={seed}", f"out={tmp_path}")
        losses[tuple(done.losses)] = done.run_id
    assert len(losses) == len(set(losses.values())) == 3


# --- evaluation


def test_validation_loss_is_weighted_by_tokens() -> None:
    """F-101: 2 nats at one target and 90 at nine are 9.2 a token, not 6."""
    model = Known([2.0, 10.0])
    batches = [known_batch([[0]]), known_batch([[1] * 5, [1] * 4])]
    loss = evaluate(model, batches, torch.tensor([2, 0]), nullcontext())
    assert loss.nats_per_token == pytest.approx(9.2, abs=1e-6)
    assert loss.bits_per_byte == pytest.approx(92 / math.log(2) / 20, abs=1e-6)


def test_nothing_to_evaluate_is_an_error() -> None:
    batch = windows(rows=2)
    ignored = Batch(batch.tokens, torch.full_like(batch.tokens, IGNORED))
    for batches in ([], [ignored]):
        with pytest.raises(ValueError, match="there is nothing to evaluate: no position of these batches has a target"):
            evaluate(tiny(), batches, torch.ones(VOCAB, dtype=torch.long), nullcontext())


def test_validation_loss_does_not_depend_on_the_batching() -> None:
    model, whole = tiny("model.dropout=0.5").train(), windows(rows=11)
    losses = [
        evaluate(model, whole.split(size), torch.ones(VOCAB, dtype=torch.long), nullcontext()).nats_per_token
        for size in (1, 3, 8, 11, 11)
    ]
    assert losses == pytest.approx([losses[0]] * 5, abs=1e-6)
    assert losses[3] == losses[4]
    assert model.training


# --- checkpoints and going on


class Killed(Exception):
    pass


def straight(folder: Path, choice: str = "adamw", **changed: Any) -> Trainer:
    model = tiny("model.dropout=0.1")
    made = trainer(folder, model, optimizer=optimizer(model, choice), micro_batch=3, eval_every=4, every=3, **changed)
    fit(made)
    return made


def killed_at(step: int, folder: Path, **changed: Any) -> None:
    """The same, ended by an exception before step + 1 is done."""

    def train(now: int) -> Batch:
        if now == step and (folder / "metrics.jsonl").exists():
            raise Killed
        return data(now)

    with pytest.raises(Killed):
        straight(folder, train=train, **changed)


def everything(folder: Path) -> list[dict[str, Any]]:
    return metrics(folder, "step")


@pytest.mark.parametrize("kills", [[1], [5], [7], [20 - 1], [3, 4, 7, 8, 13, 16]], ids=str)
def test_a_killed_run_goes_on_as_if_nothing_had_happened(kills: list[int], tmp_path: Path) -> None:
    """F-41, F-77, F-84: dropout, micro-batches, every row once, in order and bit for bit, also before the first
    checkpoint, and by the record alone.
    """
    whole = straight(tmp_path / "whole", checkpoint_every=5)
    folder = tmp_path / "killed"
    for step in kills:
        killed_at(step, folder, checkpoint_every=5)
        assert max((row["step"] for row in metrics(folder)), default=0) <= step  # what was not read back is lost
    for _ in range(2):  # the second finds all steps done: killed before the status said so
        resumed = straight(folder, checkpoint_every=5)
        assert everything(folder) == everything(tmp_path / "whole")
        assert same(copied(resumed.model), copied(whole.model))
    assert events(folder, "resume")[-1]["step"] == 20
    (last,) = events(folder, "resume")[-2:-1]
    assert last["step"] == 5 * (kills[-1] // 5)
    assert f"resumed after step {last['step']}" in last["message"]


@pytest.mark.parametrize(
    ("key", "value"), [*(("choice", choice) for choice in OPTIMIZERS), ("precision", "bf16"), ("precision", "fp16")]
)
def test_every_optimizer_and_precision_goes_on_where_it_was(key: str, value: str, tmp_path: Path) -> None:
    asked: dict[str, Any] = {key: value}
    whole = straight(tmp_path / "whole", **asked)
    killed_at(13, tmp_path / "killed", **asked, checkpoint_every=5)
    resumed = straight(tmp_path / "killed", **asked, checkpoint_every=5)
    assert everything(tmp_path / "killed") == everything(tmp_path / "whole")
    assert same(copied(resumed.model), copied(whole.model))


@pytest.mark.parametrize("at", [0, 6])
def test_a_signal_ends_the_step_and_keeps_it(at: int, tmp_path: Path) -> None:
    whole = straight(tmp_path / "whole")

    def train(step: int) -> Batch:
        if step == at and (tmp_path / "run" / "metrics.jsonl").exists():
            os.kill(os.getpid(), signal.SIGINT)
        return data(step)

    before = signal.getsignal(signal.SIGINT)
    made = trainer(tmp_path / "run", train=train, micro_batch=3, eval_every=4, every=3)
    ending = fit(made)
    assert (ending.step, ending.interrupted_by) == (at + 1, signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
    assert [path.name for path in checkpoint.complete(tmp_path / "run" / "checkpoints")] == [f"step-{at + 1:08d}.pt"]
    resumed = straight(tmp_path / "run")
    assert everything(tmp_path / "run") == everything(tmp_path / "whole")
    assert same(copied(resumed.model), copied(whole.model))


def test_sigterm_ends_a_run_as_interrupted(tmp_path: Path) -> None:
    """F-86: with a checkpoint, the exit code of a shell, and no outcome."""
    with pytest.MonkeyPatch.context() as patch:
        step = Trainer.train_step
        patch.setattr(Trainer, "train_step", lambda self: (os.kill(os.getpid(), signal.SIGTERM), step(self))[1])
        code, done = run("trainer.steps=5", f"out={tmp_path}")
    assert (code, done.word, done.outcome) == (128 + signal.SIGTERM, "interrupted", None)
    assert (done.status["step"], done.status["signal"]) == (1, signal.SIGTERM)
    assert [path.name for path in checkpoint.complete(done.path / "checkpoints")] == ["step-00000001.pt"]
    assert math.isnan(done.val_loss)


def test_a_signal_in_the_first_evaluation_leaves_it_recorded_once(tmp_path: Path) -> None:
    model = tiny("model.dropout=0.1")

    def once(*_: object) -> None:
        handle.remove()
        os.kill(os.getpid(), signal.SIGTERM)

    handle = model.register_forward_pre_hook(once)
    ending = fit(trainer(tmp_path, model))
    assert (ending.step, ending.interrupted_by) == (0, signal.SIGTERM)
    fit(trainer(tmp_path))
    assert [row["step"] for row in metrics(tmp_path, "val_loss")] == [0, 10, 20]


def test_a_second_signal_ends_at_once(tmp_path: Path) -> None:
    def train(step: int) -> Batch:
        if step == 2:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
        return data(step)

    with pytest.raises(KeyboardInterrupt):
        fit(trainer(tmp_path, train=train))
    assert not checkpoint.complete(tmp_path / "checkpoints")


def test_a_truncated_checkpoint_is_passed_over_and_said(tmp_path: Path) -> None:
    """F-44."""
    whole = straight(tmp_path / "whole", checkpoint_every=5)
    folder = tmp_path / "run"
    killed_at(13, folder, checkpoint_every=5)
    newest, older = checkpoint.complete(folder / "checkpoints")
    newest.write_bytes(newest.read_bytes()[: newest.stat().st_size // 2])
    resumed = straight(folder, checkpoint_every=5)
    (event,) = events(folder, "checkpoint")
    assert event["message"].startswith(f"checkpoint {newest.name} cannot be read")
    assert events(folder, "resume")[0]["step"] == 5
    assert older.name == "step-00000005.pt"
    assert everything(folder) == everything(tmp_path / "whole")
    assert same(copied(resumed.model), copied(whole.model))


def test_a_checkpoint_of_which_a_bit_has_changed_is_passed_over(tmp_path: Path) -> None:
    """torch.load would give the weights that were not saved, and say nothing."""
    kept = torch.arange(100.0)
    checkpoint.save(tmp_path, 1, {"x": kept})
    path = checkpoint.save(tmp_path, 2, {"x": kept})
    written = bytearray(path.read_bytes())
    written[written.index(kept.numpy().tobytes()) + 200] ^= 1
    path.write_bytes(written)
    content, passed = checkpoint.load_newest(tmp_path)
    assert content is not None
    assert content["step"] == 1
    assert passed == ["checkpoint step-00000002.pt cannot be read (ValueError), falling back"]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_what_lies_in_the_place_of_a_checkpoint_is_passed_over(make: Any, tmp_path: Path) -> None:
    """A pipe that is opened waits for its writer."""
    checkpoint.save(tmp_path, 1, {})
    make(tmp_path / "step-00000002.pt")
    content, passed = checkpoint.load_newest(tmp_path)
    assert content == {"step": 1}
    assert passed == ["checkpoint step-00000002.pt cannot be read (ValueError), falling back"]
    checkpoint.save(tmp_path, 3, {}, keep=1)
    assert checkpoint.complete(tmp_path)[0].name == "step-00000003.pt"


def test_a_checkpoint_that_was_passed_over_takes_no_place_of_a_good_one(tmp_path: Path) -> None:
    """The run goes on before it, and keeps one."""
    (tmp_path / "step-00000009.pt").write_bytes(b"half")
    for step in (3, 4):
        checkpoint.save(tmp_path, step, {}, keep=1)
        assert [path.name for path in tmp_path.iterdir()] == [f"step-{step:08d}.pt"]


def test_checkpoints_are_plain_and_only_the_newest_two_are_kept(tmp_path: Path) -> None:
    """F-75: they load with weights_only, and no key has a prefix."""
    made = trainer(tmp_path, checkpoint_every=3)
    fit(made)
    newest, older = checkpoint.complete(tmp_path / "checkpoints")
    assert (newest.name, older.name) == ("step-00000020.pt", "step-00000018.pt")
    content = torch.load(newest, weights_only=True)
    assert content["step"] == 20
    assert set(content) >= {"step", "model", "optimizer", "generators"}
    assert same(content["model"], copied(tiny().train()) | copied(made.model))


@pytest.mark.parametrize("failure", ["write", "rename"])
def test_a_checkpoint_that_cannot_be_written_leaves_the_older_ones(
    failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-44, F-85: one error with the path, nothing half-written, and the same step can be saved later."""
    checkpoint.save(tmp_path, 1, {"x": torch.ones(3)})

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(*((torch, "save") if failure == "write" else (Path, "replace")), full)
        with pytest.raises(OSError, match=r"cannot write the checkpoint .*step-00000002\.pt: .*No space left"):
            checkpoint.save(tmp_path, 2, {"x": torch.zeros(3)})
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001.pt"]
    checkpoint.save(tmp_path, 2, {"x": torch.zeros(3)})
    assert checkpoint.load_newest(tmp_path)[0] == {"step": 2, "x": pytest.approx(torch.zeros(3))}


@pytest.mark.parametrize("end", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()], ids=repr)
def test_what_was_to_be_replaced_stays_until_the_new_one_is_whole(
    end: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F-44, F-85: the best weights, a checkpoint of the same step, and of a step before where one is kept; whoever is
    killed tidies nothing up.
    """

    def write(seed: int) -> None:
        checkpoint.save(tmp_path, 1, {"model": copied(tiny(seed=seed))})
        checkpoint.save_weights(tmp_path / "best.safetensors", tiny(seed=seed))

    def content() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.suffix != ".tmp"}

    def ends(*_: object) -> None:
        raise end

    write(seed=0)
    before = content()
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", ends)
        for step in (1, 2):
            with pytest.raises(type(end)):
                checkpoint.save(tmp_path, step, {"model": copied(tiny(seed=1))}, keep=1)
        with pytest.raises(type(end)):
            checkpoint.save_weights(tmp_path / "best.safetensors", tiny(seed=1))
    assert content() == before
    write(seed=1)
    assert content().keys() == before.keys()
    assert not any(content()[name] == before[name] for name in before)


def test_a_killed_writer_leaves_nothing_for_good(tmp_path: Path) -> None:
    """F-44: between writing and renaming."""
    (tmp_path / "step-00000003.tmp").write_bytes(b"half")
    assert checkpoint.load_newest(tmp_path) == (None, [])
    checkpoint.save(tmp_path, 4, {})
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000004.pt"]


def test_a_run_whose_checkpoints_were_freed_has_its_last_weights(tmp_path: Path) -> None:
    """As scripts/prune.py leaves it: what safetensors hold once, a tied table, is under both of its names."""
    _, done = run("head=tied", "trainer.steps=2", f"out={tmp_path}")
    before = copied(done.model())
    for path in checkpoint.complete(done.path / "checkpoints"):
        path.unlink()
    assert same(copied(done.model()), before)
    (done.path / "checkpoints" / "final.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match="has no checkpoint that can be read"):
        done.model()


# --- more steps for a finished run


def test_an_extended_run_is_the_longer_one(tmp_path: Path) -> None:
    """F-79: bit for bit and by name, dropout and moments included; the shorter one stays as it is."""
    words = ("schedule=constant", "schedule.warmup=2", "model.dropout=0.1", "trainer.checkpoint_every=3")
    _, short = run(*words, "trainer.steps=6", "trainer.eval_every=3", f"out={tmp_path}")
    resume = (f"resume={short.path}", f"out={tmp_path}")
    code, longer = run_exactly(*resume, "trainer.steps=12")
    assert (code, longer.status["status"], longer.status["step"]) == (0, "finished", 12)
    assert [(event["kind"], event["step"]) for event in longer.events] == [("extended", 6), ("resume", 6)]
    assert longer.events[0]["message"] == f"goes on from step 6 of {short.run_id}: 12 steps instead of 6"
    assert (longer.config["trainer"]["steps"], longer.config["resume"]) == (12, str(short.path))
    assert longer.identity["overrides"].items() >= {"schedule": "constant", "trainer.steps": "12"}.items()
    assert [row["step"] for row in metrics(short.path)] == list(range(1, 7))
    _, whole = run(*words, "trainer.steps=12", "trainer.eval_every=3", f"out={tmp_path / 'whole'}")
    assert longer.run_id == whole.run_id != short.run_id
    assert everything(longer.path) == everything(whole.path)
    assert same(copied(longer.model()), copied(whole.model()))

    for changed, told in {
        "trainer.steps=6": "trainer.steps=6: the run in .* has 6 steps already",
        "optimizer.lr=1": "optimizer.lr cannot change",
        "trainer.eval_every=1": r"trainer\.steps=\.\.\. is missing",
    }.items():
        with pytest.raises(ValueError, match=told):
            run_exactly(*resume, changed)
    with pytest.raises(FileNotFoundError, match=r"^resume=nowhere is no run folder"):
        run_exactly("resume=nowhere", "trainer.steps=12")


def test_an_extended_run_keeps_its_best_and_goes_on_from_a_checkpoint_that_can_be_read(tmp_path: Path) -> None:
    """And has the steps to replay that its record names. At such a rate it gets worse after step 4. Where no checkpoint
    is left the schedule is not to blame.
    """
    words = ("schedule=constant", "optimizer.lr=10.0", "trainer.checkpoint_every=2", "trainer.eval_every=2")
    _, short = run(*words, "trainer.steps=4", "trainer.keep=9", f"out={tmp_path}")
    (short.path / "nonfinite").mkdir()
    for step in (2, 3):
        checkpoint.save(short.path / "nonfinite", step, {})

    def extended(steps: int) -> Run:
        return run_exactly(f"resume={short.path}", f"trainer.steps={steps}", f"out={tmp_path}")[1]

    longer = extended(6)
    assert longer.status["best"]["val_loss"] < longer.metrics[-1]["val_loss"]
    assert min(metrics(longer.path, "val_loss")[1:], key=lambda row: row["val_loss"])["step"] == 4
    kept = [(done.path / "checkpoints" / "best.safetensors").read_bytes() for done in (short, longer)]
    assert kept[0] == kept[1]
    assert [checkpoint.step_of(path) for path in checkpoint.complete(longer.path / "nonfinite")] == [3, 2]

    newest, older = checkpoint.complete(short.path / "checkpoints")
    newest.write_bytes(newest.read_bytes()[:-99])
    another = extended(7)
    assert [event["step"] for event in another.events if event["kind"] in ("extended", "resume")] == [2, 2]
    assert [checkpoint.step_of(path) for path in checkpoint.complete(another.path / "nonfinite")] == [2]
    older.unlink()
    with pytest.raises(ValueError, match="there is no checkpoint from which it could go on, or none can be read"):
        extended(8)


def test_a_run_whose_schedule_knew_its_end_is_not_extended(tmp_path: Path) -> None:
    _, short = run("trainer.steps=4", f"out={tmp_path}")
    with pytest.raises(ValueError, match=r"the Cosine schedule of .* depends on the number of steps"):
        run_exactly(f"resume={short.path}", "trainer.steps=8", f"out={tmp_path}")
    assert [folder.name for folder in (tmp_path / "default").iterdir()] == [short.run_id]


# --- in a process of its own


RESUMED = ("trainer.steps=120", "trainer.micro_batch=3", "model.dropout=0.1", "trainer.eval_every=30")


WAITS = """
import runpy, signal, sys, time
from modernllm.trainer import Trainer

at, step = int(sys.argv[1]), Trainer.train_step

def waits(self):
    if self.step == at:
        noting = signal.getsignal(signal.SIGINT)
        print("waits", flush=True)
        while signal.getsignal(signal.SIGINT) is noting:
            time.sleep(0.01)
    return step(self)

Trainer.train_step, sys.argv = waits, sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""`python train.py` that waits for a signal when it has done so many steps: a run has no more patience than that."""


def waiting(cwd: Path, step: int, *overrides: str) -> subprocess.Popen[str]:
    """The command, once it has done `step` steps."""
    process = subprocess.Popen(
        [sys.executable, "-c", WAITS, str(step), str(TRAIN), *SMALL, *overrides], cwd=cwd, text=True,
        env=os.environ | {"PYTHONPATH": str(TRAIN.parent)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout
    said = []
    for line in process.stdout:
        if line == "waits\n":
            return process
        said.append(line)
    pytest.fail(f"step {step} was not reached: {''.join(said)}")


def test_the_same_command_goes_on_after_ctrl_c_and_after_a_kill(tmp_path: Path) -> None:
    """F-41 and F-86 with real processes: ended in step 8, killed after a checkpoint, done by a third."""
    overrides = (*RESUMED, "trainer.checkpoint_every=20", f"out={tmp_path / 'cut'}")
    process = waiting(tmp_path, 7, *overrides)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=PATIENCE)
    (folder,) = (tmp_path / "cut" / "default").iterdir()
    status = json.loads((folder / "status.json").read_text())
    assert process.returncode == 130, said
    assert (status["status"], status["outcome"], status["signal"]) == ("interrupted", None, signal.SIGINT)
    assert status["step"] == 8
    assert "interrupted after step 8: the same command goes on from there" in said
    assert checkpoint.complete(folder / "checkpoints")[0].name == "step-00000008.pt"

    process = waiting(tmp_path, 24, *overrides)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert json.loads((folder / "status.json").read_text())["status"] == "running"

    code, done = run(*overrides)
    assert (code, done.path) == (0, folder)
    assert (done.status["status"], done.status["step"]) == ("finished", 120)
    assert [event["step"] for event in done.events if event["kind"] == "resume"] == [8, 20]

    code, whole = run(*RESUMED, f"out={tmp_path / 'whole'}")
    assert (code, whole.run_id) == (0, done.run_id)
    assert [row["step"] for row in metrics(folder)] == list(range(1, 121))
    assert everything(folder) == everything(whole.path)
    assert same(copied(done.model()), copied(whole.model()))
