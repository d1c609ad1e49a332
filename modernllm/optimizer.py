"""Optimizers: made with `optimizer(model)`, torch's own where torch has one; decay goes by the role of a parameter.

The trainer puts a tensor into `found_inf` before each step. An optimizer with `reads_found_inf` leaves weights and
moments alone where it is 1, without waiting for the device; for Adafactor, which waits in every step as torch has it,
the trainer looks itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Annotated, Any, Literal, Protocol, runtime_checkable

import torch
from annotated_types import Gt, Le
from torch import Tensor, nn

from modernllm.adamw import FusedAdamW
from modernllm.linear import Role, parameter_roles
from modernllm.quantities import Factor, NonNegative, Positive, Probability

DECAYED: tuple[Role, ...] = ("hidden", "score", "gate", "stream", "head")
"""Matrices. Tables, gains and biases are not decayed: shrinking them only changes a scale."""

Decay = Literal["coupled", "independent"]
"""Coupled: w shrinks by lr_t weight_decay, as in torch. Independent: by (lr_t / lr) weight_decay, so that a sweep over
lr is no sweep over decay (Wortsman et al., 2023)."""


@runtime_checkable
class Optimizer(Protocol):
    """What the trainer uses."""

    reads_found_inf: bool
    lr: float
    """The peak that was asked for; a parameter's `lr_scale` is a factor to it."""

    @property
    def param_groups(self) -> list[dict[str, Any]]: ...
    def step(self) -> Any: ...
    def zero_grad(self, set_to_none: bool = True) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


def parameter_groups(
    parameters: Iterable[tuple[str, nn.Parameter, Role]],
    lr: float,
    weight_decay: float,
    decay: Decay = "coupled",
) -> list[dict[str, Any]]:
    """Every parameter in exactly one group; one group for each rate (lr times the parameter's own `lr_scale`) and
    kind (decayed or not). A scaled rate leaves the decay as it is (as in mup's MuAdamW).
    """
    groups: dict[tuple[bool, float], list[nn.Parameter]] = {}
    for _, parameter, role in parameters:
        key = (role in DECAYED, getattr(parameter, "lr_scale", 1.0))
        groups.setdefault(key, []).append(parameter)
    return [
        {
            "params": members,
            "lr": lr * scale,
            "weight_decay": weight_decay / scale / (lr if decay == "independent" else 1) if decayed else 0.0,
        }
        for (decayed, scale), members in sorted(groups.items(), key=lambda item: item[0], reverse=True)
    ]


def _pair(betas: list[float]) -> tuple[float, float]:
    if len(betas) != 2:
        raise ValueError(f"optimizer.betas={betas}: two numbers are needed, such as [0.9, 0.95]")
    return betas[0], betas[1]


def _with_gradients(group: dict[str, Any]) -> list[Any]:
    return [p for p in group["params"] if p.grad is not None]


def _unscaled(model: nn.Module, name: str) -> Iterator[tuple[str, nn.Parameter, Role]]:
    """The parameters, or ValueError if their rates are scaled in a way that this optimizer's steps do not follow."""
    for entry in parameter_roles(model):
        if getattr(entry[1], "lr_scale", 1.0) != 1.0:
            raise ValueError(f"init=mup scales the rates of Adam's steps: optimizer={name} needs another init")
        yield entry


HOST = {"cpu"}
"""Devices that nobody has to wait for."""

FUSED = {"cpu", "cuda"}
"""Devices whose fused kernels of torch read `found_inf`: on MPS that of AdamW took no notice up to torch 2.12 at least,
and that of SGD refuses it (pytorch/pytorch#186360). Elsewhere the trainer looks itself."""


def is_known(tensor: Tensor) -> bool:
    """Whether the host may look at a number of it without waiting."""
    return tensor.device.type in HOST


def unless(held: Tensor | None, step: Callable[[], None], changed: Callable[[], list[Tensor]]) -> None:
    """`step()`, but where `held` is 1 all that it has `changed` stays as it was."""
    if held is None or is_known(held):
        if not held:
            step()
        return
    before = [tensor.clone() for tensor in changed()]
    step()
    for now, then in zip(changed(), before, strict=True):
        now.copy_(torch.where(held.bool(), then, now))


class AdamW(FusedAdamW):
    """w <- w - lr (m / (sqrt(v) + eps) + weight_decay w)  (Loshchilov and Hutter, 2019)"""

    reads_found_inf = True

    def __init__(
        self,
        model: nn.Module,
        lr: Positive,
        betas: list[Probability],
        eps: Positive,
        weight_decay: NonNegative,
        decay: Decay = "coupled",
    ):
        pair, self.lr = _pair(betas), lr
        groups = parameter_groups(parameter_roles(model), lr, weight_decay, decay)
        super().__init__(groups, lr, pair, eps)


