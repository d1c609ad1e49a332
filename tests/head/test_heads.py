"""Heads: capped logits, starts of their own, and what a start at zero costs (F-13)."""

from __future__ import annotations

import math

import pytest
import torch
from models import VOCAB, choices, close, config, made, tiny, windows
from torch import nn

from modernllm.config.check import check
from modernllm.config.compose import compose
from modernllm.config.errors import ConfigError
from modernllm.embedding.plain import Embedding
from modernllm.head.softcapped import SoftcappedHead, TiedSoftcappedHead
from modernllm.head.tied import TiedHead
from modernllm.head.untied import UntiedHead
from modernllm.objective import Objective, token_losses

CAPPED = [(SoftcappedHead, UntiedHead), (TiedSoftcappedHead, TiedHead)]


@pytest.mark.parametrize(("capped", "plain"), CAPPED)
def test_the_cap(capped: type[SoftcappedHead], plain: type[UntiedHead]) -> None:
    """cap tanh(z / cap): never beyond the cap, in order, and z itself where it is small or the cap is wide."""
    embedding = Embedding(7, 9)
    nn.init.normal_(embedding.weight)
    uncapped, x = plain(9, 7, embedding), 10 * torch.randn(2, 3, 9)
    head = capped(9, 7, embedding, cap=5.0)
    head.load_state_dict(uncapped.state_dict())
    z = uncapped(x)
    expected = [[[5 * math.tanh(v / 5) for v in row] for row in rows] for rows in z.tolist()]
    torch.testing.assert_close(head(x).detach(), torch.tensor(expected))
    assert float(head(x).detach().abs().max()) <= 5.0
    assert torch.equal(head(x).argmax(-1), z.argmax(-1))
    close(head(1e-3 * x), 1e-3 * z, 1e-4)
    head.cap = 1e6
    torch.testing.assert_close(head(x), z)


def test_a_cap_of_one_leaves_little_to_choose() -> None:
    """F-13: logits of +-50 under a cap of 1 are at most e^2 apart, with a gradient for what is beyond the cap."""
    head = SoftcappedHead(4, 3, Embedding(3, 4), cap=1.0)
    with torch.no_grad():
        head.weight.copy_(torch.tensor([[50.0], [-50.0], [0.0]]).expand(3, 4) / 4)
    probabilities = head(torch.ones(1, 1, 4)).softmax(-1)[0, 0]
    assert float((probabilities[0] / probabilities[1]).detach()) == pytest.approx(math.e**2, rel=1e-5)


@pytest.mark.parametrize("cap", ["0", "-1", ".inf", "null"])
@pytest.mark.parametrize("head", ["softcapped", "tied_softcapped"])
def test_a_cap_that_is_none_is_refused_as_the_configuration_is_read(head: str, cap: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.head\.cap="):
        check(compose([f"head={head}", f"model.head.cap={cap}"]))


@pytest.mark.parametrize("init", ["fanin", "gpt2", "mup"])
@pytest.mark.parametrize("std", [0.0, 0.02, 1.0])
def test_the_standard_deviation_of_the_start(std: float, init: str) -> None:
    """The head's own in place of the initialisation's; the first loss is ln V + variance of the logits / 2."""
    batch = windows(rows=32)
    model = made(config("head=untied", f"init={init}", f"model.head.std={std}"))
    weight = model.head.get_parameter("weight").detach()
    assert float(weight.std()) == pytest.approx(std, rel=0.1)
    loss = float(token_losses(model(batch).detach(), batch).mean())
    variance = 32 * std**2
    if variance < 1:
        assert loss == pytest.approx(math.log(VOCAB) + variance / 2, abs=0.02 if std else 1e-6)
    else:
        assert loss > math.log(VOCAB) + 5


def test_the_table_of_a_tied_head_has_its_start_too() -> None:
    model = tiny("head=tied", "model.head.std=0.3")
    assert float(model.embedding.get_parameter("weight").detach().std()) == pytest.approx(0.3, rel=0.1)


def test_zero_is_untied_of_standard_deviation_zero() -> None:
    assert config("head=zero") == config("head=untied", "model.head.std=0.0")
    assert not tiny("head=zero")(windows()).any()


def test_at_the_first_step_of_zero_only_the_head_learns() -> None:
    model, batch = tiny("head=zero"), windows()
    for expected in ({"head.weight"}, {name for name, _ in model.named_parameters()}):
        model.zero_grad()
        Objective(model)(batch)[0].backward()
        moved = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
        assert moved == expected
        with torch.no_grad():
            model.head.get_parameter("weight").normal_()


@pytest.mark.parametrize("head", [choice for choice in choices("head") if choice != "head=zero"])
def test_a_head_shares_its_start_with_its_siblings(head: str) -> None:
    """The same name and role: the same numbers, so that a cap is compared on paired runs."""
    like = tiny("head=tied" if "tied" in head and "untied" not in head else "head=untied")
    for name, p in tiny(head).named_parameters():
        assert torch.equal(p, like.get_parameter(name))
