"""Short trainings that a group of ranks does together: `python ranked.py <folder>` does all SCENARIOS on two.

Each is made by `scenario(folder, group)`, so that a test makes it alone as well. A row whose first token is MARK is
rank 1's, since it is among the last of its batch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import torch
from models import LENGTH, VOCAB, tiny, windows
from running import copied, fit, optimizer, prepare, run, trainer
from torch import Tensor, nn

from modernllm.batch import IGNORED, Batch
from modernllm.distributed import OneProcess, joined
from modernllm.embedding.plain import Embedding
from modernllm.nonfinite.examine import Moment, Step, examine
from modernllm.objective import Objective
from modernllm.optimizer import SGD
from modernllm.quantities import Count
from modernllm.runs.directory import RunDirectory
from modernllm.runs.recorder import Unrecorded
from modernllm.telemetry import Elsewhere
from modernllm.trainer import Trainer

MARK = 7
Scenario = Callable[[Path, OneProcess], Trainer]
Train = Callable[[int], Batch]


def seated(folder: Path, group: OneProcess, **changed: Any) -> Trainer:
    """The trainer of this rank: only the first writes and looks."""
    silent = {"recorder": Unrecorded(RunDirectory(folder))} if group.rank else {}
    made = trainer(folder, group=group, ranks=group.size, **({"eval_every": 3} | changed | silent))
    if group.rank:
        made.telemetry = Elsewhere(made.telemetry)
    return made


def masked(counts: list[int], seed: int = 0, mark: bool = False) -> Batch:
    """Rows of which only the first `counts` positions have a target; the last one marked."""
    batch = windows(rows=len(counts), seed=seed)
    assert batch.targets is not None
    kept = torch.arange(LENGTH) < torch.tensor(counts)[:, None]
    tokens = batch.tokens.clone()
    tokens[:, 0] = MARK + 1
    tokens[-1, 0] += -mark
    return Batch(tokens, batch.targets.where(kept, IGNORED))


def marked(at: int) -> Train:
    """Four rows a step, the last of which is marked at step `at`."""
    return lambda step: masked([LENGTH] * 4, 1000 + step, step == at - 1)


def poisoned(*overrides: str) -> nn.Module:
    """Embeddings of marked rows are divided by zero."""
    model = tiny(*overrides)
    model.get_submodule("embedding").register_forward_hook(
        lambda module, args, out: out / (args[0][:, :1, None] != MARK)
    )
    return model


def descent(model: nn.Module, steps: int = 1) -> dict[str, Any]:
    """Of steps that are as exact as the gradients are; Adam's are not where those are next to nothing."""
    plain = SGD(model, lr=1.0, momentum=0.5, weight_decay=0.0)
    return {"model": model, "optimizer": plain, "schedule": lambda step: 1.0, "steps": steps}


# --- scenarios


def uneven(folder: Path, group: OneProcess) -> Trainer:
    """F-28: 30 targets on one rank, 2 on the other."""
    batch = masked([30, 2])
    return seated(folder, group, train=lambda step: batch, batch_size=2, **descent(tiny()))


def empty(folder: Path, group: OneProcess) -> Trainer:
    """No target at all on rank 1, and five rows, which two do not divide."""
    batch = masked([30, 10, 0, 0, 0])
    return seated(folder, group, train=lambda step: batch, batch_size=5, **descent(tiny()))


def whole(folder: Path, group: OneProcess) -> Trainer:
    return seated(folder, group, every=1, **descent(tiny(), steps=3))


def cut(folder: Path, group: OneProcess) -> Trainer:
    """F-31"""
    return seated(folder, group, micro_batch=1, **descent(tiny(), steps=3))


def skip(folder: Path, group: OneProcess) -> Trainer:
    """F-38: NaN on rank 1 alone."""
    return seated(folder, group, train=marked(3), nonfinite="skip", micro_batch=1, **descent(poisoned(), steps=5))


def stop(folder: Path, group: OneProcess) -> Trainer:
    """The same, with dropout and where it may not go on."""
    model = poisoned("model.dropout=0.1")
    return seated(folder, group, model=model, train=marked(3), steps=5, micro_batch=1)


def overflow(folder: Path, group: OneProcess) -> Trainer:
    """Gradients that only the scale of fp16 makes infinite, and only on rank 1."""
    model = tiny()
    model.get_submodule("head").register_full_backward_pre_hook(lambda module, out: (out[0] * wide[0],))
    wide = [1.0]
    model.register_forward_pre_hook(
        lambda module, args: wide.__setitem__(0, 1e3 if bool((args[0].tokens[:, 0] == MARK).any()) else 1.0)
    )
    return seated(folder, group, model=model, train=marked(3), steps=5, precision="fp16", micro_batch=1)


def balanced(folder: Path, group: OneProcess) -> Trainer:
    """Experts that are balanced by the load of the whole batch."""
    return seated(folder, group, micro_batch=1, **descent(tiny("moe=topk_lossfree"), steps=4))


def idle(folder: Path, group: OneProcess) -> Trainer:
    """F-49: marked rows, of rank 1, never go to expert 0."""
    model, marks = tiny("moe=topk_lossfree"), [torch.zeros(0)]
    model.get_submodule("embedding").register_forward_hook(
        lambda module, args, out: marks.__setitem__(0, args[0][:, :1, None] == MARK)
    )
    for name, module in model.named_modules():
        if name.endswith("router"):
            module.register_forward_hook(
                lambda module, args, out: out - 1e9 * marks[0] * (torch.arange(out.shape[-1]) == 0)
            )
    batch = masked([LENGTH] * 2, mark=True)
    return seated(folder, group, train=lambda step: batch, batch_size=2, **descent(model, steps=3))


