"""The comparison page against numbers that were written down: answer, counts, arms, and what is escaped."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
from fabricated import CLAIM, STEPS, fabricate, heard, plan
from models import SIZES
from scipy import stats

from modernllm.report.page.arms import differing
from modernllm.report.page.claim_report import court_of
from modernllm.report.page.comparison import Comparison, compare
from modernllm.report.page.curve import thinned
from modernllm.report.page.curves import curves
from modernllm.report.page.figures import colours, learning_rates, regime_map
from modernllm.report.page.formats import FORMATS
from modernllm.report.page.markup import data, tag
from modernllm.report.page.page import among, page
from modernllm.report.page.report import of_court, report
from modernllm.scripting import Misuse, parse

RATES = (1e-3, 3e-3, 1e-2)
PRE = {1e-3: (2.50, 2.52, 2.48), 3e-3: (2.20, 2.23, 2.18), 1e-2: (2.30, 2.31, 2.32)}
POST = {1e-3: (2.60, 2.63, 2.59), 3e-3: (2.33, 2.34, 2.30), 1e-2: (3.30, 3.31, 3.29)}


@pytest.fixture
def study(tmp_path: Path) -> Path:
    """Two arms, three rates, three seeds; post stalls at the largest rate."""
    folder = tmp_path / "study"
    for placement, losses in (("pre", PRE), ("post", POST)):
        for lr, by_seed in losses.items():
            for seed, loss in enumerate(by_seed):
                ended = "stalled" if placement == "post" and lr == 1e-2 else "ok"
                fabricate(folder, placement=placement, lr=lr, seed=seed, loss=loss, outcome=ended, layers=4)
    return folder


def of(folder: Path, *by: str) -> Comparison:
    return compare([str(folder)], by)


# --- which arm is better, how sure


def test_arms_are_what_differs_beside_seed_and_rate(study: Path) -> None:
    found = of(study)
    assert [arm.label for arm in found.arms] == ["pre", "post"]  # the better one first
    assert [len(arm.records) for arm in found.arms] == [9, 9]
    assert set(differing(found.arms)) == {"placement"}


def test_the_answer_is_a_paired_interval_at_each_arms_best_rate(study: Path) -> None:
    found = of(study)
    (pair,) = found.pairs
    differences = np.array(PRE[3e-3]) - np.array(POST[3e-3])
    low, high = stats.t.interval(0.95, 2, differences.mean(), stats.sem(differences))
    assert pair.judgement.mean == pytest.approx(differences.mean())
    assert pair.judgement.interval == pytest.approx((low, high))
    (answer,) = found.answers
    assert answer.tone == "clear"
    assert answer.headline == "pre is better than post by 0.120 nats"
    assert f"interval −{-low:.3f} to −{-high:.3f}, from 3 paired seeds both at learning rate 0.003" in answer.sure[0]
    assert answer.why[0] == "post: 3 of 9 runs did not learn (3 stalled), at learning rate 0.01."
    assert answer.why[1] == "No run of pre failed."
    assert "scripts/check_claim.py decides" in answer.mind[-1]


def test_one_seed_ranks_nothing(tmp_path: Path) -> None:
    for placement, loss in (("pre", 2.0), ("post", 3.0)):
        fabricate(tmp_path / "s", placement=placement, loss=loss)
    (answer,) = of(tmp_path / "s").answers
    assert answer.tone == "open"
    assert answer.headline == "pre and post cannot be told apart with 1 seed"
    assert "one seed is an anecdote" in answer.sure[0]
    assert answer.mind[0] == "One learning rate was tried for every arm: another may turn the order round."


def test_many_arms_share_the_error_rate(tmp_path: Path) -> None:
    losses = {0.1: (2.0, 2.1, 2.05), 0.2: (2.4, 2.52, 2.44), 0.3: (2.8, 2.9, 2.86)}
    for warmup, by_seed in losses.items():
        for seed, loss in enumerate(by_seed):
            fabricate(tmp_path / "s", seed=seed, loss=loss, changed={"schedule.warmup": warmup})
    found = of(tmp_path / "s")
    assert [arm.label for arm in found.arms] == ["warmup=0.1", "warmup=0.2", "warmup=0.3"]
    assert [pair.judgement.level for pair in found.pairs] == pytest.approx([1 - 0.05 / 3] * 3)


def test_a_run_that_broke_counts_as_its_start(tmp_path: Path) -> None:
    for seed in range(2):
        fabricate(tmp_path / "s", placement="pre", seed=seed, loss=2.0 + seed / 100)
        fabricate(tmp_path / "s", placement="post", seed=seed, loss=2.0, outcome="nonfinite", nonfinite_at=20)
    found = of(tmp_path / "s")
    assert found.standings[1].losses == {0: 6.0, 1: 6.0}
    assert found.answers[0].headline == "pre learns; post did not learn at any learning rate that was tried"
    assert "non-finite at step 20" in page(found)


def test_by_pools_what_it_does_not_name(study: Path) -> None:
    assert [len(arm.records) for arm in of(study, "seed").arms] == [6, 6, 6]
    with pytest.raises(ValueError, match=r"by=placment: no run has that key; did you mean placement\?"):
        of(study, "placment")


def test_why_names_what_telemetry_shows_in_the_worse_arm_alone(tmp_path: Path) -> None:
    for seed in range(3):
        fabricate(tmp_path / "s", seed=seed, loss=2.0 + seed / 50)
        stalled = {"outcome": "stalled", "layers": 6} if seed else {"outcome": "ok"}
        fabricate(tmp_path / "s", seed=seed, loss=3.0 + seed / 60, placement="post", **stalled)
    (answer,) = of(tmp_path / "s").answers
    assert answer.headline == "pre is better than post by 0.997 nats"
    assert answer.why[0] == "post: 2 of 3 runs did not learn (2 stalled), at learning rate 0.003."
    (sign,) = [words for words in answer.why if "gradients" in words]
    assert sign == (
        "post: gradients explode towards the input in 2 of 2 failed runs, not in pre (at learning rate 0.003, "
        "seed 1: 1 at the first layer, 1e-05 at the last)."
    )


# --- what must not be ranked


def different(tmp_path: Path, **of_second: object) -> Comparison:
    for seed in range(3):
        fabricate(tmp_path / "s", seed=seed, loss=2.0 + seed / 100)
        fabricate(tmp_path / "s", seed=seed, loss=2.5 + seed / 90, placement="post", **of_second)
    return of(tmp_path / "s")


def test_other_tokenizers_are_told_in_bits_and_not_ranked(tmp_path: Path) -> None:
    found = different(tmp_path, identity={"tokenizer": "other"}, bits=1.25)
    assert not found.pairs
    assert found.answers[0].headline == "Not ranked against each other"
    assert "bits per byte are shown" in found.answers[0].sure[0]
    rows = list(csv.reader(FORMATS["md"](found).splitlines(), delimiter="|"))
    table = [[cell.strip() for cell in row] for row in rows if len(row) > 5]
    assert table[0][2] == "bits/byte"
    assert ["1.2500"] in [row[2:3] for row in table]
    assert "loss" not in table[0]


def test_other_texts_and_budgets_are_not_ranked(tmp_path: Path) -> None:
    text = different(tmp_path / "text", identity={"corpus": "other"})
    assert "different texts" in text.answers[0].sure[0]
    budget = different(tmp_path / "budget", steps=60)
    assert "different numbers of tokens" in budget.answers[0].sure[0]
    assert not text.pairs + budget.pairs


# --- what is missing, broken, half written


def test_planned_present_and_usable_add_up(study: Path) -> None:
    runs = sorted(path for path in study.iterdir() if "pre" in path.name)
    shutil.rmtree(runs[0])  # missing
    (runs[1] / "run.json").write_text("{", encoding="utf-8")  # damaged
    half = runs[2] / "metrics.jsonl"
    half.write_text(half.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    twice = runs[3] / "metrics.jsonl"
    lines = twice.read_text(encoding="utf-8").splitlines(keepends=True)
    twice.write_text("".join([*lines[:5], *lines[3:]]), encoding="utf-8")
    gap = runs[4] / "metrics.jsonl"
    lines = gap.read_text(encoding="utf-8").splitlines(keepends=True)
    gap.write_text("".join([*lines[:3], *lines[5:]]), encoding="utf-8")
    foreign = json.loads((runs[5] / "run.json").read_text(encoding="utf-8"))
    (runs[5] / "run.json").write_text(json.dumps(foreign | {"config_hash": "0" * 64}), encoding="utf-8")
    fabricate(study, placement="pre", seed=7, loss=2.0, status="failed")
    shutil.copytree(runs[6], study / "copied")
    (study / "notes.txt").write_text("", encoding="utf-8")

    found = of(study)
    count, told = found.count, "\n".join(found.problems)
    assert count.planned == count.missing + count.usable + count.unusable + count.unreadable
    assert (count.usable, count.unusable, count.unreadable) == (9 + 3, 4, 4)
    for words in (
        f"{runs[1].name}: damaged",
        f"{runs[2].name}: the last line of metrics.jsonl is half written",
        f"{runs[3].name}: 2 steps stand twice",
        f"{runs[4].name}: 2 of 40 steps are missing",
        f"{runs[5].name}: damaged: its config_hash 0000000000",
        "failed at step 40 of 40: told",
        "copied: damaged: it is the record of",
        "notes.txt: no run",
        "pre, learning rate 0.001, seed",
    ):
        assert words in told
    assert all(text in page(found) for text in (count.line, f"{len(found.problems)} runs do not count"))


def test_running_runs_are_named_and_no_result(study: Path) -> None:
    fabricate(study, placement="pre", seed=3, loss=2.0, status="interrupted")
    found = of(study)
    assert found.count.unusable == 1
    assert found.arms[0].outcomes["interrupted"] == 1
    assert found.pairs[0].judgement.n == 3


def test_a_study_of_damaged_runs_says_so(tmp_path: Path) -> None:
    (fabricate(tmp_path / "s", loss=2.0) / "config.yaml").write_text("[", encoding="utf-8")
    found = of(tmp_path / "s")
    assert found.answers[0].headline == "No run has a result yet"
    assert "1 run does not count: 1 unreadable" in page(found)
    assert [FORMATS[name](found) for name in FORMATS]


def test_a_word_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere: no such study"):
        compare(["nowhere"], out=tmp_path)


def test_what_was_planned_and_is_not_there_counts_in_its_arm(study: Path) -> None:
    runs = sorted(study.iterdir())
    kept = plan(study, *runs, fabricate(study, placement="gone", seed=0, loss=2.0))
    post = next(run for run in runs if "post" in run.name)
    for run in (post, *study.glob("*gone*")):
        shutil.rmtree(run)
    damaged = next(run for run in runs if "pre" in run.name)
    (damaged / "run.json").write_text("{", encoding="utf-8")
    fabricate(study, placement="post", seed=7, loss=2.4)  # by hand, and no other arm owes this seed

    found = of(study)
    assert found.count.line == (
        "20 planned = 18 present + 2 missing; 18 present = 17 usable + 0 without a result + 1 unreadable"
    )
    assert {arm.label: (len(arm.usable), arm.planned) for arm in found.arms} == {
        "pre": (8, 9), "post": (9, 10), "gone": (0, 1),
    }  # fmt: skip
    assert found.arms[0].outcomes["unreadable"] == 1
    assert found.arms[1].outcomes["missing"] == 1
    lost = json.loads((kept).read_text(encoding="utf-8"))["runs"]
    (rate, seed) = next((e["config"]["optimizer"]["lr"], e["config"]["seed"]) for e in lost if e["run_id"] == post.name)
    assert f"post, learning rate {rate:g}, seed {seed}: planned, no run" in found.problems
    assert "gone, learning rate 0.003, seed 0: planned, no run" in found.problems
    assert found.ways_out == (
        "python train.py -m placement=pre,post makes 2 of them, or goes on with them; to forget that plan delete "
        f"{kept}.",
    )
    written = page(found)
    assert "3 runs do not count: 1 unreadable, 2 missing" in written
    assert ">8/9<" in written
    (regimes,) = regime_map(found.rankings).data
    assert regimes["text"][regimes["y"].index("gone")] == ["", "1 missing", ""]
    kept.unlink()
    assert of(study).count.missing == 4 + 3  # without it, of 12 an arm: seed 7 stands in one, so it is expected in both


def test_a_study_with_nothing_but_a_plan(study: Path, tmp_path: Path) -> None:
    runs = sorted(study.iterdir())
    plan(tmp_path / "new", *runs)
    found = of(tmp_path / "new")
    assert found.answers[0].headline == "No run has a result yet"
    assert found.count.missing == found.count.planned == 18
    assert [FORMATS[name](found) for name in FORMATS]
    assert "18 runs do not count: 18 missing" in page(found)
    (tmp_path / ".plans" / "new" / "x.json").write_text("[", encoding="utf-8")
    assert any("x.json is damaged" in words for words in of(tmp_path / "new").problems)


def test_a_lost_run_does_not_move_the_best_rate(study: Path) -> None:
    """Else a killed run would take its rate out of the choice."""
    best = [run for run in study.iterdir() if "-pre-s2" in run.name]
    lost = next(run for run in best if "lr: 0.003" in (run / "config.yaml").read_text(encoding="utf-8"))
    shutil.rmtree(lost)
    standing = of(study).standings[0]
    assert standing.choice.lr == 3e-3
    assert standing.choice.grid == RATES
    assert standing.losses == dict(enumerate(PRE[3e-3][:2]))
    assert standing.choice.losses == pytest.approx([np.mean(PRE[lr][:2]) for lr in RATES])  # seeds that all rates have


def test_rates_that_share_no_seed_are_chosen_by_their_own(tmp_path: Path) -> None:
    for seed, (lr, loss) in enumerate([(1e-3, 2.4), (3e-3, 2.1), (1e-2, 2.2)]):  # as a random search has them
        fabricate(tmp_path / "s", lr=lr, seed=seed, loss=loss)
    (standing,) = of(tmp_path / "s").standings
    assert (standing.choice.lr, standing.losses) == (3e-3, {1: 2.1})


# --- text of others


HOSTILE = "</script><script>document.title='owned'</script>"


def test_text_of_a_configuration_stays_text(tmp_path: Path) -> None:
    for seed in range(2):
        fabricate(tmp_path / "s", seed=seed, loss=2.0 + seed / 10)
        fabricate(tmp_path / "s", seed=seed, loss=2.1 + seed / 9, changed={"data.path": HOSTILE})
    written = page(of(tmp_path / "s"))
    assert "<script>document" not in written
    assert "&lt;script&gt;document" in written
    assert written.count("<script") == written.count("</script>") == 4


def test_markup_escapes_all_but_itself() -> None:
    assert tag("td", {"data-order": '"><b>'}, "<b>", tag("i", {}, "&")) == (
        '<td data-order="&quot;&gt;&lt;b&gt;">&lt;b&gt;<i>&amp;</i></td>'
    )
    assert json.loads(data("x", {"a": "</script>"}).split(">", 1)[1].removesuffix("</script>")) == {"a": "</script>"}


# --- figures


def test_thinning_keeps_ends_and_extremes() -> None:
    values = np.sin(np.arange(5000) / 100)
    values[1234], values[4321], values[77] = 9.0, -9.0, math.nan
    kept = thinned(values, 100)
    assert len(kept) <= 100
    assert {0, 1234, 4321, 4999} <= set(kept.tolist())
    assert (np.diff(kept) > 0).all()
    assert thinned(values[:50], 100).tolist() == list(range(50))


def test_curves_mark_where_a_run_broke(tmp_path: Path) -> None:
    fabricate(tmp_path / "s", loss=2.0, outcome="nonfinite", nonfinite_at=30)
    found = of(tmp_path / "s")
    (run,) = curves(found.arms, found.standings, colours(found.arms), "step", among(found))["runs"]
    assert run["end"] == 29
    assert run["series"]["loss"][1][-1] is None


def test_bands_are_the_range_over_seeds(study: Path) -> None:
    found = of(study)
    band = curves(found.arms, found.standings, colours(found.arms), "tokens", among(found))["bands"][0]
    last = [record.curve.loss[-1] for record in found.standings[0].best]
    assert band["step"] == list(range(1, 41))
    assert band["loss"]["low"][-1] == pytest.approx(min(last), rel=1e-4)
    assert band["loss"]["high"][-1] == pytest.approx(max(last), rel=1e-4)


def test_figures_hold_every_run(study: Path) -> None:
    found = of(study)
    figure = learning_rates(found.standings, colours(found.arms))
    dots = [trace for trace in figure.data if trace["mode"] == "markers"]
    assert sorted(dots[0]["y"]) == sorted(loss for losses in PRE.values() for loss in losses)
    assert dots[1]["marker"]["symbol"].count("x") == 3
    (regimes,) = regime_map(found.rankings).data
    assert regimes["y"] == ["post", "pre"]
    assert regimes["text"] == [["3 ok", "3 ok", "3 stalled"], ["3 ok"] * 3]


def test_telemetry_by_layer_is_on_the_page(study: Path) -> None:
    written = page(of(study))
    stored = json.loads(written.split('id="figures-data">')[1].split("</script>")[0])
    assert {"lr", "regimes", "pairs", "heat-0", "heat-1", "depth-stream_rms", "depth-attention_entropy"} <= set(stored)
    heat = stored["heat-0"]["data"][0]
    assert heat["y"] == [f"layer {number:02}" for number in range(4)]
    assert [row[0] for row in heat["z"]] == [0, -1, -2, -3]
    assert stored["depth-stream_rms"]["data"][0]["y"] == [1, 1, 2, 3, 4]


def test_confounders_are_marked(tmp_path: Path) -> None:
    found = different(tmp_path, changed={"schedule.warmup": 0.5}, identity={"code": {"commit": "b" * 40}})
    suspects = {each.name for each in found.confounders if each.suspect}
    assert suspects == {"warm-up", "code"}
    assert "Arms differ in code as well; see what else differs, below." in found.answers[0].mind  # warm-up is compared


# --- other formats, the command line, claims


def test_formats(study: Path) -> None:
    found = of(study)
    stored = json.loads(FORMATS["json"](found))
    assert stored["answers"][0]["headline"] == "pre is better than post by 0.120 nats"
    assert stored["arms"][1]["outcomes"] == {"ok": 6, "stalled": 3}
    assert stored["runs"] == {"planned": 18, "missing": 0, "usable": 18, "unusable": 0, "unreadable": 0}
    assert len(list(csv.DictReader(io.StringIO(FORMATS["csv"](found))))) == 18
    assert FORMATS["md"](found).startswith("**pre is better than post by 0.120 nats**\n\n* Against post: −0.120 nats")
    assert r"pre & 2.2033 & $\pm$0.0252 & 9/9 & 0.003" in FORMATS["latex"](found)


def test_the_command_line(study: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    import compare as script

    target = study.parent / "page.html"
    assert script.compare(str(study / "*pre*"), str(study / "*post*"), out=str(target)) == 0
    assert "MB" in capsys.readouterr().out
    assert target.read_text(encoding="utf-8").startswith("<!doctype html>")
    words, named = parse(script.compare, ["study", "by=placement,norm", "format=md", f"root={study.parent}"])
    assert script.compare(*words, **named) == 0
    assert "pre is better than post" in capsys.readouterr().out
    with pytest.raises(Misuse, match="format=pdf"):
        parse(script.compare, ["study", "format=pdf"])
    with pytest.raises(ValueError, match="which runs"):
        script.compare()


def test_nothing_on_the_page_asks_the_network(study: Path) -> None:
    written = page(of(study))
    own = written.split("<body>")[0] + written.split('<script type="application/json"')[0].split("<body>")[1]
    assert "http" not in own.replace("http://www.w3.org", "")
    assert "src=" not in own


@pytest.fixture
def court(tmp_path: Path) -> Path:
    return heard(tmp_path / "runs")


def told(path: Path, format: str = "html") -> str:
    return report([str(path)], by=[], x="step", format=format, root=Path("runs")).text


def test_a_claim_has_its_verdict_rule_certificate_and_power_on_top(court: Path) -> None:
    written = told(court)
    assert written.index("supported</p>") < written.index('id="rule"') < written.index('id="arms"')
    for text in ("Pre-Norm &lt;b&gt;beats", "no arm sees it", "clipped &lt;often&gt;", "detectable at 80 %",
                 "supported: CI_hi &lt; 0", "margin 0.02 nats"):  # fmt: skip
        assert text in written
    assert told(court.parents[1] / "claim-norms").count("Pre-Norm &lt;b&gt;beats") == 1  # by its study as well


def test_the_verdict_comes_first_in_every_format_of_words(court: Path) -> None:
    said = told(court, "md").splitlines()
    assert said[0].startswith("**supported: Pre-Norm &lt;b>beats")
    row = next(line for line in said if line.startswith("| main |"))
    assert "| supported |" in row
    assert any(line.startswith("Beside the verdict, of the runs by themselves: ") for line in said)
    assert json.loads(told(court, "json"))["verdict"] == json.loads((court / "verdict.json").read_text("utf-8"))
    assert told(court, "latex").startswith("\\begin{tabular}{lrrrrrrrl}\n\\toprule\ncell & contrast & word")
    assert told(court, "latex").count("begin{tabular}") == 2


def test_a_claims_missing_run_is_named(court: Path) -> None:
    stored = json.loads(told(court, "json"))
    assert stored["problems"] == ["post, learning rate 0.003, seed 2: no run"]
    assert stored["runs"] == {"planned": 12, "missing": 1, "usable": 11, "unusable": 0, "unreadable": 0}


def test_a_suite_is_a_gallery_that_leads_to_its_claims(
    court: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    import compare as script

    shutil.copytree(court, court.with_name("claim-untrained"))
    target = court.parents[2] / "suite.html"
    assert script.compare(str(court.parent), out=str(target)) == 0
    names = ["suite.html", "suite-claim-norms.html", "suite-claim-untrained.html"]
    assert [line.partition(":")[0] for line in capsys.readouterr().out.splitlines()] == [
        str(target.with_name(name)) for name in names
    ]
    written = target.read_text(encoding="utf-8")
    assert "2 claims: 2 supported" in written
    assert "pre against post: n=3, Δ=-0.200" in written
    assert written.count('href="suite-claim-norms.html"') == 2
    assert len(written) < 1e5  # nothing is drawn there
    beside = target.with_name(names[1]).read_text(encoding="utf-8")
    assert '<a href="suite.html">all claims</a>' in beside
    assert beside.index("Pre-Norm &lt;b&gt;beats") < beside.index('id="arms"')
    both = report([str(court), str(court.with_name("claim-untrained"))], by=[], x="step", format="html", root=Path())
    assert list(both.beside) == ["report-claim-norms.html", "report-claim-untrained.html"]


def test_cells_stand_in_the_order_of_the_claim_the_main_one_first(court: Path) -> None:
    """And a run that two cells share is there in both, and counted once."""
    from modernllm.claims.claim import Claim
    from modernllm.claims.ledger import Ledger

    cells = {"dropout": {"overrides": ["model.dropout=0.1"]}, "alike": {}, "main": {"main": True}}
    arms = {"pre": ["model.hidden=64"], "post": ["model.hidden=96"]}
    base = [*(word for word in SIZES if "steps" not in word), "size=nano", f"trainer.steps={STEPS}"]
    Ledger(court / "ledger.jsonl").freeze(Claim(**{**CLAIM, "base": base, "cells": cells, "arms": arms}))
    verdict = json.loads((court / "verdict.json").read_text(encoding="utf-8"))
    verdict["cells"] = [{**verdict["cells"][0], "name": name, "main": name == "main"} for name in cells]
    (court / "verdict.json").write_text(json.dumps(verdict), encoding="utf-8")
    studied = court.parents[1] / court.name
    shutil.rmtree(studied)
    for hidden, arm in ((64, "pre"), (96, "post")):
        for lr, seed in [*((lr, 100) for lr in RATES), (3e-3, 0), (3e-3, 1)]:
            origin = {"claim": "norms", "cell": "main", "arm": arm}
            fabricate(studied, loss=2.0, lr=lr, seed=seed, changed={"model.hidden": hidden}, origin=origin)

    found = of_court(court_of(court), [])
    assert [name for name, _ in found.groups] == ["main", "dropout", "alike"]
    written = told(court)
    shown = [written.index(f"<span>{name}</span></th>") for name in ("main", "dropout", "alike")]
    assert shown == sorted(shown)
    lent = [record for arm in found.arms for record in arm.records if record.lent]
    assert {record.identity["origin"]["cell"] for record in lent} == {"alike"}
    assert len(lent) == found.count.usable == 10
    by_cell = {name: [(len(arm.usable), arm.planned) for arm in ranking.arms] for name, ranking in found.groups}
    assert by_cell == {"main": [(5, 6)] * 2, "dropout": [(0, 6)] * 2, "alike": [(5, 6)] * 2}


@pytest.mark.slow
def test_five_hundred_runs_of_two_thousand_rows(tmp_path: Path) -> None:
    """Quickly enough on a machine that does something else, and small enough to send."""
    for placement in ("pre", "post"):
        for lr in (1e-3, 3e-3, 1e-2, 3e-2, 1e-1):
            for seed in range(50):
                loss = 2.1 + abs(lr - 1e-2) + seed / 900 + 0.1 * (placement == "post") * (1 + seed % 3)
                spiked = {"spike": (1234, 99.0)} if lr == 1e-2 and seed == 7 else {}
                fabricate(tmp_path / "s", placement=placement, lr=lr, seed=seed, loss=loss, steps=2000, **spiked)
    began = time.process_time()
    found = of(tmp_path / "s")
    written = page(found)
    assert time.process_time() - began < 30
    assert len(written.encode()) < 12e6
    assert found.count.usable == 500
    drawn = json.loads(written.split('id="curves-data">')[1].split("</script>")[0])["runs"]
    assert sum(99.0 in run["series"]["loss"][1] for run in drawn) == 2
    assert max(len(run["series"]["loss"][0]) for run in drawn) <= 240
