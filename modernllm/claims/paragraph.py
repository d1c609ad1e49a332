"""What a verdict rests on, in sentences that can be pasted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from modernllm.claims.analysis import Finding

FAINT = 5e-4
"""Relative: what would be printed as 0.0 %."""
COSTS = {
    "parameters": "parameters",
    "active": "active parameters",
    "non_embedding": "non-embedding parameters",
    "flops_per_token": "FLOPs a token",
    "cache_bytes_per_token": "cache",
    "tokens": "tokens",
    "step_seconds": "step time",
}


def grounds(finding: Finding) -> Iterator[str]:
    """Sign flips, learning rates, runs that failed."""
    judgement = finding.judgement
    if judgement.sign_flip_p is not None and judgement.sign_flip_floor is not None:
        yield f"Sign-flip p={judgement.sign_flip_p:.3g} (smallest reachable {judgement.sign_flip_floor:.3g})"
    if finding.choices:
        yield "Learning rates " + ", ".join(f"{arm} {choice.lr:g}" for arm, choice in finding.choices.items())
    if finding.outcomes:
        failed = (f"{arm} {outcome['failed']} of {outcome['n']}" for arm, outcome in finding.outcomes.items())
        yield "Failed runs " + ", ".join(failed)


def in_sentences(facts: Mapping[str, Any]) -> Iterator[str]:
    """One for each fact that says something; of one that is not known here, its name and what it holds."""
    for name, value in facts.items():
        if name == "hash":  # stands with the versions
            continue
        empty = isinstance(value, Mapping | list | tuple) and not value
        if not (empty or value is None or value is False):
            yield WORDS[name](value) if name in WORDS else f"{name}: {plain(value)}"


def plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {plain(item)}" for key, item in value.items())
    return ", ".join(map(plain, value)) if isinstance(value, list | tuple) else str(value)


def _fairness(found: Mapping[str, Any]) -> str:
    arms = [f"{arm} {costs}" for arm, each in found["mismatch"].items() if (costs := _excess(each))]
    told = f"beyond the first arm: {'; '.join(arms)}" if arms else "all arms cost the same"
    held_out = f". {found['held out']}" if "held out" in found else ""
    matched = "not matched" if found["matching"] == "none" else f"{found['matching']} matched"
    return f"Costs ({matched}): {told}{held_out}"


def _excess(costs: Mapping[str, float]) -> str:
    return ", ".join(f"{COSTS.get(key, key)} {share:+.1%}" for key, share in costs.items() if abs(share) >= FAINT)


def _mitigations(found: Mapping[str, Mapping[str, float]]) -> str:
    clipped = ", ".join(f"{arm} {counts['clipped share']:.0%}" for arm, counts in found.items())
    skipped = [f"{arm} {counts['skipped steps']:g}" for arm, counts in found.items() if counts["skipped steps"]]
    return f"Clipped steps {clipped}" + (f"; skipped steps {', '.join(skipped)}" if skipped else "")


def _versions(found: Sequence[Mapping[str, Any]]) -> str:
    (this,) = [version for version in found if version["this"]]
    others = "; ".join(earlier(found))
    return f"Version {this['version']} of the claim ({this['hash']})" + (f"; {others}" if others else "")


def earlier(versions: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for every other version of the claim: what is read now was not the first attempt."""
    others = [version for version in versions if not version["this"]]
    return [
        f"version {version['version']} ({version['hash']}) "
        + (f"said {version['said']}" if version["said"] else "came to no verdict")
        + (f", looked at with {version['looked at']} seeds" if "looked at" in version and not version["said"] else "")
        for version in others
    ]


def kin_in_words(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence for each."""
    return [
        f"{each['claim']} ({each['hash']}), of the same {each['same']}, "
        + (f"said {each['said']}" if each["said"] else "came to no verdict")
        for each in found
    ]


def _runs(found: Mapping[str, Any]) -> str:
    before = found["not made for this version"]
    told = f", {before} of them not made for this version" if before else ""
    return f"{found['number']} runs{told}; code {' and '.join(found['code'])}"


WORDS: dict[str, Callable[[Any], str]] = {
    "tier": lambda tier: f"Tier {tier}",
    "toy": lambda toy: "Toy size",
    "source": lambda source: f"Source: {source}",
    "held-out tokens": lambda tokens: f"Judged on {tokens:,} held-out tokens",
    "margin": lambda margin: f"Margin {margin:g} nats",
    "versions": _versions,
    "unlike": lambda keys: f"Declared unlike: {', '.join(keys)}",
    "looks": lambda looks: f"Looks planned at {', '.join(map(str, looks))} seeds",
    "said before": lambda words: f"This very version said before: {', '.join(words)}",
    "under other names": lambda found: f"Under other names: {'; '.join(kin_in_words(found))}",
    "fairness": _fairness,
    "preflight": lambda found: f"Preflight passed in {len(found)} cell{'s' * (len(found) != 1)}",
    "mitigations": _mitigations,
    "runs": _runs,
}
"""By the name that a flow gives a fact."""
