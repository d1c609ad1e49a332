"""Matched arms, against widths that were computed by hand, and refusals that show the way out."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
import torch
from running import SMALL

from modernllm.claims.fairness import Fairness, match, require_equal_budgets
from modernllm.claims.preflight.command import Arms
from modernllm.sweep.plan import Planned

WIDE = ("model.dim=96", "model.n_heads=4")
D, LAYERS, HEAD = 96, 2, 24


ARMS = Arms()


@cache
def arm(*words: str) -> Planned:
    return ARMS(list({word.partition("=")[0]: word for word in (*SMALL, *WIDE, *words)}.values()))


def matched(first: Planned, second: Planned, mode: str, **keywords: object) -> Fairness:
    return match({"first": first, "second": second}, mode, **keywords)  # type: ignore[arg-type]


# --- parameters


def test_a_gated_feed_forward_is_two_thirds_as_wide() -> None:
    """2 d f = 3 d f': 384 against 256, and back."""
    plain, gated = arm("activation=gelu"), arm("activation=swiglu", "model.hidden=384")
    found = matched(plain, gated, "params")
    assert found.overrides == {"first": [], "second": ["model.hidden=256"]}
    assert found.costs["first"].non_embedding == found.costs["second"].non_embedding
    assert found.mismatch["second"]["non_embedding"] == 0
    back = matched(gated, plain, "params")
    assert back.overrides["second"] == ["model.hidden=576"]


def test_what_matches_already_is_left_alone() -> None:
    """Gated ones are that wide by themselves, and Post-Norm lacks the 96 gains of a final norm."""
    assert matched(arm("activation=gelu"), arm("activation=swiglu"), "params").overrides["second"] == []
    found = matched(arm("placement=pre"), arm("placement=post"), "params")
    assert found.overrides["second"] == []
    assert found.costs["first"].non_embedding - found.costs["second"].non_embedding == D


@pytest.mark.parametrize(
    ("activation", "attention", "share", "width"),
    [("gelu", "gqa", 1 / 2, 384 + 48), ("gelu", "mqa", 3 / 4, 384 + 72), ("swiglu", "gqa", 1 / 2, 256 + 32)],
)
def test_what_grouped_heads_free_goes_into_the_feed_forward(
    activation: str, attention: str, share: float, width: int
) -> None:
    """2 d^2 (1 - g/h) a layer: d (1 - g/h) of width where it is plain, 2/3 of that where it is gated."""
    first, second = arm(f"activation={activation}"), arm(f"activation={activation}", f"attention={attention}")
    found = matched(first, second, "params")
    assert found.overrides["second"] == [f"model.hidden={width}"]
    assert found.costs["first"].non_embedding == found.costs["second"].non_embedding
    unmatched = match({"first": first, "second": second}, "none").costs
    assert unmatched["first"].non_embedding - unmatched["second"].non_embedding == LAYERS * 2 * D * D * share


def test_tables_are_not_matched() -> None:
    """Of a vocabulary ten times as large, nothing is taken from the feed-forward."""
    large = arm("model.vocab_size=2590")
    found = matched(arm(), large, "params")
    assert found.overrides["second"] == []
    assert found.costs["second"].parameters - found.costs["first"].parameters == 2 * (2590 - 259) * D
    assert found.mismatch["second"]["parameters"] > 1


# --- experts


def test_experts_at_equal_active_flops() -> None:
    """Two of eight experts at half the width, less the router: 2 (3 d f') + 8 d = 3 d f, f' = 128 - 4/3."""
    dense, sparse = arm(), arm("moe=topk")
    found = matched(dense, sparse, "flops")
    assert found.overrides["second"] == ["model.hidden=128"]
    costs = found.costs
    assert costs["second"].flops_per_token - costs["first"].flops_per_token == LAYERS * 2 * 8 * D
    assert costs["second"].active - costs["first"].active == LAYERS * 8 * D
    assert costs["second"].parameters - costs["second"].active == LAYERS * 6 * 3 * D * 128
    assert matched(dense, sparse, "flops", multiple=1).overrides["second"] == ["model.hidden=127"]


def test_experts_at_equal_parameters() -> None:
    """Eight experts of an eighth: f' = 32 - 8/24."""
    found = matched(arm(), arm("moe=topk"), "params")
    assert found.overrides["second"] == ["model.hidden=32"]
    routers = LAYERS * 8 * D / found.costs["first"].non_embedding
    assert found.mismatch["second"]["non_embedding"] == pytest.approx(routers)


# --- FLOPs


def test_flops_that_a_window_frees_go_into_the_feed_forward() -> None:
    """4 d (mean of keys) in scores and values: a text of 32 has 16.5 on the mean, a window of 8 has 7.125."""
    found = matched(arm(), arm("attention=window", "model.attention.size=8"), "flops", multiple=1)
    width = 256 + 4 * D * (16.5 - 7.125) / (6 * D)
    assert found.overrides["second"] == [f"model.hidden={round(width)}"]
    assert found.costs["second"].non_embedding > found.costs["first"].non_embedding


# --- cache


