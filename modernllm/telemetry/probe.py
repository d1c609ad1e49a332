"""A look inside: one eager forward and backward of the bare model on a batch that is always the same."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from modernllm.batch import Batch
from modernllm.evaluation import evaluating, kept_buffers
from modernllm.linear import parameter_roles
from modernllm.objective import token_losses
from modernllm.precision import Precision, autocast
from modernllm.telemetry.layers import Layers
from modernllm.telemetry.observer import Observer, Series, told
from modernllm.telemetry.observers.attention import Attention
from modernllm.telemetry.observers.feedforward import FeedForwards, Gates
from modernllm.telemetry.observers.logits import Logits
from modernllm.telemetry.observers.router import Routers
from modernllm.telemetry.observers.stream import Stream
from modernllm.telemetry.statistics import growth, norm, number, rms, slope


def probe_batch(validation: Sequence[Batch], n_tokens: int) -> Batch:
    """About `n_tokens` tokens in whole windows, evenly spread over the validation windows: they follow from the text
    and the context length alone, so every arm is probed with the same.
    """
    tokens = torch.cat([batch.tokens for batch in validation])
    targets = torch.cat([batch.targets for batch in validation if batch.targets is not None])
    n_rows = min(len(tokens), max(1, n_tokens // tokens.shape[1]))
    rows = torch.arange(n_rows, device=tokens.device) * len(tokens) // n_rows
    return Batch(tokens[rows], targets[rows])


class Probe:
    """`probe(batch)` tells what observers see of the forward, in eval mode and in the precision of training, and the
    gradients of the mean loss by depth. Nothing of the model or of any random stream is another afterwards.
    """

    def __init__(self, model: nn.Module, precision: Precision):
        self.model = model
        self.precision: Precision = precision
        self.names, self.parameters, _ = zip(*parameter_roles(model), strict=True)
        self.layers = Layers(self.names)

    def __call__(self, batch: Batch) -> Series:
        stream = Stream()
        observers: list[Observer] = [stream, FeedForwards(), Gates(), Attention(), Routers(), Logits()]
        with untouched(self.model), torch.enable_grad(), ExitStack() as attached:
            for observer in observers:
                for handle in observer.attach(self.model, self.layers):
                    attached.callback(handle.remove)
            with autocast(self.precision, batch.tokens.device):
                nats = token_losses(self.model(batch), batch)
            attached.close()  # what backward computes again is not looked at twice
            series = {"probe": {"loss": number(nats.mean())}}
            series |= self.gradients(nats, stream.states, max(1, batch.n_targets))
        for observer in observers:
            for name, values in observer.series().items():
                series[name] = series.get(name, {}) | values
        return told(series)

    def gradients(self, nats: Tensor, states: dict[str, Tensor], n_targets: int) -> Series:
        """Of the parameters, layer by layer, and of the stream: of its RMS by depth and growth over it. `.grad` is not
        touched. Small ones survive in fp16, since the sum is differentiated and not the mean.
        """
        kept = {place: x for place, x in states.items() if x.requires_grad}
        among = [p for p in self.parameters if p.requires_grad]
        found = torch.autograd.grad(nats.sum(), [*among, *kept.values()], allow_unused=True)
        by_parameter = dict(zip(among, found, strict=False))
        squares: dict[str, float] = {}
        norms = torch.stack([_norm(by_parameter.get(p), p) for p in self.parameters]) / n_targets
        for name, size in zip(self.names, norms.tolist(), strict=True):
            layer = self.layers.of(name)
            squares[layer] = squares.get(layer, 0.0) + size**2
        by_layer = {layer: square**0.5 for layer, square in squares.items()}
        deep = [size for layer, size in by_layer.items() if layer.startswith("layer.")]
        of_stream = dict(zip(kept, found[len(among) :], strict=True))
        at = {place: gradient / n_targets for place, gradient in of_stream.items() if gradient is not None}
        places = list(at)
        over_depth = {"gradient": slope(deep)}
        return {
            "probe_grad_norm": by_layer,
            "stream_grad_rms": {place: rms(gradient) for place, gradient in at.items()},
            "grad_slope": over_depth,
            "growth": {"gradient": growth(at[places[0]], at[places[-1]], len(places) - 1)} if places else {},
        }


def _norm(gradient: Tensor | None, of: Tensor) -> Tensor:
    return of.new_zeros((), dtype=torch.float32) if gradient is None else norm(gradient)


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Eval mode inside; afterwards modes, buffers and random streams are what they were."""
    devices = sorted({p.device.index for p in model.parameters() if p.device.type == "cuda"})
    with torch.random.fork_rng(devices), evaluating(model), kept_buffers(model):
        yield
