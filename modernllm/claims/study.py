"""The runs of a claim: from its arms, cells, rates and seeds to planned runs, and from their records to its table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from modernllm.claims.analysis import Cell, Contrast, excess, gain, interaction
from modernllm.claims.apart import Apart
from modernllm.claims.claim import RATE, CellOf, Claim
from modernllm.claims.measures import BestLoss, LossAt, Measure, Regret
from modernllm.claims.records import code_of, finished
from modernllm.claims.rules import Equivalence, Interaction, NonInferiority, Rule, Stability, Superiority
from modernllm.claims.table import Key, Row
from modernllm.runs.identity import digest
from modernllm.runs.record import Run
from modernllm.sweep.plan import Planned, Planner
from modernllm.sweep.request import Requests, one_checkpoint

RULES = {"superiority": Superiority, "equivalence": Equivalence, "non_inferiority": NonInferiority}
TOY = (
    "size=nano", "model.dim=32", "model.n_layers=2", "model.context_length=32", "data=synthetic", "tokenizer=byte",
    "data.n_documents=40", "trainer.batch_size=4", "trainer.steps=6", "trainer.validation_tokens=256",
)  # fmt: skip
"""What shrinks any claim to seconds: its machinery is exercised, its verdict means nothing."""
TOY_SIZE = "toy size: the machinery was exercised; the words say nothing about any claim"
OWN = 0.0
"""As a rate: the one that the configuration has by itself, which an arm may set."""
SCOPE = {
    "width": "model.dim", "depth": "model.n_layers", "context": "model.context_length", "steps": "trainer.steps",
    "batch": "trainer.batch_size",
}  # fmt: skip
SCOPE_GROUPS = ("init", "position", "readout", "data", "tokenizer", "optimizer")


@dataclass
class Study:
    """`words` are added to every run: where it is recorded, on what device. `matched` are the overrides that make the
    arms of a cell equal in cost, by cell and arm.
    """

    claim: Claim
    words: Sequence[str] = ()
    config_dirs: tuple[str, ...] = ()
    """With choices of one's own."""
    toy: bool = False
    matched: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    grids: dict[str, list[float]] = field(default_factory=dict)
    """By cell, where the claim's own grid was extended."""

    def __post_init__(self) -> None:
        self._requests, self._planner = Requests(self.config_dirs), Planner()
        self._planned: dict[Key, Planned] = {}
        self._runs: dict[Path, Run] = {}

    @property
    def rule(self) -> Rule:
        claim = self.claim
        assert claim.margin is not None
        if claim.kind in RULES:
            return RULES[claim.kind](claim.margin)
        kind = Stability if claim.kind == "stability" else Interaction
        return kind(claim.margin, min(0.05, claim.margin), claim.covers_critical)

    @property
    def name(self) -> str:
        """Of the study folder."""
        return f"toy-{self.claim.name}" if self.toy else f"claim-{self.claim.name}"

    @cached_property
    def tuning(self) -> list[int]:
        return self.claim.seeds.tuning[:1] if self.toy else self.claim.seeds.tuning

    @cached_property
    def evaluation(self) -> list[int]:
        return self.claim.seeds.evaluation[:2] if self.toy else self.claim.seeds.evaluation

    @property
    def held_out_tokens(self) -> int | None:
        """That losses are measured on, in the main cell; None where nothing is trained."""
        if self.claim.untrained:
            return None
        cell = next(name for name, of in self.claim.cells.items() if of.main)
        return self._planner.text(self.planned(cell, next(iter(self.claim.arms))).config).validation.n_targets

    def lrs(self, cell: str) -> list[float]:
        """The rates that a cell is run at; OWN where each arm has its own."""
        own = OWN if self.claim.compares_rates else self.claim.cells[cell].lr or self.claim.lr
        return self.grids.get(cell, self.claim.lrs) or ([] if own is None else [own])

    def overrides(self, key: Key) -> list[str]:
        """Of one run, each key once: arm over cell over base."""
        cell = self.claim.cells[key.cell]
        words = [*self.claim.base, *cell.overrides, *self.claim.arms[key.arm]]
        words += [*(TOY if self.toy else ()), *self.matched.get(key.cell, {}).get(key.arm, [])]
        words += [f"optimizer.lr={key.lr:g}"] if key.lr != OWN else []
        words += ["trainer.held_out=tuning"] if self.chooses(key) else []
        words += [f"seed={key.seed}", f"study={self.name}", *self.words]
        return list({word.partition("=")[0]: word for word in words}.values())

    def plan(self, key: Key) -> Planned:
        """ConfigError where the run cannot be built."""
        if key not in self._planned:
            overrides = self.overrides(key)
            config, words = self._requests(overrides, self._telling(overrides))
            words = replace(words, origin=self.origin(key) | code_of(config))
            self._planned[key] = self._planner(one_checkpoint(config, words), words)
        return self._planned[key]

    def run(self, key: Key) -> Run | None:
        """Its record, read once: what is judged stays what it was. None, and errors, of `finished`."""
        planned = self.plan(key)
        if planned.path not in self._runs and (run := finished(planned)):
            self._runs[planned.path] = run
        return self._runs.get(planned.path)

    def row(self, key: Key) -> Row | None:
        """For the statistics; None, and errors, of `finished`."""
        run = self.run(key)
        return run and row_of(key, self.plan(key), run)

    def origin(self, key: Key) -> dict[str, str]:
        """What run.json says of why the run was made."""
        return {"claim": self.claim.name, "hash": self.claim.hash, "cell": key.cell, "arm": key.arm}

    def _telling(self, overrides: Sequence[str]) -> list[str]:
        """The overrides that name a run among its siblings: not those of the base, nor where it is recorded."""
        common = {*self.claim.base, *self.words, *TOY, f"study={self.name}"}
        return [word for word in overrides if word not in common]

    def chooses(self, key: Key) -> bool:
        """Whether the run helps to choose a learning rate: it is measured on windows that judge nothing."""
        return self.claim.tuned and key.seed in self.claim.seeds.tuning

    def keys(self, cell: str, seeds: Iterable[int], lrs: Iterable[float]) -> list[Key]:
        lrs = list(lrs)
        return [Key(cell, arm, lr, seed) for seed in seeds for arm in self.claim.arms for lr in lrs]

    def tuning_keys(self) -> list[Key]:
        """The runs that choose each arm's rate; none where the rate is no choice."""
        if not self.claim.tuned:
            return []
        return [key for cell in self.claim.cells for key in self.keys(cell, self.tuning, self.lrs(cell))]

    def evaluation_keys(self, seeds: Sequence[int], best: Mapping[tuple[str, str], float]) -> list[Key]:
        """The runs that are judged; `best` is the chosen rate by cell and arm."""
        if not self.claim.tuned:
            return [key for cell in self.claim.cells for key in self.keys(cell, seeds, self.lrs(cell))]
        return [Key(cell, arm, best[cell, arm], seed) for cell in self.claim.cells for arm in self.claim.arms
                for seed in seeds]  # fmt: skip

    def cells(self) -> list[Cell]:
        """For the statistics: every contrast in every cell, with its scope in words."""
        return [
            Cell(name, name, cell.main, self.scope(name), tuple(self._contrasts(cell)))
            for name, cell in self.claim.cells.items()
        ]

    def _contrasts(self, cell: CellOf) -> Iterable[Contrast]:
        for name, of in self.claim.contrasts.items():
            if self.claim.kind == "interaction":
                assert of.needy
                assert of.robust
                yield interaction(name, self._measure(cell), needy=of.needy, robust=of.robust)
            else:
                assert of.variant
                assert of.reference
                measure = self._measure(cell)
                make = gain if self.claim.kind == "stability" else excess
                yield make(name, measure, variant=of.variant, reference=of.reference)

    def _measure(self, cell: CellOf) -> Measure:
        if self.claim.tuned:
            return BestLoss()
        if self.claim.compares_rates:
            return LossAt(OWN)
        if self.claim.kind == "stability":
            return Regret()
        rate = cell.lr or self.claim.lr
        assert rate
        return LossAt(rate)

    def match(self, cell: str, overrides: dict[str, list[str]]) -> None:
        """Give the arms of a cell what makes them equal in cost; what was planned without it is forgotten."""
        self.matched[cell] = overrides
        self._planned = {key: run for key, run in self._planned.items() if key.cell != cell}

    def planned(self, cell: str, arm: str) -> Planned:
        """One arm in a cell, at the first rate and seed of the plan."""
        return self._first(cell, arm, self.evaluation)

    def tuned(self, cell: str) -> dict[str, Planned]:
        """Every arm in a cell as it is tuned; none where it is not."""
        return {arm: self._first(cell, arm, self.tuning) for arm in self.claim.arms if self.claim.tuned}

    def held_out(self, cell: str) -> dict[str, Apart]:
        """By arm: the windows that choose its rate and those that judge it; none where no rate is chosen. ValueError
        where the text has no room for both.
        """
        return {
            arm: Apart.of(self._planner.text(chooses.config).data.validation, chooses, self.planned(cell, arm))
            for arm, chooses in self.tuned(cell).items()
        }

    def _first(self, cell: str, arm: str, seeds: Sequence[int]) -> Planned:
        rates = self.lrs(cell)
        return self.plan(Key(cell, arm, rates[0] if rates else OWN, seeds[0]))

    def scope(self, cell: str) -> dict[str, str]:
        """What all arms of a cell share of width, depth, start, position, text and budget, and of all that sets any
        cell of the claim apart from the others.
        """
        rates = self.lrs(cell)
        runs = [self.planned(cell, arm) for arm in self.claim.arms]
        found = {name: {str(_at(run.config, key)) for run in runs} for name, key in SCOPE.items()}
        apart = [word.partition("=")[0] for of in self.claim.cells.values() for word in of.overrides]
        found |= {name: {_setting(run, name) for run in runs} for name in (*SCOPE_GROUPS, *apart)}
        if self.claim.compares_rates:
            found["lr"] = {f"{_at(run.config, RATE):g}" for run in runs}
        scope = {name: "|".join(sorted(values)) for name, values in found.items()}
        if not rates or self.claim.compares_rates:
            return scope
        return scope | {"lr": f"{rates[0]:g}" if len(rates) == 1 else f"{min(rates):g}..{max(rates):g}"}


def _setting(run: Planned, name: str) -> str:
    """The choice in a group, or the value of a key, which may leave out `model.`; "none" where there is neither."""
    if "." not in name:
        return run.asked.choices.get(name, "none")
    found: Any = run.config["model"] | run.config
    for part in name.split("."):
        found = found.get(part, "none") if isinstance(found, Mapping) else "none"
    return str(found)


def _at(config: Mapping[str, Any], key: str) -> Any:
    section, _, name = key.partition(".")
    return config[section][name]


def row_of(key: Key, planned: Planned, run: Run) -> Row:
    return Row(
        cell=key.cell,
        arm=key.arm,
        lr=key.lr,
        seed=key.seed,
        loss=run.val_loss,
        initial_loss=initial_loss(run),
        outcome=run.outcome,
        tokens=run.status["tokens"],
        planned_tokens=planned.tokens,
        yardstick=digest([run.identity["tokenizer"], run.identity["validation"]])[:16],
    )


def initial_loss(run: Run) -> float:
    """On the validation windows, before the first step."""
    return next(row["val_loss"] for row in run.metrics if row["step"] == 0 and "val_loss" in row)
