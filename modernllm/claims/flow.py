"""A claim from its file to its verdict: plan, fairness, preflight, runs, the choice of rates, statistics, the word."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout

from modernllm.claims.analysis import CellFindings, assess, contrasts
from modernllm.claims.claim import Claim
from modernllm.claims.judgement import Judgement
from modernllm.claims.kin import kin, subject
from modernllm.claims.ledger import Ledger
from modernllm.claims.looks import fitting, look
from modernllm.claims.paragraph import earlier, kin_in_words
from modernllm.claims.provenance import Provenance, require_common_makers
from modernllm.claims.statistics.multiplicity import ALPHA
from modernllm.claims.statistics.sequential import look_alpha
from modernllm.claims.study import TOY_SIZE, Study
from modernllm.claims.table import Key, Row, Table, census
from modernllm.claims.tuning import best_lr
from modernllm.claims.untrained import cost_findings, exact_findings
from modernllm.claims.verdict import Verdict, conclude
from modernllm.runs.directory import read_json, write_atomically
from modernllm.runs.record import Run as Record
from modernllm.sweep.plan import Plan, Planned

Run = Callable[[Plan], int | None]
"""Does what is to be done of a plan; the signal that stopped it, or None."""


class Incomplete(RuntimeError):
    """Runs of a claim failed or are missing: there is no verdict, whatever the others say."""


class Refused(ValueError):
    """The arms may not be compared, each reason on a line."""


class Stopped(KeyboardInterrupt):
    """A signal ended the runs; the same command goes on."""


@dataclass
class Flow:
    """`folder` takes verdict, certificate and ledger; `execute` does runs; `say` tells the person what happens."""

    study: Study
    folder: Path
    execute: Run
    say: Callable[[str], None]
    looks: Sequence[int] = ()
    controls: Mapping[str, Judgement] = field(default_factory=dict)
    """By name: known effects that the same rig was shown before."""

    @property
    def claim(self) -> Claim:
        return self.study.claim

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.folder / "ledger.jsonl")

    def verdict(self, facts: dict[str, Any]) -> Verdict:
        """All of it. Incomplete without every run, Stopped after a signal, ValueError where it may not be heard."""
        with self.alone():
            return self._verdict(facts)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """One process at a time writes of a claim. ValueError if another is at it."""
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(self.folder / ".lock")
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise ValueError(f"{self.folder}: another process is hearing this claim; wait for it") from None
        try:
            yield
        finally:
            lock.release()

    def _verdict(self, facts: dict[str, Any]) -> Verdict:
        if self.looks and not self.claim.untrained:
            self.looks = fitting(self.looks, len(self.study.evaluation))
        self.ledger.freeze(self.claim, [] if self.claim.untrained else self.looks, subject(self.study))
        self.withdraw()
        beside = self.facts() | facts
        if self.claim.kind != "exact":
            beside |= {"fairness": self.equalise(), "preflight": self.certify()}
        if self.claim.kind == "exact":
            found = exact_findings(self.claim)
        elif self.claim.kind == "cost":
            found = cost_findings(self.study)
        else:
            best = self.tune()
            found, seeds = self.evaluate(best)
            beside |= {"mitigations": self.mitigations(best, seeds), "runs": self.provenance(best, seeds)}
        return self.write(
            conclude(
                claim=self.claim.name,
                statement=self.claim.claim,
                cells=found,
                controls=self.controls,
                facts=beside,
                void=TOY_SIZE if self.study.toy and self.claim.kind != "exact" else None,
            )
        )

    def equalise(self) -> dict[str, Any]:
        """Costs of the arms in every cell, matched as the claim says, and what chooses their rates; in `fairness.json`,
        the main cell's on screen. ValueError where costs cannot be made equal, or the text is too short to choose on.
        """
        from modernllm.claims.fairness import match

        found = {}
        for cell, of in self.claim.cells.items():
            arms = {arm: self.study.planned(cell, arm) for arm in self.claim.arms}
            fair = match(arms, self.claim.matching, knobs=self.claim.knobs, unlike=self.claim.unlike, timed=of.main)
            self.study.match(cell, fair.overrides)
            found[cell] = replace(fair, held_out=self.study.held_out(cell))
        if not self.study.toy:  # cells that differ in size alone are one there
            self.require_distinct_cells()
        write_json(self.folder / "fairness.json", {cell: fair.to_json() for cell, fair in found.items()})
        main = next(cell for cell, of in self.claim.cells.items() if of.main)
        for line in found[main].lines():
            self.say(line)
        apart = "; ".join(dict.fromkeys(each.sentence for each in found[main].held_out.values()))
        told = {"matching": self.claim.matching, "mismatch": found[main].mismatch}
        return told | ({"held out": apart} if apart else {})

    def require_distinct_cells(self) -> None:
        """Refused where two cells are the same runs: one observation would count twice."""
        runs = {cell: [self.study.planned(cell, arm).run_id for arm in self.claim.arms] for cell in self.claim.cells}
        for one, other in combinations(runs, 2):
            if runs[one] == runs[other]:
                raise Refused(f"cells {one} and {other} are the same runs under two names: leave one out")

    def withdraw(self) -> None:
        """A verdict of another version does not stand where this one's will; the ledger keeps what it said."""
        path = self.folder / "verdict.json"
        with suppress(FileNotFoundError):
            try:
                stale = read_json(path)["facts"]["hash"] != self.claim.hash
            except (ValueError, KeyError, TypeError):
                stale = True
            if stale:
                path.unlink()

    def certify(self) -> dict[str, str]:
        """The hash of each cell's certificate; all of it in `certificate.json`. Refused where one did not pass."""
        from modernllm.claims.preflight import preflight

        certificates = {}
        for cell in self.claim.cells:
            rates = self.study.lrs(cell)
            arms = {arm: self.study.planned(cell, arm) for arm in self.claim.arms}
            grids = dict.fromkeys(arms, rates) if len(rates) > 1 else None
            certificates[cell] = preflight(arms, self.claim.unlike, grids, self.study.held_out(cell))
        write_json(self.folder / "certificate.json", {cell: found.to_json() for cell, found in certificates.items()})
        cells = f"{len(certificates)} cell{'s' * (len(certificates) != 1)}"
        self.say(f"preflight of {cells}: {self.folder / 'certificate.json'}")
        for warning in dict.fromkeys(warning for found in certificates.values() for warning in found.warnings):
            self.say(f"! {warning}")
        refusals = [f"{cell}: {check.line}" for cell, found in certificates.items() for check in found.refusals]
        if refusals:
            raise Refused("\n".join(refusals))
        return {cell: found.hash for cell, found in certificates.items()}

    def tune(self) -> dict[tuple[str, str], float]:
        """The best rate of every arm in every cell, from tuning seeds. Where one stands at the edge of its grid, the
        grid of that cell is extended once, for every arm of it: equal effort.
        """
        if not self.claim.tuned:
            return {}
        self.do(self.study.tuning_keys())
        for cell in self.claim.cells:
            beyond = {self._choice(cell, arm).extension() for arm in self.claim.arms} - {None}
            if beyond:
                rates = sorted({*self.study.lrs(cell), *(rate for rate in beyond if rate)})
                self.study.grids[cell] = rates
                self.say(
                    f"{cell}: a best learning rate is at the edge; trying {', '.join(f'{r:g}' for r in beyond if r)}"
                )
        self.do(self.study.tuning_keys())
        return {(cell, arm): self._choice(cell, arm).lr for cell in self.claim.cells for arm in self.claim.arms}

    def _choice(self, cell: str, arm: str):
        rates = self.study.lrs(cell)
        keys = self.study.keys(cell, self.study.tuning, rates)
        return best_lr(rates, Table(self.rows(keys)).block(cell, arm, rates, self.study.tuning).losses)

    def evaluate(self, best: dict[tuple[str, str], float]) -> tuple[list[CellFindings], list[int]]:
        """Findings on the evaluation seeds: all of them, or as many as the planned looks need."""
        seeds, cells = self.study.evaluation, self.study.cells()
        looks = list(self.looks) or [len(seeds)]
        for number in looks:
            self.do(self.study.evaluation_keys(seeds[:number], best))
            keys = self.study.tuning_keys() + self.study.evaluation_keys(seeds[:number], best)
            alpha = contrasts(cells) * look_alpha(looks, contrasts(cells)) if self.looks else ALPHA
            found = assess(
                Table(self.rows(keys)),
                rule=self.study.rule,
                cells=cells,
                tuning_seeds=self.study.tuning if self.claim.tuned else [],
                evaluation_seeds=seeds[:number],
                alpha=alpha,
            )
            if number == looks[-1] or all(self._decided(each, looks, contrasts(cells)) for each in found):
                return found, list(seeds[:number])
            self.ledger.looked(self.claim, number)
            self.say(f"look at {number} seeds: not decided, going on")
        raise AssertionError("the last look returns")

    def _decided(self, found: CellFindings, looks: list[int], m: int) -> bool:
        judged = [finding.judgement for finding in found.findings]
        looked = [
            look(self.study.rule, np.array(each.values), looks=looks, contrasts=m, blind=each.blind) for each in judged
        ]
        return all(each.stop for each in looked)

    def do(self, keys: Sequence[Key]) -> None:
        """Make every run that is not there. Stopped, or Incomplete naming the runs that have no result."""
        planned = [self.study.plan(key) for key in keys]
        plan = Plan(planned, retry=True, overwrite=False)
        if plan.todo and (signal := self.execute(plan)):
            raise Stopped(signal)
        missing = {}
        for key, run in zip(keys, planned, strict=True):
            try:
                if self.study.run(key) is None:
                    missing[run.path] = f"{run.path}: {_why(run)}"
            except ValueError as error:
                missing[run.path] = str(error)
        if missing:
            named = "\n".join(f"  {words}" for words in list(missing.values())[:5])
            raise Incomplete(
                f"{len(missing)} of {len(plan.unique)} runs have no result, so there is no verdict:\n{named}\n"
                "the same command goes on with them"
            )

    def rows(self, keys: Sequence[Key]) -> list[Row]:
        """Of runs that are all there."""
        rows = [self.study.row(key) for key in dict.fromkeys(keys)]
        found = [row for row in rows if row is not None]
        assert census(keys, found).complete
        return found

    def runs(self, keys: Sequence[Key]) -> list[Record]:
        """The records of these, each once, of runs that are all there."""
        found = {run.path: run for key in keys if (run := self.study.run(key))}
        return [found[path] for path in sorted(found)]

    def facts(self) -> dict[str, Any]:
        """What stands beside the verdict: what exactly was tested, how often before, and at what size."""
        rare = {"unlike": self.claim.unlike, "looks": self.looks, "said before": self.ledger.said(self.claim),
                "under other names": kin(self.folder, self.study)}  # fmt: skip
        return {
            "tier": self.claim.tier,
            "toy": self.study.toy,
            "source": self.claim.source,
            "hash": self.claim.hash,
            "margin": self.claim.margin,
            "held-out tokens": self.study.held_out_tokens,
            "versions": self.ledger.versions(self.claim),
            **{key: list(value) for key, value in rare.items() if value},
        }

    def provenance(self, best: dict[tuple[str, str], float], seeds: Sequence[int]) -> dict[str, Any]:
        """Who made the runs. Refused where that is what sets two arms apart."""
        judged = self.study.evaluation_keys(seeds, best)
        for cell in self.claim.cells:
            by_arm = {arm: self.runs([key for key in judged if key[:2] == (cell, arm)]) for arm in self.claim.arms}
            require_common_makers(cell, by_arm)
        found = Provenance.of(self.runs([*self.study.tuning_keys(), *judged]), self.claim.hash)
        for line in found.lines:
            self.say(line)
        return found.to_json()

    def mitigations(self, best: dict[tuple[str, str], float], seeds: Sequence[int]) -> dict[str, dict[str, float]]:
        """By arm: what kept its runs alive."""
        counts: dict[str, dict[str, float]] = {}
        for arm in self.claim.arms:
            keys = [key for key in self.study.evaluation_keys(seeds, best) if key.arm == arm]
            statuses = [run.status for run in self.runs(keys)]
            counts[arm] = {
                "clipped share": round(sum(status["clipped_share"] for status in statuses) / len(statuses), 4),
                "skipped steps": sum(status["skipped_steps"] for status in statuses),
                "runs": len(statuses),
            }
        return counts

    def write(self, verdict: Verdict) -> Verdict:
        """`verdict.json`, and its line in the ledger."""
        said, found = self.ledger.said(self.claim), verdict.to_json()
        write_json(self.folder / "claim.json", self.claim.model_dump(mode="json"))
        self.ledger.record(self.claim, found)  # first: no verdict is seen that is not in it
        write_json(self.folder / "verdict.json", found)
        if set(said) - {verdict.verdict}:
            self.say(f"! this very version said before: {', '.join(said)}")
        others = kin_in_words(verdict.facts.get("under other names", ()))
        for sentence in [*earlier(self.ledger.versions(self.claim)), *others]:
            self.say(sentence)
        return verdict


def write_json(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def _why(run: Planned) -> str:
    from modernllm.runs.directory import RunDirectory

    status = RunDirectory(run.path).status()
    word = {"interrupted": "ended in the middle: killed by hand, or for want of memory"}.get(status.get("status", ""))
    return str(status.get("reason") or word or status.get("status") or "never started").partition("\n")[0]
