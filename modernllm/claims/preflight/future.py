"""No arm sees the future: what comes after position t changes no logit at or before it, and has no gradient there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from modernllm.batch import Batch
from modernllm.claims.preflight.arm import Arm
from modernllm.claims.preflight.certificate import Check
from modernllm.init import named_generator
from modernllm.linear import parameter_roles

EVERY, FEW = 64, 12
"""Texts of up to so many tokens are cut after every position, longer ones after a few."""
TOLERANCE = 1e-5
"""Of the largest logit: what rounding may move."""
LOGITS = 2**26
"""Numbers that are held at once."""


@dataclass(frozen=True)
class Sight:
    """What was seen of one arm in one mode; `leak` says how it sees the future, if it does."""

    mode: str
    leak: str | None
    cuts: int
    change: float
    gradients: str


def check_future(arms: Sequence[Arm]) -> Check:
    """ValueErrors of the models pass through."""
    seen = {arm.name: [look(arm, training) for training in (False, True)] for arm in arms}
    leaks = [f"{name}, {sight.mode} mode: {sight.leak}" for name, both in seen.items() for sight in both if sight.leak]
    details = {name: [vars(sight) for sight in both] for name, both in seen.items()}
    if leaks:
        return Check("no future", False, "; ".join(leaks), details)
    cuts = min(sight.cuts for both in seen.values() for sight in both)
    ways = {sight.gradients for both in seen.values() for sight in both}
    how = "by values and gradients" if ways == {"seen"} else "by values; gradients " + ", ".join(sorted(ways))
    return Check("no future", True, f"{cuts} cuts a mode, eval and train, {how}", details)


def look(arm: Arm, training: bool) -> Sight:
    """At the start, in float32, with everything awake that starts at zero and would hide what is behind it."""
    model = awake(arm.model()).train(training)
    mode = "train" if training else "eval"
    length = arm.config["model"]["context_length"]
    cuts = cuts_of(length)
    tokens = texts(arm, len(cuts), first=STEP_OF_MODE[training])
    vocabulary = arm.config["model"]["vocab_size"]
    leak, change = by_values(model, tokens, cuts, vocabulary)
    gradients = "not looked at"
    if leak is None:
        leak, gradients = by_gradients(model, tokens[:2], [0, length // 2 - 1, length - 2])
    return Sight(mode, leak, len(cuts), change, gradients)


STEP_OF_MODE = {False: 0, True: 1000}
"""Other texts in each mode."""


def cuts_of(length: int) -> list[int]:
    """Last positions before the text is changed."""
    if length <= EVERY:
        return list(range(length - 1))
    powers = [2**n + d for n in range(length.bit_length()) for d in (-1, 0) if 2**n + d < length - 1]
    few = [*powers[:: max(1, len(powers) // (FEW - 3))], 0, length // 3, length - 2]
    return sorted(set(few))


def texts(arm: Arm, rows: int, first: int) -> Int[Tensor, "b t"]:
    """So many rows of the arm's own training batches."""
    found: list[Tensor] = []
    while sum(map(len, found)) < rows:
        found.append(arm.prepared.windows(first + len(found)).tokens)
    return torch.cat(found)[:rows].to(arm.device)


