"""Models of other hands are trained, evaluated, generated from and read back like ours."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from running import run

from modernllm.batch import Batch
from modernllm.config.build import build_model, resolve
from modernllm.config.check import check
from modernllm.config.compose import compose
from modernllm.config.errors import ConfigError
from modernllm.family.external import External
from modernllm.generate import generate

SHIPPED = {"hf_llama": "transformers", "x_transformers": "x_transformers"}

# what their own packages say when they are imported or made is theirs
pytestmark = pytest.mark.filterwarnings("ignore")


class Bigram(torch.nn.Module):
    """The smallest causal model: a table from token to logits."""

    def __init__(self, vocab_size: int, context_length: int, dim: int, n_layers: int, n_heads: int):
        super().__init__()
        self.table = torch.nn.Embedding(vocab_size, vocab_size)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table(tokens)


@pytest.mark.parametrize("family", SHIPPED)
def test_a_shipped_example_sees_no_future(family: str) -> None:
    pytest.importorskip(SHIPPED[family], reason=f"family={family} needs the package {SHIPPED[family]}")
    cfg = compose([f"family={family}", "size=nano", "model.dim=32", "model.n_layers=2", "model.context_length=16"])
    check(cfg)
    torch.manual_seed(0)
    model, dead = build_model(resolve(cfg)["model"], vocab_size=31)
    assert dead == []
    tokens = torch.arange(16)[None] % 31
    changed = tokens.clone()
    changed[:, 9:] = 7
    with torch.no_grad():
        before, after = model.eval()(Batch(tokens)), model(Batch(changed))
    assert before.shape == (1, 16, 31)
    torch.testing.assert_close(after[:, :9], before[:, :9], rtol=0, atol=1e-5)


def test_a_run_of_an_external_module(tmp_path: Path) -> None:
    words = [
        "family=external",
        f"model.module._target_={__name__}.Bigram",
        f"allow_targets=[{__name__}.Bigram]",
        "optimizer.lr=0.1",
        "trainer.steps=120",
    ]
    code, done = run(*words, f"out={tmp_path}")
    assert code == 0
    assert done.outcome == "ok"
    assert done.identity["cache_bytes_per_token"] is None
    assert done.val_loss < done.identity["floors"]["unigram"]
    assert {name for row in done.telemetry for name in row.get("grad_norm", ())} == {"table"}
    assert math.isfinite(done.status["tokens_per_s"])
    with pytest.raises(ConfigError, match="allow_targets"):
        done.model()  # the folder's own list counts for nothing
    again = done.model(allow_targets=[f"{__name__}.Bigram"])
    assert isinstance(again, External)
    assert generate(again, torch.tensor([[65]]), 5, temperature=0.0).shape == (1, 6)


def test_an_external_module_is_told_no_padding() -> None:
    model = External(vocab_size=5, context_length=4, dim=1, n_layers=1, n_heads=1, module=Bigram)
    with pytest.raises(ValueError, match="knows no padding and no segments"):
        model(Batch(torch.zeros(1, 4, dtype=torch.long), mask=torch.ones(1, 4, dtype=torch.bool)))


def test_parts_of_ours_do_not_go_into_other_hands_models() -> None:
    with pytest.raises(ConfigError, match="External has no norm"):
        check(compose(["family=hf_llama", "norm=layernorm"]))


def test_our_parts_draw_nothing_themselves(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"init=own: .* draws nothing itself"):
        run("init=own", f"out={tmp_path}")