class SGD(torch.optim.SGD):
    """m <- momentum m + g + weight_decay w;  w <- w - lr m  (Polyak, 1964)"""

    reads_found_inf = True

    def __init__(self, model: nn.Module, lr: Positive, momentum: Probability, weight_decay: NonNegative):
        self.lr = lr
        groups = parameter_groups(_unscaled(model, "sgd"), lr, weight_decay)
        super().__init__(groups, lr=lr, momentum=momentum, fused=True)
        if momentum:  # torch makes it in the first step, of whatever the memory held where that step is held back
            for parameter in (p for group in groups for p in group["params"]):
                self.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)


class Adafactor(torch.optim.Adafactor):
    """Adam with a factored second moment and steps relative to RMS(w)  (Shazeer and Stern, 2018)"""

    reads_found_inf = False

    def __init__(
        self,
        model: nn.Module,
        lr: Positive,
        beta2_decay: Annotated[float, Gt(float("-inf")), Le(0)],
        clip: Factor,
        weight_decay: NonNegative,
    ):
        self.lr = lr
        groups = parameter_groups(_unscaled(model, "adafactor"), lr, weight_decay)
        super().__init__(groups, lr=lr, beta2_decay=beta2_decay, d=clip)


class Lion(torch.optim.Optimizer):
    """w <- w - lr (sign(b1 m + (1 - b1) g) + weight_decay w);  m <- b2 m + (1 - b2) g  (Chen et al., 2023)"""

    reads_found_inf = True

    def __init__(self, model: nn.Module, lr: Positive, betas: list[Probability], weight_decay: NonNegative):
        pair, self.lr = _pair(betas), lr
        groups = parameter_groups(parameter_roles(model), lr, weight_decay)
        super().__init__(groups, {"lr": lr, "betas": pair, "weight_decay": weight_decay})
        self.found_inf: Tensor | None = None

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        unless(self.found_inf, self._step, self._changed)

    def _step(self) -> None:
        for group in self.param_groups:
            parameters = _with_gradients(group)
            if not parameters:
                continue
            gradients = [p.grad for p in parameters]
            moments = [self._moment(p) for p in parameters]
            (b1, b2), lr = group["betas"], group["lr"]
            directions = torch._foreach_lerp(moments, gradients, 1 - b1)
            torch._foreach_sign_(directions)
            torch._foreach_mul_(parameters, 1 - lr * group["weight_decay"])
            torch._foreach_add_(parameters, directions, alpha=-lr)
            torch._foreach_lerp_(moments, gradients, 1 - b2)

    def _changed(self) -> list[Tensor]:
        parameters = [p for group in self.param_groups for p in _with_gradients(group)]
        return [*parameters, *map(self._moment, parameters)]

    def _moment(self, parameter: Tensor) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["moment"] = torch.zeros_like(parameter)
        return state["moment"]


class Muon:
    """w <- w - lr 0.2 sqrt(max(shape)) orthogonalised(momentum), for the matrices inside the blocks; AdamW elsewhere

    (Jordan et al., 2024). The factor gives its steps the RMS of AdamW's, so both share one rate (Liu et al., 2025).
    """

    reads_found_inf = True

    def __init__(
        self,
        model: nn.Module,
        lr: Positive,
        momentum: Probability,
        betas: list[Probability],
        eps: Positive,
        weight_decay: NonNegative,
    ):
        pair, self.lr = _pair(betas), lr
        everything = list(_unscaled(model, "muon"))
        matrices: tuple[Role, ...] = ("hidden", "score", "gate", "stream")
        inside = [entry for entry in everything if entry[2] in matrices and entry[1].ndim == 2]
        names = {name for name, _, _ in inside}
        outside = [entry for entry in everything if entry[0] not in names]
        self.muon = torch.optim.Muon(
            parameter_groups(inside, lr, weight_decay), momentum=momentum, adjust_lr_fn="match_rms_adamw"
        )
        groups = parameter_groups(outside, lr, weight_decay)
        self.adamw = FusedAdamW(groups, lr, pair, eps)
        self.found_inf: Tensor | None = None

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        return list(chain(self.muon.param_groups, self.adamw.param_groups))

    @torch.no_grad()
    def step(self) -> None:
        unless(self.found_inf, self.muon.step, self._changed)
        self.adamw.found_inf = self.found_inf
        self.adamw.step()

    def _changed(self) -> list[Tensor]:
        """Weights and momenta, which torch begins at zero in the first step."""
        matrices = [p for group in self.muon.param_groups for p in _with_gradients(group)]
        for matrix in matrices:
            self.muon.state[matrix].setdefault("momentum_buffer", torch.zeros_like(matrix))
        return [*matrices, *(self.muon.state[matrix]["momentum_buffer"] for matrix in matrices)]

    def zero_grad(self, set_to_none: bool = True) -> None:
        self.muon.zero_grad(set_to_none)
        self.adamw.zero_grad(set_to_none)

    def state_dict(self) -> dict[str, Any]:
        return {"muon": self.muon.state_dict(), "adamw": self.adamw.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.muon.load_state_dict(state_dict["muon"])
        self.adamw.load_state_dict(state_dict["adamw"])
