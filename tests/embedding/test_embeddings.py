"""Token tables, and the heads that read or share them."""

from __future__ import annotations

import torch
from torch import nn

from modernllm.embedding.normed import NormedEmbedding
from modernllm.embedding.plain import Embedding
from modernllm.embedding.scaled import ScaledEmbedding
from modernllm.head.tied import TiedHead
from modernllm.head.untied import UntiedHead
from modernllm.linear import parameter_roles


def table(kind: type[Embedding]) -> Embedding:
    embedding = kind(7, 9)
    nn.init.normal_(embedding.weight)
    return embedding


TOKENS = torch.tensor([[0, 6, 3], [3, 3, 1]])


def test_plain_is_the_row() -> None:
    embedding = table(Embedding)
    expected = torch.stack([torch.stack([embedding.weight[t] for t in row]) for row in TOKENS.tolist()])
    assert torch.equal(embedding(TOKENS), expected)


def test_scaled_is_the_row_times_the_root_of_the_width() -> None:
    plain, scaled = table(Embedding), ScaledEmbedding(7, 9)
    scaled.load_state_dict(plain.state_dict())
    assert torch.equal(scaled(TOKENS), 3 * plain(TOKENS))


def test_normed_is_the_row_over_its_rms() -> None:
    """However long a row is, and a row of zeros stays one."""
    embedding = NormedEmbedding(7, 9, eps=1e-3)
    nn.init.normal_(embedding.weight, std=5.0)
    nn.init.zeros_(embedding.weight[1])
    rows = [[embedding.weight[t].detach() for t in row] for row in TOKENS.tolist()]
    expected = [[w / (w.pow(2).mean() + 1e-3).sqrt() for w in row] for row in rows]
    x = embedding(TOKENS)
    torch.testing.assert_close(x.detach(), torch.stack([torch.stack(row) for row in expected]))
    x.sum().backward()
    assert embedding.weight.grad is not None
    assert embedding.weight.grad.isfinite().all()


def test_a_tied_head_is_the_table() -> None:
    embedding = table(Embedding)
    head = TiedHead(9, 7, embedding)
    x = torch.randn(2, 3, 9)
    expected = torch.stack([(x * embedding.weight[v]).sum(-1) for v in range(7)], dim=-1)
    torch.testing.assert_close(head(x), expected)
    assert head.weight is embedding.weight


def test_a_tied_head_trains_the_table_from_both_sides() -> None:
    embedding = table(Embedding)
    head = TiedHead(9, 7, embedding)
    copy = UntiedHead(9, 7, embedding)
    copy.weight.data.copy_(embedding.weight)
    (both,) = torch.autograd.grad(head(embedding(TOKENS)).pow(2).sum(), [embedding.weight])
    apart = torch.autograd.grad(copy(embedding(TOKENS)).pow(2).sum(), [embedding.weight, copy.weight])
    torch.testing.assert_close(both, apart[0] + apart[1])


def test_what_a_table_is_for_decides_its_role() -> None:
    """Drawn small where it is the output matrix, or multiplied on reading; once, by its first name."""
    for kind, tied, expected in (
        (Embedding, False, {"0.weight": "embedding", "1.weight": "head"}),
        (ScaledEmbedding, False, {"0.weight": "small_embedding", "1.weight": "head"}),
        (Embedding, True, {"0.weight": "small_embedding"}),
        (ScaledEmbedding, True, {"0.weight": "small_embedding"}),
    ):
        embedding = kind(7, 9)
        model = nn.Sequential(embedding, (TiedHead if tied else UntiedHead)(9, 7, embedding))
        assert {name: role for name, _, role in parameter_roles(model)} == expected
        assert Embedding(7, 9).roles == {"weight": "embedding"}
