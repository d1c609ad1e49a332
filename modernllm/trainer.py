"""The training loop: what changes the weights, in the order in which it does."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from annotated_types import Gt
from jaxtyping import Float, Int
from torch import Tensor, nn

from modernllm import checkpoint
from modernllm.batch import Batch
from modernllm.evaluation import evaluate
from modernllm.init import named_generator
from modernllm.interrupt import Interrupt
from modernllm.linear import parameter_roles
from modernllm.objective import Objective
from modernllm.precision import Precision, autocast, pick_device, usable_cores
from modernllm.quantities import Count, Positive
from modernllm.runs.recorder import Recorder
from modernllm.telemetry import Telemetry


@dataclass(frozen=True)
class Ending:
    """Where and why `fit` stopped; `interrupted_by` is the signal's number."""

    step: int
    first_nonfinite_step: int | None = None
    interrupted_by: int | None = None


@dataclass
class Measured:
    """What one step leaves on the device, read back later."""

    step: int
    lr: float
    loss: Float[Tensor, ""]
    norms: Float[Tensor, " n"]


class Trainer:
    """The first line of arguments comes from the configuration, the second from the program.

    `train(step)` is the global batch of a step, whoever computes it in whatever pieces; `validation` the fixed list
    of evaluation batches; `optimizer` holds the parameters of `model`, `schedule(step)` is the share of its rate.
    """

    def __init__(
        self,
        *,
        steps: Count,
        batch_size: Count,
        micro_batch: Count | None,
        clip: Annotated[float, Gt(0)],
        precision: Precision,
        device: Literal["auto", "cpu", "cuda", "mps"],
        threads: Count | None,
        eval_every: Count | None,
        validation_tokens: Count,
        checkpoint_every: Count | None,
        model: nn.Module,
        train: Callable[[int], Batch],
        validation: list[Batch],
        token_bytes: Int[Tensor, " v"],
        optimizer: torch.optim.Optimizer,
        schedule: Callable[[int], float],
        telemetry: Telemetry,
        recorder: Recorder,
        seed: int,
    ):
        torch.set_num_threads(threads or usable_cores())
        self.device = pick_device(device)
        self.steps, self.micro_batch, self.clip = steps, micro_batch or batch_size, clip
        self.eval_every = eval_every or max(1, steps // 5)
        self.checkpoint_every = checkpoint_every
        self.model = model.to(self.device)
        self.forward = Objective(self.model)
        self.precision: Precision = precision
        self.train = train
        self.validation = [batch.to(self.device) for batch in validation]
        self.token_bytes = token_bytes.to(self.device)
        self.names, self.parameters, _ = zip(*parameter_roles(self.model), strict=True)
        self.optimizer = optimizer
        self.peaks = [group["lr"] for group in self.optimizer.param_groups]
        self.schedule = schedule
        self.telemetry = telemetry
        self.recorder = recorder
        self.seed = seed
        self.step = 0
        self.tokens_per_step = batch_size * train(0).tokens.shape[1]
        # 1 after the first non-finite step: from then on the optimizer's kernel leaves the weights alone
        self.latch = torch.zeros((), device=self.device)
        self.first_nonfinite_step: int | None = None
        self.unread: list[Measured] = []
        self.read_every = 1 if self.device.type == "cpu" else 16
        self.clock = 0.0

    def fit(self) -> Ending:
        """Train from the newest checkpoint, or from the start, to the last step, a non-finite step or a signal."""
        self.model.train()
        self.resume()
        with Interrupt() as interrupt:
            if self.step == 0:
                self.evaluate()
            self.clock = time.perf_counter()
            while self.step < self.steps and self.first_nonfinite_step is None and not interrupt.signal:
                self.unread.append(self.train_step())
                self.step += 1
                if len(self.unread) >= self.read_every:
                    self.read_back()
                if self.first_nonfinite_step is None:
                    self.pause()
            if interrupt.signal and self.first_nonfinite_step is None:
                self.read_back()
                self.save()
        interrupted = self.step < self.steps and self.first_nonfinite_step is None
        return Ending(self.step, self.first_nonfinite_step, interrupt.signal if interrupted else None)

    def train_step(self) -> Measured:
        """One update from the global batch of this step. Nothing here waits for the device."""
        batch = self.train(self.step)
        n_targets = batch.n_targets
        loss = torch.zeros((), device=self.device)
        for micro in batch.split(self.micro_batch):
            with autocast(self.precision, self.device):
                nats, auxiliary = self.forward(micro.to(self.device))
            ((nats + auxiliary) / n_targets).backward()
            loss += nats.detach() / n_targets
        gradients = [p.grad if p.grad is not None else p.new_zeros(1) for p in self.parameters]
        norms = torch.stack(torch._foreach_norm(gradients))
        total = norms.norm()
        self.latch = torch.maximum(self.latch, 1.0 - (loss.isfinite() & total.isfinite()).float())
        torch.nn.utils.clip_grads_with_norm_(self.parameters, self.clip, total)
        lr = self.update()
        return Measured(self.step + 1, lr, loss, norms)

    def update(self) -> float:
        """Step the optimizer unless the latch is set; the learning rate that it used."""
        share = self.schedule(self.step + 1)
        for group, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            group["lr"] = peak * share
        if self.optimizer.reads_found_inf:
            self.optimizer.found_inf = self.latch  # type: ignore[attr-defined]
            self.optimizer.step()
        elif not self.latch:  # waits for the device, which costs nothing on a CPU
            self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return self.peaks[0] * share

    def is_due(self, every: int | None) -> bool:
        """Whether something that happens every so many steps, and after the last, happens now."""
        return every is not None and (self.step % every == 0 or self.step == self.steps)

    def pause(self) -> None:
        """What happens between steps; the order matters for resuming: an evaluation belongs to its checkpoint."""
        evaluating, saving = self.is_due(self.eval_every), self.is_due(self.checkpoint_every or self.steps)
        if evaluating or saving:
            self.read_back()
            if self.first_nonfinite_step is None:
                if evaluating:
                    self.evaluate()
                if saving:
                    self.save()
            self.clock = time.perf_counter()

    def read_back(self) -> None:
        """Record the steps that the device has done, up to the first non-finite one."""
        if not self.unread:
            return
        losses = torch.stack([measured.loss for measured in self.unread]).tolist()
        norms = torch.stack([measured.norms for measured in self.unread]).cpu()
        seconds = time.perf_counter() - self.clock
        speed = len(self.unread) * self.tokens_per_step / seconds
        for measured, loss, by_tensor in zip(self.unread, losses, norms, strict=True):
            norm = float(by_tensor.norm())
            self.recorder.step(
                {
                    "step": measured.step,
                    "tokens": measured.step * self.tokens_per_step,
                    "loss": loss,
                    "grad_norm": norm,
                    "clipped": norm > self.clip,
                    "lr": measured.lr,
                    "tokens_per_s": speed,
                }
            )
            if self.telemetry.due(measured.step):
                self.recorder.telemetry({"step": measured.step, "grad": self.telemetry.by_layer(by_tensor)})
            if not (math.isfinite(loss) and math.isfinite(norm)):
                self.stop_at(measured.step, loss, by_tensor)
                break
        self.unread.clear()
        self.clock = time.perf_counter()

    def stop_at(self, step: int, loss: float, norms: Float[Tensor, " n"]) -> None:
        """The weights are those of before `step`: say what was not finite, and go no further."""
        self.step = self.first_nonfinite_step = step
        sick = [name for name, norm in zip(self.names, norms.tolist(), strict=True) if not math.isfinite(norm)]
        named = ", ".join(sick[:3]) + (f" and {len(sick) - 3} more" if len(sick) > 3 else "")
        gradients = f"; gradients of {named} are not finite" if sick else ""
        self.recorder.event(
            "nonfinite", step, f"non-finite at step {step}: loss {loss}{gradients}", loss=loss, gradients=sick
        )

    def evaluate(self) -> None:
        loss = evaluate(self.model, self.validation, self.token_bytes, autocast(self.precision, self.device))
        self.recorder.evaluation(
            {
                "step": self.step,
                "tokens": self.step * self.tokens_per_step,
                "val_loss": loss.nats_per_token,
                "val_bits_per_byte": loss.bits_per_byte,
            }
        )

    def save(self) -> None:
        content: dict[str, Any] = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "generators": self.generators(),
        }
        checkpoint.save(self.recorder.directory.checkpoints, self.step, content)

    def resume(self) -> None:
        """Go back to the newest checkpoint, or to the start, and forget what was recorded after it."""
        content, broken = checkpoint.load_newest(self.recorder.directory.checkpoints)
        # dropout's stream: no draw of initialisation, data order or evaluation shifts it
        torch.manual_seed(named_generator(self.seed, "dropout").initial_seed())
        if content is not None:
            self.step = content["step"]
            self.model.load_state_dict(content["model"])
            self.optimizer.load_state_dict(content["optimizer"])
            torch.set_rng_state(content["generators"]["cpu"])
            if self.device.type == "cuda":
                torch.cuda.set_rng_state(content["generators"]["cuda"])
        was_there = self.recorder.rewind(self.step or -1)  # a run that starts over evaluates its start again
        for sentence in broken:
            self.recorder.event("checkpoint", self.step, sentence)
        if was_there:
            self.recorder.event("resume", self.step, f"resumed after step {self.step}")

    def generators(self) -> dict[str, Tensor]:
        states = {"cpu": torch.get_rng_state()}
        if self.device.type == "cuda":
            states["cuda"] = torch.cuda.get_rng_state()
        return states
