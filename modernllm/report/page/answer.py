"""The answer in words: which arm is better, how sure that is, why, and what to mind."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from modernllm.claims.table import FAILED
from modernllm.report.page.arms import Arm, Yardstick, differing
from modernllm.report.page.confounders import confounders
from modernllm.report.page.ranking import MARGIN, Pair, Ranking, Standing
from modernllm.report.page.reading import Record
from modernllm.report.page.tables import in_order
from modernllm.report.symptoms import Finding, findings
from modernllm.runs.record import load_run

NAMED, SIGNS = 4, 2
"""Arms or runs that a sentence can hold, and symptoms of an arm that are told."""
LOOKED = 6
"""Runs of an arm whose telemetry is read for the answer."""
OF_THE_MACHINE = ("memory grows", "steps get slower")
"""Symptoms that are no reason for a loss."""


@dataclass(frozen=True)
class Answer:
    """`tone` is `clear`, `open` or `none`; the sentences of `sure`, `why` and `mind` stand below the headline."""

    tone: str
    headline: str
    sure: tuple[str, ...]
    why: tuple[str, ...]
    mind: tuple[str, ...]

    @property
    def sentences(self) -> list[str]:
        return [self.headline, *self.sure, *self.why, *self.mind]


def answers(rankings: Sequence[Ranking]) -> list[Answer]:
    """One for each yardstick with something to rank, after the reason why they are not ranked together."""
    rankings = [ranking for ranking in rankings if not ranking.tunes]
    ranked = [answer(ranking) for ranking in rankings if len(ranking.standings) > 1]
    if len(rankings) > 1:
        return [apart(rankings), *ranked]
    return ranked or [nothing(rankings)]


def answer(ranking: Ranking) -> Answer:
    tone, headline = _headline(ranking)
    return Answer(tone, headline, tuple(sureness(ranking)), tuple(reasons(ranking)), tuple(caveats(ranking)))


def _headline(ranking: Ranking) -> tuple[str, str]:
    best, others = ranking.best, ranking.standings[1:]
    if all(each.lost for each in ranking.standings):
        return "none", "No arm learned anything at any learning rate that was tried"
    lost = [each for each in others if each.lost]
    worse = [pair.worse for pair in ranking.behind if pair.told_apart and pair.worse not in lost]
    alike = [pair.worse for pair in ranking.behind if "no effect of interest" in pair.judgement.flags]
    open_ = [each for each in others if each not in [*worse, *alike, *lost]]
    name = best.arm.label
    if lost and len(lost) == len(others):
        return "clear", f"{name} learns; {_names(lost)} did not learn at any learning rate that was tried"
    if not worse and not alike and not lost:
        told = f"{name} and {others[0].arm.label}" if len(others) == 1 else f"The {len(others) + 1} arms"
        return "open", f"{told} cannot be told apart with {_seeds(ranking)}"
    if len(others) == 1:
        pair = ranking.behind[0]
        if alike:
            return "clear", f"{name} and {others[0].arm.label} are alike, within {MARGIN:g} nats"
        slight = ", though by less than matters" if "negligible" in pair.judgement.flags else ""
        return "clear", f"{name} is better than {others[0].arm.label} by {-pair.judgement.mean:.3f} nats{slight}"
    parts = [f"{name} is better than {_names(worse)}"] if worse else [f"{name} has the lowest loss"]
    parts += [f"alike with {_names(alike)}"] if alike else []
    parts += [f"not told apart from {_names(open_)}"] if open_ else []
    parts += [f"{_names(lost)} did not learn at all"] if lost else []
    return ("clear" if worse else "open"), "; ".join(parts)


def sureness(ranking: Ranking) -> Iterator[str]:
    """Interval, seeds and learning rates."""
    best = ranking.best
    for pair in ranking.behind[:NAMED]:
        other, judged = pair.worse, pair.judgement
        rates = _rates(best, other)
        if judged.interval is None:
            yield f"Against {other.arm.label}: {judged.sentence}, {rates}."
            continue
        low, high = judged.interval
        yield (
            f"Against {other.arm.label}: {signed(judged.mean)} nats, {100 * judged.level:.3g} % interval {signed(low)} "
            f"to {signed(high)}, from {_runs(judged.n, 'paired seed')} {rates}.{_way_out(pair)}"
        )
    if len(ranking.behind) > NAMED:
        yield f"The other {len(ranking.behind) - NAMED} comparisons stand among the pairwise differences."


def _rates(one: Standing, other: Standing) -> str:
    if one.choice.lr == other.choice.lr:
        return f"both at learning rate {one.choice.lr:g}"
    return f"at learning rate {one.choice.lr:g} against {other.choice.lr:g}"


def _way_out(pair: Pair) -> str:
    judged = pair.judgement
    if judged.verdict != "inconclusive" or pair.told_apart:
        return ""
    rest = judged.sentence.partition("; ")[2].partition(" (")[0]
    return f" {rest[0].upper()}{rest[1:]}." if rest else ""


def signed(value: float) -> str:
    return f"{value:+.3f}".replace("-", "−")


def reasons(ranking: Ranking) -> Iterator[str]:
    """Runs that failed, and symptoms that the best arm does not have."""
    arms = [each.arm for each in ranking.standings]
    broken = [arm for arm in arms if any(record.failed for record in arm.usable)]
    alike: dict[str, list[str]] = {}
    for arm in broken:
        alike.setdefault(_failures(arm), []).append(arm.label)
    for failures, labels in list(alike.items())[:NAMED]:
        yield f"{_listed(labels)}: {'each ' * (len(labels) > 1)}{failures}."
    if len(alike) > NAMED:
        yield f"Runs failed in {sum(map(len, list(alike.values())[NAMED:]))} more arms."
    if broken and (clean := [arm.label for arm in arms if arm not in broken]):
        yield f"No run of {_listed(clean)} failed."
    yield from _signs(ranking)


def _signs(ranking: Ranking) -> Iterator[str]:
    """What telemetry shows in arms that are worse, or have runs that failed, and not in the best one."""
    usual = {finding.symptom for record in ranking.best.best[:LOOKED] for finding in symptoms(record)}
    for pair in ranking.behind[:NAMED]:
        if pair.told_apart or any(record.failed for record in pair.worse.arm.usable):
            yield from _signs_of(pair.worse, ranking.best, usual)


def _signs_of(worse: Standing, best: Standing, usual: set[str]) -> Iterator[str]:
    """The most frequent ones, of runs that failed if there are any."""
    broken = [record for record in in_order(worse.arm) if record.usable and record.failed]
    looked = _spread(broken or worse.best, LOOKED)
    seen: dict[str, list[tuple[Record, str]]] = {}
    for record in looked:
        for finding in symptoms(record):
            if finding.symptom not in (*usual, *OF_THE_MACHINE):
                seen.setdefault(finding.symptom, []).append((record, _clause(finding.evidence)))
    for symptom, runs in sorted(seen.items(), key=lambda each: -len(each[1]))[:SIGNS]:
        record, evidence = runs[0]
        kind = "failed runs" if broken else "runs"
        kind += " that were looked at" if len(looked) < len(broken) else ""
        yield (
            f"{worse.arm.label}: {symptom} in {len(runs)} of {len(looked)} {kind}, not in {best.arm.label} "
            f"(at learning rate {record.lr:g}, seed {record.seed}: {evidence})."
        )


def _spread(records: Sequence[Record], number: int) -> list[Record]:
    """So many of them, evenly from first to last."""
    return [records[i] for i in np.unique(np.linspace(0, len(records) - 1, min(number, len(records))).astype(int))]


def _clause(evidence: str) -> str:
    """Of several, the one that says how: where it was not finite, else the last."""
    clauses = evidence.split("; ")
    return next((clause for clause in clauses if clause.startswith("first non-finite")), clauses[-1])


def symptoms(record: Record) -> list[Finding]:
    """What the record shows by depth and in time; none where its telemetry is damaged."""
    try:
        return list(findings(load_run(record.path)))
    except (ValueError, OSError, KeyError):
        return []


def _failures(arm: Arm) -> str:
    failed = [record for record in arm.usable if record.failed]
    words = Counter(record.word if record.word in FAILED else "no better than at the start" for record in failed)
    told = ", ".join(f"{number} {word}" for word, number in words.most_common())
    rates = sorted({record.lr for record in failed})
    where = f"at learning rate {rates[0]:g}" if len(rates) == 1 else f"at learning rates {rates[0]:g} to {rates[-1]:g}"
    return f"{len(failed)} of {_runs(len(arm.usable), 'run')} did not learn ({told}), {where}"


def caveats(ranking: Ranking) -> Iterator[str]:
    """What weakens the answer. How a claim chose its rates is for its verdict to say."""
    if not ranking.cell:
        yield from _rates_tried(ranking)
    arms = [each.arm for each in ranking.standings]
    compared = {"learning rates tried"} | ({"warm-up"} if "schedule.warmup" in differing(arms) else set())
    if also := [each.name for each in confounders(arms) if each.suspect and each.name not in compared]:
        yield f"Arms differ in {_listed(also)} as well; see what else differs, below."
    for arm, why in ranking.unranked:
        yield f"{arm.label} is not ranked: {why}."


def _rates_tried(ranking: Ranking) -> Iterator[str]:
    edges = [each for each in ranking.standings if not each.choice.interior]
    single = [each for each in edges if len(each.choice.grid) == 1]
    if len(single) == len(ranking.standings):
        yield "One learning rate was tried for every arm: another may turn the order round."
    elif single:
        yield f"One learning rate was tried for {_names(single)}: another may turn the order round."
    if edge := [each for each in edges if each not in single]:
        told = ", ".join(f"{each.arm.label} {each.choice.lr:g}" for each in edge[:NAMED])
        yield f"A best learning rate stands at the edge of its grid ({told}): a wider grid may lower its loss."
    if len({each.choice.grid for each in ranking.standings}) > 1:
        yield "Arms were tried at unlike learning rates, so their tuning effort is unlike."
    if any(len(each.choice.grid) > 1 for each in ranking.standings):
        yield (
            "Learning rates were chosen on the seeds that are compared, so this explores; "
            "scripts/check_claim.py decides, on fresh seeds and with a margin written down before."
        )


def apart(rankings: Sequence[Ranking]) -> Answer:
    """Why there is more than one ranking."""
    sticks = [ranking.yardstick for ranking in rankings]
    causes = [
        sentence
        for name, sentence in CAUSES.items()
        if len({getattr(stick, name) for stick in sticks}) > 1
    ]  # fmt: skip
    if not causes:  # cells of a claim
        return Answer("none", f"{len(rankings)} conditions, each ranked by itself", (), (), ())
    return Answer("none", "Not ranked against each other", tuple(causes), (), ())


CAUSES = {
    "corpus": "The runs were trained on different texts: a loss on one says nothing about a loss on another.",
    "tokenizer": "The runs have different tokenizers: nats per token count other tokens, so bits per byte are shown.",
    "validation": "The runs were measured on different validation windows, as those that choose learning rates are.",
    "tokens": "The runs were trained on different numbers of tokens: more training is no better architecture.",
}
"""By field of a yardstick."""


def nothing(rankings: Sequence[Ranking]) -> Answer:
    """One arm, or none with a result."""
    unranked = tuple(f"{arm.label}: {why}." for ranking in rankings for arm, why in ranking.unranked)
    standings = [each for ranking in rankings for each in ranking.standings]
    if len(standings) == 1:
        return Answer("none", f"One arm to look at: {standings[0].arm.label}", (), unranked, ())
    return Answer("none", "No run has a result yet", (), unranked, ())


def by_bits(sticks: Sequence[Yardstick]) -> bool:
    """Whether losses are told in bits per byte: nats per token mean one thing under one tokenizer only."""
    return len({stick.tokenizer for stick in sticks}) > 1


def _names(standings: Sequence[Standing]) -> str:
    return _listed([each.arm.label for each in standings])


def _listed(labels: Sequence[str]) -> str:
    """Few by name, the others by number."""
    return ", ".join(labels) if len(labels) <= NAMED else f"{', '.join(labels[:NAMED])} and {len(labels) - NAMED} more"


def _seeds(ranking: Ranking) -> str:
    return _runs(max((pair.judgement.n for pair in ranking.pairs), default=0), "seed")


def _runs(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
