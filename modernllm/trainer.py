"""The training loop: what changes the weights, in the order in which it does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt
from jaxtyping import Float, Int
from torch import Tensor, nn

from modernllm import checkpoint
from modernllm.batch import Batch
from modernllm.compilation import compiled
from modernllm.data.held_out import HeldOut
from modernllm.distributed import OneProcess
from modernllm.evaluation import evaluate
from modernllm.init import named_generator
from modernllm.interrupt import Interrupt
from modernllm.loss_scale import DynamicScale, NoScale
from modernllm.memory import keep_freed_memory
from modernllm.nonfinite.examine import Moment, is_sound
from modernllm.nonfinite.inquest import Inquest, NoInquest
from modernllm.objective import Objective
from modernllm.optimizer import HOST, Optimizer
from modernllm.precision import Precision, autocast, is_deterministic, pick_device, reproducible, threads_each
from modernllm.profile import profiling
from modernllm.quantities import Count, NonNegative
from modernllm.runs.recorder import Recorder
from modernllm.telemetry import NoTelemetry
from modernllm.update import Measured, Policy, Update


def reading(device: torch.device, policy: Policy) -> tuple[int, float]:
    """Of how many steps, or after how many seconds, what they left is read back and recorded.

    Of several steps at once, since a device would have to be waited for, and on a CPU the code that reads has left its
    caches when a step is done. At once where the weights go on to change after a non-finite step and nobody has to be
    waited for: only then can that step be done again.
    """
    if device.type in HOST:
        return 16 if policy == "stop" else 1, 0.25
    return 16, math.inf


@dataclass(frozen=True)
class Ending:
    """Where and why `fit` stopped; `interrupted_by` is the signal's number."""

    step: int
    first_nonfinite_step: int | None = None
    interrupted_by: int | None = None


