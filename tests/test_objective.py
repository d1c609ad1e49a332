"""Losses against a log-softmax written out, in any precision, and their sums (F-26, F-101)."""

from __future__ import annotations

import math

import pytest
import torch
from models import tiny, windows
from torch import Tensor, nn

from modernllm.batch import IGNORED, Batch
from modernllm.context import Context
from modernllm.evaluation import evaluate, evaluating
from modernllm.objective import Objective, token_losses
from modernllm.precision import autocast


def test_the_formula() -> None:
    logits = 3 * torch.randn(2, 4, 5, dtype=torch.float64)
    targets = torch.tensor([[1, 4, IGNORED, 0], [IGNORED, 2, 2, 3]])
    expected = [
        [
            0.0 if y == IGNORED else math.log(sum(math.exp(z) for z in row)) - row[y]
            for row, y in zip(rows, ys, strict=True)
        ]
        for rows, ys in zip(logits.tolist(), targets.tolist(), strict=True)
    ]
    losses = token_losses(logits.float(), Batch(targets.clamp(min=0), targets))
    torch.testing.assert_close(losses, torch.tensor(expected), rtol=1e-5, atol=1e-6)


def test_low_precision_logits_have_float32_losses() -> None:
    """F-26: the losses of the same numbers; in bf16 a loss of 14.02 would be 14."""
    logits = (8 * torch.randn(4, 8, 64)).bfloat16()
    batch = Batch(torch.zeros(4, 8, dtype=torch.int64), torch.randint(64, (4, 8)))
    losses = token_losses(logits, batch)
    assert losses.dtype == torch.float32
    exact = -logits.double().log_softmax(-1).gather(-1, batch.targets[..., None])[..., 0]  # type: ignore[index]
    assert float((losses - exact).abs().max()) < 1e-3
    assert float((exact.bfloat16() - exact).abs().max()) > 1e-2


class WithAuxiliary(nn.Module):
    def forward(self, batch: Batch, context: Context) -> Tensor:
        context.losses["balance"], context.losses["z"] = torch.tensor(2.0), torch.tensor(0.5)
        return torch.zeros(*batch.tokens.shape, 8)


def test_sums_over_targets_and_over_auxiliary_losses() -> None:
    targets = torch.tensor([[1, IGNORED, 3], [IGNORED, IGNORED, 7]])
    nats, auxiliary = Objective(WithAuxiliary())(Batch(targets.clamp(min=0), targets))
    assert float(nats) == pytest.approx(3 * math.log(8))
    assert float(auxiliary) == 2.5
    _, nothing = Objective(tiny())(windows())
    assert float(nothing) == 0.0


class Certain(nn.Module):
    """A loss that depends on the token read: logits of which the target's share is exp(-token)."""

    def forward(self, batch: Batch) -> Tensor:
        share = torch.exp(-batch.tokens.double())
        return torch.stack((share.log(), (1 - share).log()), -1).float()


def certain(losses: list[int], ignored: int = 0) -> Batch:
    """One row whose targets cost so many nats each, and some positions that do not count."""
    tokens = torch.tensor([[*losses, *[5] * ignored]])
    return Batch(tokens, torch.tensor([[0] * len(losses) + [IGNORED] * ignored]))


CPU = torch.device("cpu")


def test_validation_weighs_tokens() -> None:
    """F-101: 2 targets of 1 nat and 6 of 9 are 7 nats on average, not 5; ignored positions count nowhere."""
    batches = [certain([1] * 2, ignored=3), certain([9] * 6)]
    loss = evaluate(Certain(), batches, torch.tensor([4, 1]), autocast("fp32", CPU))
    assert loss.nats_per_token == pytest.approx(7.0, rel=1e-5)
    assert loss.bits_per_byte == pytest.approx(7.0 / math.log(2) / 4, rel=1e-5)
    assert math.isnan(evaluate(Certain(), batches, torch.tensor([0, 1]), autocast("fp32", CPU)).bits_per_byte)


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_the_cut_into_batches_does_not_matter(rows: int) -> None:
    model, batch, token_bytes = tiny(), windows(rows=8), torch.ones(61, dtype=torch.int64)
    whole = evaluate(model, [batch], token_bytes, autocast("fp32", CPU))
    cut = evaluate(model, batch.split(rows), token_bytes, autocast("fp32", CPU))
    assert cut.nats_per_token == pytest.approx(whole.nats_per_token, rel=1e-6)
    assert evaluate(model, [batch], token_bytes, autocast("fp32", CPU)) == whole