class Sometimes(nn.Module):
    """A table, one that only marked rows use, and one that none does."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.rare, self.never = (nn.Embedding(VOCAB, VOCAB) for _ in range(3))
        for number, table in enumerate(self.children()):
            nn.init.normal_(table.weight, generator=torch.Generator().manual_seed(number))  # type: ignore[arg-type]

    def forward(self, batch: Batch, context: object = None) -> Tensor:
        logits = self.table(batch.tokens)
        return logits + self.rare(batch.tokens) if bool((batch.tokens[:, 0] == MARK).any()) else logits


def unused(folder: Path, group: OneProcess) -> Trainer:
    """Parameters without a gradient, on one rank and on all; with momentum and decay, zero is not the same as none."""
    model = Sometimes()
    return seated(folder, group, model=model, train=marked(2), steps=3, micro_batch=2, optimizer=optimizer(model))


class Wilful(nn.Module):
    """Counts the marked rows that it has seen, and tells nobody."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(VOCAB, VOCAB)
        nn.init.zeros_(self.table.weight)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, batch: Batch, context: object = None) -> Tensor:
        self.seen += (batch.tokens[:, 0] == MARK).sum() * self.training
        return self.table(batch.tokens)


def drift(folder: Path, group: OneProcess) -> Trainer:
    return seated(folder, group, model=Wilful(), train=marked(2), steps=3)


UNMARKED = marked(0)


def straight(folder: Path, group: OneProcess, train: Train = UNMARKED) -> Trainer:
    """With dropout, whose streams are each rank's own, and a checkpoint on the way."""
    model = tiny("model.dropout=0.1")
    return seated(folder, group, model=model, train=train, steps=6, micro_batch=1, checkpoint_every=3)


class Stopped(Exception):
    pass


def broken_off(folder: Path, group: OneProcess) -> Trainer:
    """The same, ended by an exception after step 4."""

    def train(step: int) -> Batch:
        if step == 4:
            raise Stopped
        return UNMARKED(step)

    return straight(folder, group, train)


SCENARIOS: dict[str, Scenario] = {
    made.__name__: made
    for made in (
        uneven, empty, whole, cut, skip, stop, overflow, balanced, idle, unused, drift, straight, broken_off,
    )
}  # fmt: skip


# --- on two ranks


def outcome(made: Trainer) -> dict[str, Any]:
    """What every rank has to say after a training."""
    found: dict[str, Any] = {}
    try:
        found["ending"] = asdict(fit(made))
    except (RuntimeError, Stopped) as error:
        found["error"] = f"{type(error).__name__}: {error}"
    return found | {"weights": copied(made.model), "scale": made.scale.state_dict(), "state": torch.get_rng_state()}


def again(made: Trainer) -> dict[str, float]:
    """The next step, as it is trained and as it is examined from what all ranks began with."""
    began = made.of_all(Moment.now(made.device, {}))
    found = examine(Step(Objective(made.model), made.train(made.step), made.micro_batch, "fp32", began))
    measured = made.train_step()
    return {"loss": float(measured.loss), "grad_norm": float(measured.norms.norm()), "examined": found.loss,
            "examined_norm": found.grad_norm}  # fmt: skip


def refusal(group: OneProcess) -> str:
    """F-73: what is said where ranks have not been told the same."""
    try:
        group.same("configuration", f"that of rank {group.rank}")
    except RuntimeError as error:
        return str(error)
    return ""


# --- a whole run


class Blind(Embedding):
    """E[token], divided by zero in the rows that begin in this way."""

    def __init__(self, vocab_size: Count, dim: Count, beginning: list[int]):
        super().__init__(vocab_size, dim)
        self.beginning = torch.tensor(beginning)

    def forward(self, tokens: Tensor) -> Tensor:
        seen = (tokens[:, : len(self.beginning)] != self.beginning).any(1)
        return super().forward(tokens) / seen[:, None, None]


@cache
def run_words() -> tuple[str, ...]:
    """12 steps, of which the fourth is not finite, in its last row alone."""
    words = ("trainer.steps=12", "trainer.eval_every=6", "trainer.nonfinite=skip", "trainer.micro_batch=1")
    beginning = prepare(*words).windows(3).tokens[-1, :8].tolist()
    target = "ranked.Blind"
    return (*words, f"model.embedding._target_={target}", f"allow_targets=[{target}]",
            f"+model.embedding.beginning={beginning}")  # fmt: skip


def main(folder: Path) -> int:
    """On this rank and on one that is forked from it; then a whole run as a command would start it."""
    rank = int(not (child := os.fork()))
    with joined(rank, 2, folder / "meeting", torch.device("cpu")) as group:
        for name, scenario in SCENARIOS.items():
            made = scenario(folder / name, group)
            said = outcome(made)
            if name == "broken_off":
                said |= outcome(straight(folder / name, group))
            if name == "straight":
                said["again"] = again(made)
            found = group.gather(said)
            if rank == 0:
                torch.save(found, folder / name / "outcome.pt")
        refused = group.gather(refusal(group))
        if rank == 0:
            (folder / "refused").write_text("\n".join(refused))
    if rank:
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return code or run(*run_words(), "trainer.ranks=2", f"out={folder / 'runs'}")[0]


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1])))