def by_values(
    model: nn.Module, tokens: Int[Tensor, "b t"], cuts: list[int], vocabulary: int
) -> tuple[str | None, float]:
    """Row r is changed after position cuts[r]. A leak in words, and the largest change at or before a cut, as a share
    of the largest logit.
    """
    positions = torch.arange(tokens.shape[1], device=tokens.device)
    after = positions > torch.tensor(cuts, device=tokens.device)[:, None]
    draw = torch.Generator().manual_seed(0)
    shift = torch.randint(1, max(2, vocabulary), tokens.shape, generator=draw).to(tokens.device)
    changed = torch.where(after, (tokens + shift) % vocabulary, tokens)
    rows = max(1, LOGITS // (tokens.shape[1] * vocabulary))
    worst, moved = 0.0, False
    for part, other, late, cut in zip(
        tokens.split(rows), changed.split(rows), after.split(rows), torch.tensor(cuts).split(rows), strict=True
    ):
        before, again, now = _logits(model, part), _logits(model, part), _logits(model, other)
        largest = before.abs().max()
        if not largest.isfinite():
            return "its logits are not finite at the start, so nothing can be said", float("nan")
        if not bool((before - again).abs().max() <= TOLERANCE * largest):
            return "the same tokens give other logits when they are read twice, so nothing can be said", float("nan")
        change = (now - before).abs().amax(-1) / largest
        early = change.masked_fill(late, 0.0)
        worst, moved = max(worst, float(early.max())), moved or bool(change[late].any())
        if not float(early.max()) <= TOLERANCE:
            return _leak(early, cut.tolist()), worst
    return (None if moved else "the tokens do not matter: no logit moves when they change"), worst


def _logits(model: nn.Module, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t v"]:
    torch.manual_seed(0)  # the same dropout
    with torch.no_grad():
        return model(Batch(tokens)).float()


def _leak(change: Float[Tensor, "b t"], cuts: list[int]) -> str:
    row = int(change.amax(1).argmax())
    position = int(change[row].argmax())
    return (
        f"the logits at position {position} change by {float(change[row, position]):.1e} of the largest "
        f"when the tokens after position {cuts[row]} do"
    )


def by_gradients(model: nn.Module, tokens: Int[Tensor, "b t"], cuts: list[int]) -> tuple[str | None, str]:
    """The gradient of all logits at or before a cut with respect to the embedded tokens after it is exactly zero."""
    torch.manual_seed(0)
    with embedded(model, tokens) as found:
        logits = model(Batch(tokens))
    if not found:
        return None, "no module embeds the tokens by itself"
    draw = torch.Generator().manual_seed(1)
    direction = torch.randn(logits.shape, generator=draw).to(logits)
    for cut in cuts:
        loss = (logits * direction)[:, : cut + 1].sum()
        try:
            (gradient,) = torch.autograd.grad(loss, found[0], retain_graph=True)
        except RuntimeError as error:
            return None, f"cannot be taken ({str(error).partition(chr(10))[0]})"
        late = gradient[:, cut + 1 :].flatten(2).ne(0).any(-1).any(0)
        if late.any():
            return _reach(late, cut), "seen"
    return None, "seen"


def _reach(late: Bool[Tensor, " t"], cut: int) -> str:
    position = cut + 1 + int(late.nonzero()[0])
    return f"logits at or before position {cut} have a gradient to the token at position {position}"


@contextmanager
def embedded(model: nn.Module, tokens: Int[Tensor, "b t"]) -> Iterator[list[Tensor]]:
    """While it lasts, what the first module makes that is called on the tokens alone, as the leaf of a graph."""
    found: list[Tensor] = []

    def note(module: nn.Module, given: tuple[Any, ...], made: Any) -> Tensor | None:
        whole = bool(given) and isinstance(given[0], Tensor) and given[0].shape == tokens.shape
        vectors = isinstance(made, Tensor) and made.ndim == 3 and made.is_floating_point()
        if found or not (whole and vectors and torch.equal(given[0], tokens)):
            return None
        found.append(made.detach().requires_grad_())
        return found[0]

    hooks = [module.register_forward_hook(note) for module in model.modules()]
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()


def awake(model: nn.Module) -> nn.Module:
    """With whatever starts at zero, but for biases, drawn at random."""
    for name, parameter in asleep(model):
        with torch.no_grad():
            value = torch.empty(parameter.shape)
            value.normal_(0, max(1, *parameter.shape[-1:]) ** -0.5, generator=named_generator(0, f"{name} awake"))
            parameter.copy_(value)
    return model


def asleep(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, parameter, role in parameter_roles(model):
        if role != "bias" and parameter.numel() and not parameter.any():
            yield name, parameter