class Trainer:
    """The first line of arguments comes from the configuration, the second from the program.

    `train(step)` is the global batch of a step, whoever computes it in whatever pieces; `validation` the fixed list
    of evaluation batches; `optimizer` holds the parameters of `model`, `schedule(step)` is the share of its rate;
    `group` the ranks that share the work. All of them do all of this, in the same order: what they must agree on goes
    through the group, and only the first has a recorder that writes and telemetry that looks.
    """

    def __init__(
        self,
        *,
        steps: Count,
        batch_size: Count,
        micro_batch: Count | None,
        clip: Annotated[float, Gt(0)],
        nonfinite: Policy,
        z_loss: NonNegative,
        precision: Precision,
        deterministic: bool | None,
        compile: bool,
        device: Literal["auto", "cpu", "cuda", "mps"],
        ranks: Count,
        threads: Count | None,
        eval_every: Count | None,
        validation_tokens: Count,
        held_out: HeldOut,
        checkpoint_every: Count | None,
        keep: Count,
        profile: bool,
        model: nn.Module,
        train: Callable[[int], Batch],
        validation: list[Batch],
        token_bytes: Int[Tensor, " v"],
        optimizer: Optimizer,
        schedule: Callable[[int], float],
        telemetry: NoTelemetry,
        recorder: Recorder,
        seed: int,
        group: OneProcess | None = None,
    ):
        keep_freed_memory()
        torch.set_num_threads(threads_each(threads, ranks))
        self.group = group or OneProcess()
        self.device = pick_device(device)
        self.steps, self.micro_batch, self.clip = steps, micro_batch or batch_size, clip
        self.eval_every = eval_every or max(1, steps // 5)
        self.checkpoint_every, self.keep = checkpoint_every or steps, keep
        self.nonfinite: Policy = nonfinite
        self.precision: Precision = precision
        self.deterministic = is_deterministic(deterministic, self.device)
        self.model = model.to(self.device)
        objective = Objective(self.model, z_loss)
        self.forward = compiled(objective) if compile else objective
        self.scale = DynamicScale(self.device) if precision == "fp16" else NoScale()
        self.update = Update(self.model, optimizer, schedule, clip, nonfinite, self.scale, self.group)
        self.inquest = (
            Inquest(objective, train, self.micro_batch, precision, optimizer, self.update.names, recorder.directory)
            if self.group.rank == 0
            else NoInquest()
        )
        self.train = train
        self.validation = [batch.to(self.device) for batch in validation]
        self.token_bytes = token_bytes.to(self.device)
        self.telemetry = telemetry
        telemetry.start(optimizer, self.validation, precision)
        self.recorder, self.profile = recorder, profile
        self.seed = seed
        self.step = 0
        self.best = math.inf
        self.tokens_per_step = batch_size * train(0).tokens.shape[1]
        self.first_nonfinite_step: int | None = None
        self.examined = False
        self.before: tuple[Measured, Tensor] | None = None  # the last update, and its gradients' norms
        self.unread: list[tuple[Moment, Measured]] = []
        self.read_every, self.patience = reading(self.device, nonfinite)
        self.clock = 0.0

    @property
    def ended(self) -> bool:
        """By the last step, or by a non-finite one that nothing may follow."""
        return self.step >= self.steps or self.cut

    @property
    def cut(self) -> bool:
        """Whether a step was not finite that nothing may follow; nothing repairs weights that are not."""
        return self.first_nonfinite_step is not None and self.nonfinite != "continue"

    def fit(self) -> Ending:
        """Train from the newest checkpoint, or from the start, to the last step, a non-finite step or a signal."""
        self.model.train()
        profiled = profiling(self.profile, self.recorder.directory.path)
        with reproducible(self.deterministic), Interrupt() as interrupt, profiled as tick:
            self.resume()
            self.inquest.begin()
            if self.step == 0:
                self.evaluate()
                self.probe()
            stopped = 0
            self.clock = time.perf_counter()
            while not self.ended and not (stopped := self.group.largest(interrupt.signal or 0)):
                self.advance()
                tick()
            self.read_back()
            self.check_weights()
            if not self.ended:
                self.save()
        return Ending(self.step, self.first_nonfinite_step, None if self.ended else stopped)

    def advance(self) -> None:
        """One step, and what is due after it."""
        self.unread.append((Moment.now(self.device, self.scale.state_dict()), self.train_step()))
        self.step += 1
        if self.group.largest(len(self.unread) >= self.read_every or time.perf_counter() - self.clock > self.patience):
            self.read_back()
        self.pause()

    def train_step(self) -> Measured:
        """One update from the global batch of this step. Nothing here waits for the device."""
        batch = self.train(self.step)
        n_targets = batch.n_targets
        loss = torch.zeros((), device=self.device)
        for micro in self.group.share(batch).split(self.micro_batch):
            with autocast(self.precision, self.device):
                nats, auxiliary = self.forward(micro.to(self.device))
            self.update.backward((nats + auxiliary) / n_targets)
            self.telemetry.accumulated(self.step + 1, micro, n_targets, self.scale)
            loss += nats.detach() / n_targets
        self.telemetry.before(self.step + 1)
        measured = self.update(self.step + 1, loss)
        self.telemetry.after(self.step + 1)
        return measured

    def is_due(self, every: int) -> bool:
        """Whether something that happens every so many steps, and after the last, happens now."""
        return self.step % every == 0 or self.step == self.steps

    def pause(self) -> None:
        """What happens between steps; the order matters for resuming: an evaluation belongs to its checkpoint."""
        evaluated, saved = self.is_due(self.eval_every), self.is_due(self.checkpoint_every)
        if not (evaluated or saved or self.telemetry.probe_due(self.step)):
            return
        self.read_back()
        self.check_weights()
        if self.cut:
            return
        if evaluated:
            self.evaluate()
        if self.telemetry.probe_due(self.step):
            self.probe()
        if saved:
            self.save()
        self.clock = time.perf_counter()

    def read_back(self) -> None:
        """Record the steps that the device has done, up to one that ends the run."""
        if not self.unread:
            return
        values = torch.stack([torch.stack((m.loss, m.held, m.overflowed)) for _, m in self.unread]).tolist()
        norms = torch.stack([measured.norms for _, measured in self.unread]).cpu()
        speed = len(self.unread) * self.tokens_per_step / (time.perf_counter() - self.clock)
        for i, (began, measured) in enumerate(self.unread):
            (loss, held, overflowed), by_tensor = values[i], norms[i]
            norm = float(by_tensor.norm())
            row = {
                "step": measured.step,
                "tokens": measured.step * self.tokens_per_step,
                "loss": loss,
                "grad_norm": norm,
                "clipped": norm > self.clip,
                "lr": measured.lr,
                "tokens_per_s": speed,
            }
            # the search for a scale that fp16 can bear is no mishap: only what a policy skipped degrades a run
            why = "overflowed" if overflowed else "skipped" if held and self.nonfinite != "stop" else None
            self.recorder.step(row | ({why: True} if why else {}))
            if self.telemetry.due(measured.step):
                self.watch(measured.step, self.telemetry.row(measured.step, by_tensor))
            if overflowed:
                why = f"fp16 gradients overflowed at step {measured.step}: skipped, scale halved"
                self.recorder.event("overflow", measured.step, why)
            elif not (math.isfinite(loss) and math.isfinite(norm)):
                left_alone = all(later_held for _, later_held, _ in values[i:])
                self.tell(measured, began, loss, by_tensor, left_alone)
                if self.cut:
                    break
            if not held:
                self.before = measured, by_tensor
        self.unread.clear()
        self.clock = time.perf_counter()

    def tell(
        self, measured: Measured, began: Moment, loss: float, norms: Float[Tensor, " n"], left_alone: bool
    ) -> None:
        """Record a non-finite step: what was not finite, where that began, and what follows from it.

        `left_alone` says that the weights are still those that the step began with. Of steps that are skipped the
        first is examined; weights that are not finite themselves end a run that skips, too.
        """
        step, skips = measured.step, self.nonfinite == "skip" and is_sound(self.model)
        if not skips and self.first_nonfinite_step is not None:
            return
        named = zip(self.update.names, norms.tolist(), strict=True)
        sick = [name for name, norm in named if not math.isfinite(norm)]
        words = ", ".join(sick[:3]) + (f" and {len(sick) - 3} more" if len(sick) > 3 else "")
        gradients = f"; gradients of {words} are not finite" if sick and math.isfinite(loss) else ""
        message = f"non-finite at step {step}: loss {loss:.6g}{gradients}"
        details: dict[str, Any] = {
            "loss": loss,
            "grad_norm": float(norms.norm()),
            "lr": measured.lr,
            "gradients": sick,
        }
        if not (skips and self.examined):
            details |= self.inquest(step, self.of_all(began), self.before, left_alone)
            message += f"; first non-finite: {details['where']}"
            self.examined = True
        if skips:
            self.recorder.event("skipped", step, f"{message}; skipped", **details)
        else:
            self.end(step, message, details)

    def check_weights(self) -> None:
        """Before weights are judged or kept: losses show only in the next step what an update has left."""
        self.group.same_weights(self.model)
        if self.first_nonfinite_step is None and self.before is not None and not is_sound(self.model):
            began = self.of_all(Moment.now(self.device, self.scale.state_dict()))
            details = self.inquest(self.step, began, self.before, left_alone=True)
            message = f"non-finite weights after step {self.step}; first non-finite: {details['where']}"
            self.end(self.step, message, details)

    def end(self, step: int, message: str, details: dict[str, Any]) -> None:
        """Record the first non-finite step; unless the policy is to go on, nothing follows."""
        self.recorder.event("nonfinite", step, message, **details)
        self.first_nonfinite_step = step
        if self.cut:  # the device has gone on, without changing anything
            self.step = step

    def of_all(self, began: Moment) -> Moment:
        """A moment of this rank with the generators of all."""
        first, *others = self.group.gather(began.generators)
        return replace(began, generators=first, others=others)

    def evaluate(self) -> None:
        precision = autocast(self.precision, self.device)
        loss = evaluate(self.model, self.validation, self.token_bytes, precision, self.group)
        self.recorder.evaluation(
            {
                "step": self.step,
                "tokens": self.step * self.tokens_per_step,
                "val_loss": loss.nats_per_token,
                "val_bits_per_byte": loss.bits_per_byte,
            }
        )
        sound = self.first_nonfinite_step is None  # where a run went on nothing overwrites what was good, as in `save`
        if sound and self.step and loss.nats_per_token < self.best:
            self.best = loss.nats_per_token
            self.recorder.weights("best", self.model)

    def probe(self) -> None:
        """A look inside the model. One that it cannot bear is said once and costs the run nothing."""
        try:
            found = self.telemetry.probe()
        except Exception as error:  # an operator without a backward in eval mode, no memory, what hooks do not expect
            self.telemetry.give_up_probing()
            why = str(error).partition("\n")[0]
            self.recorder.event("telemetry", self.step, f"no look inside this model: {type(error).__name__}: {why}")
        else:
            self.watch(self.step, found)

    def watch(self, step: int, series: dict[str, Any]) -> None:
        """Record what telemetry saw, and what is alarming about it in words."""
        if not series:
            return
        row = {"step": step, "tokens": step * self.tokens_per_step, **series}
        self.recorder.telemetry(row)
        for about, message in self.telemetry.alarms(row):
            self.recorder.event("warning", step, message, about=about)

    def save(self) -> None:
        """A checkpoint to go on from, and after the last step the weights by themselves."""
        if self.first_nonfinite_step is not None:  # nothing overwrites what was good
            return
        moment = self.of_all(Moment.now(self.device, {}))
        content: dict[str, Any] = {
            "model": self.model.state_dict(),
            "optimizer": self.update.optimizer.state_dict(),
            "scale": self.scale.state_dict(),
            "generators": moment.generators,
            "other_generators": moment.others,
            "best": self.best,
            "examined": self.examined,
        }
        if self.step == self.steps:  # first, since a run with its last checkpoint has nothing left to do
            self.recorder.weights("final", self.model)
        self.recorder.checkpoint(self.step, content, self.keep)

    def resume(self) -> None:
        """Go back to the newest checkpoint, or to the start, and forget what was recorded after it."""
        directory = self.recorder.directory
        content, broken = checkpoint.load_newest(
            directory.checkpoints, lambda step: directory.holds(step, evaluated=step == self.steps)
        )
        self.group.same("checkpoint", content and content["step"])  # and nobody goes on before all have read
        # dropout's stream: no draw of initialisation, data order or evaluation shifts it
        stream = f"dropout of rank {self.group.rank}" if self.group.rank else "dropout"
        torch.manual_seed(named_generator(self.seed, stream).initial_seed())
        if content is not None:
            self.step, self.best = content["step"], content["best"]
            self.examined = content.get("examined", False)
            checkpoint.restore(self.model, content["model"])
            self.update.optimizer.load_state_dict(content["optimizer"])
            self.scale.load_state_dict(content["scale"])
            kept = [content["generators"], *content.get("other_generators", [])]
            if self.group.rank < len(kept):  # a rank that was not there before begins its stream
                Moment(kept[self.group.rank], {}).restore(self.device)
        self.group.same_weights(self.model)
        was_there = self.recorder.rewind(self.step or -1)  # a run that starts over evaluates its start again
        self.telemetry.remember(directory.telemetry_rows())
        for sentence in broken:
            self.recorder.event("checkpoint", self.step, sentence)
        if was_there:
            self.recorder.event("resume", self.step, f"resumed after step {self.step}")