def test_the_latent_that_caches_what_grouped_heads_do() -> None:
    """2 g k = c + r, with two heads of 24 and r = 12: c = 84."""
    found = matched(arm("attention=gqa"), arm("attention=mla"), "cache")
    assert found.overrides["second"] == ["model.attention.kv_rank=84"]
    bytes_per_token = 4 * LAYERS * 2 * 2 * HEAD
    assert found.costs["first"].cache_bytes_per_token == bytes_per_token == found.costs["second"].cache_bytes_per_token


def test_the_grouped_heads_that_cache_what_one_head_does() -> None:
    found = matched(arm("attention=mqa"), arm("attention=gqa"), "cache")
    assert found.overrides["second"] == ["model.n_kv_heads=1"]


def test_a_cache_that_cannot_be_equal_is_refused() -> None:
    """84 + 12 numbers of a latent; full heads keep 192, grouped ones 48 times 1, 2 or 4."""
    latent = arm("attention=mla", "model.attention.kv_rank=60")
    with pytest.raises(
        ValueError, match=r"second has 768 bytes of cache a token with model.n_kv_heads=null, first has 576"
    ):
        matched(latent, arm("attention=gqa"), "cache")
    with pytest.raises(ValueError, match=r"model\.n_kv_heads changes nothing about it"):
        matched(latent, arm("attention=mha"), "cache")


def test_a_model_of_other_hands_has_no_cache_to_match() -> None:
    bag = arm("family=external", "model.module._target_=planted_arms.Bag", "allow_targets=[planted_arms.Bag]")
    with pytest.raises(ValueError, match="does not say what its cache holds"):
        matched(bag, arm(), "cache")
    with pytest.raises(ValueError, match=r"and model\.hidden changes nothing about it; declare another knob"):
        matched(arm(), bag, "params")


# --- knobs and refusals


def test_another_knob_is_turned_where_it_is_declared() -> None:
    found = matched(arm(), arm("attention=mla"), "params", knobs={"second": "model.attention.kv_rank"}, multiple=1)
    (word,) = found.overrides["second"]
    assert word.startswith("model.attention.kv_rank=")
    assert abs(found.mismatch["second"]["non_embedding"]) < 0.01
    with pytest.raises(
        ValueError, match=r"model.attention.kv_rnk: .* no such key; did you mean model.attention.kv_rank"
    ):
        matched(arm(), arm("attention=mla"), "params", knobs={"second": "model.attention.kv_rnk"})


def test_no_width_is_narrow_enough() -> None:
    """More in its attention than all the other has."""
    with pytest.raises(ValueError, match=r"matching=params: second has [\d,]+ non-embedding parameters .* first has"):
        matched(arm("model.hidden=8"), arm("model.head_dim=96"), "params")


def test_a_finer_rounding_is_offered() -> None:
    first, second = arm("activation=gelu", "model.hidden=20"), arm("activation=swiglu", "model.hidden=64")
    with pytest.raises(ValueError, match=r"1\.88% apart where 1.0% is allowed; model.hidden=12 would do"):
        matched(first, second, "params")
    assert matched(first, second, "params", tolerance=0.05).overrides["second"] == ["model.hidden=16"]


def test_a_knob_that_turns_nothing_is_named() -> None:
    own = arm("moe=topk", "model.moe.hidden=8")
    with pytest.raises(ValueError, match=r"model\.hidden changes nothing about it; declare another knob"):
        matched(arm(), own, "params")
    found = matched(arm(), own, "params", knobs={"second": "model.moe.hidden"})
    assert found.overrides["second"] == ["model.moe.hidden=32"]


# --- budgets (F-99)


def test_unequal_budgets_are_refused_unless_declared() -> None:
    arms = {"first": arm(), "second": arm("trainer.steps=150")}
    with pytest.raises(ValueError, match=r"unequal budgets, in tokens: first 32,000, second 19,200"):
        match(arms, "none")
    require_equal_budgets(arms, unlike=["trainer.steps"])
    require_equal_budgets({"first": arm(), "second": arm("trainer.steps=125", "trainer.batch_size=8")})


# --- the table


def test_the_table_has_every_number() -> None:
    found = match({"mha": arm("activation=gelu"), "gqa": arm("activation=gelu", "attention=gqa")}, "params", timed=True)
    head, first, second = found.lines()
    assert head.split()[:4] == ["arm", "parameters", "active", "non-embedding"]
    assert second.endswith("model.hidden=432")
    assert first.endswith("-")
    cost = found.costs["gqa"]
    for number in (cost.parameters, cost.active, cost.non_embedding, cost.flops_per_token, cost.tokens):
        assert f"{number:,.0f}" in second
    assert cost.step_seconds
    assert 1e-4 < cost.step_seconds < 5
    content = found.to_json()
    assert content["overrides"] == {"mha": [], "gqa": ["model.hidden=432"]}
    assert content["mismatch"]["gqa"]["cache_bytes_per_token"] == -0.5


def test_timing_disturbs_nothing() -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    match({"first": arm(), "second": replace(arm())}, "none", timed=True)
    assert torch.equal(torch.rand(3), expected)
    assert torch.get_num_threads() == 1