def test_evaluation_leaves_no_trace() -> None:
    """F-47, F-92: dropout is off inside and on again outside, also after an error; nothing is drawn."""
    model, batches, token_bytes = (
        tiny("model.dropout=0.5").train(),
        [windows()],
        torch.ones(61, dtype=torch.int64),
    )
    state = torch.get_rng_state()
    first = evaluate(model, batches, token_bytes, autocast("fp32", CPU))
    assert first == evaluate(model, batches, token_bytes, autocast("fp32", CPU))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(module.training for module in model.modules())
    with pytest.raises(ZeroDivisionError), evaluating(model):
        assert 1 // sum(module.training for module in model.modules()) < 0
    assert all(module.training for module in model.modules())
    model.eval()
    with evaluating(model):
        assert not model.training
    assert not model.training


def test_evaluation_in_bfloat16_is_near() -> None:
    model, batches, token_bytes = tiny(), [windows()], torch.ones(61, dtype=torch.int64)
    exact = evaluate(model, batches, token_bytes, autocast("fp32", CPU))
    rounded = evaluate(model, batches, token_bytes, autocast("bf16", CPU))
    assert rounded.nats_per_token != exact.nats_per_token
    assert rounded.nats_per_token == pytest.approx(exact.nats_per_token, rel=0.01)


def test_the_z_loss() -> None:
    """weight * (log sum exp)^2 over the target tokens only, in float32, with the gradient of that formula."""
    logits = (3 * torch.randn(2, 4, 5, dtype=torch.float64)).requires_grad_()
    targets = torch.tensor([[1, 4, IGNORED, 0], [IGNORED, 2, 2, 3]])
    batch = Batch(targets.clamp(min=0), targets)

    class Given(nn.Module):
        def forward(self, batch: Batch, context: Context) -> Tensor:
            return logits

    nats, auxiliary = Objective(Given(), z_loss=0.1)(batch)
    expected = 0.1 * sum(
        math.log(sum(math.exp(z) for z in row)) ** 2
        for rows, ys in zip(logits.tolist(), targets.tolist(), strict=True)
        for row, y in zip(rows, ys, strict=True)
        if y != IGNORED
    )
    assert float(auxiliary.detach()) == pytest.approx(expected, rel=1e-6)
    (found,) = torch.autograd.grad(auxiliary, [logits])
    z = logits.logsumexp(-1)
    (formula,) = torch.autograd.grad((0.1 * z.square() * (targets != IGNORED)).sum(), [logits])
    torch.testing.assert_close(found, formula, rtol=1e-5, atol=1e-6)
    assert torch.equal(nats, Objective(Given())(batch)[0])
    assert float(Objective(Given())(batch)[1]) == 0.0


def test_the_z_loss_pulls_the_normaliser_to_one() -> None:
    """On a model: the same text, and log Z a tenth of what it was."""
    sizes = []
    for weight in (0.0, 1.0):
        model, batch = tiny("head=untied"), windows(rows=8)
        objective = Objective(model, weight)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(30):
            optimizer.zero_grad()
            nats, auxiliary = objective(batch)
            ((nats + auxiliary) / batch.n_targets).backward()
            optimizer.step()
        sizes.append(float(model(batch).logsumexp(-1).square().mean().detach()))
    assert sizes[1] < sizes[0] / 10
