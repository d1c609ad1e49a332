"""A claim file: what is said, how it is tested and what would count, all written down before the first run."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator

from modernllm.config.nearest import did_you_mean
from modernllm.config.tree import CONFIG_DIR

Kind = Literal["superiority", "equivalence", "non_inferiority", "stability", "interaction", "exact", "cost"]
TUNED: tuple[Kind, ...] = ("superiority", "equivalence", "non_inferiority")
"""Kinds about quality, which is compared between arms at their own best learning rates."""
T = TypeVar("T", bound=Hashable)
CLOSEST = 1.4
"""Ratio of neighbouring rates in a grid; about the root of 2."""
RATE = "optimizer.lr"
RESERVED = {
    RATE: "lrs or lr says which rates are run; where there is neither, every arm may set its own",
    "trainer.held_out": "what chooses learning rates is measured on tuning, what is judged on evaluation",
    "seed": "seeds says which are run",
    "study": "the claim's name is its study",
    "out": "out=... of the command says where",
    "overwrite": "runs are made once",
    "resume": "every run starts at its beginning",
}
"""What a claim says elsewhere: an override of it would be lost in silence."""


def repeated(values: Sequence[T]) -> list[T]:
    """What stands there more than once, each once."""
    return [value for value, times in Counter(values).items() if times > 1]


def _no_switch(value: Any) -> Any:
    """YAML reads on, off, yes and no as true and false, which would pass for 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("is a number, not true or false (YAML reads on, off, yes and no as those)")
    return value


Number = Annotated[float, BeforeValidator(_no_switch), Field(allow_inf_nan=False)]
Rate = Annotated[Number, Field(gt=0)]
Margin = Annotated[Number, Field(ge=1e-6, le=1)]
"""Nats a token: below is rounding, and beyond lies what training itself gains, so that any two arms would be alike."""
Seed = Annotated[int, BeforeValidator(_no_switch), Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]


class Part(BaseModel):
    """Unknown keys are errors, and nothing changes after it was read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Seeds(Part):
    """What chose a learning rate cannot also judge it: the two lists share no seed, nor what they are measured on."""

    tuning: list[Seed] = []
    evaluation: Annotated[list[Seed], Field(min_length=1)]

    @model_validator(mode="after")
    def _once(self) -> Seeds:
        for name, seeds in (("tuning", self.tuning), ("evaluation", self.evaluation)):
            if twice := repeated(seeds):
                raise ValueError(f"{name}: {twice} more than once; a seed counts once")
        if shared := set(self.tuning) & set(self.evaluation):
            raise ValueError(f"{sorted(shared)} are both for tuning and for evaluation")
        return self


class ContrastOf(Part):
    """Which arms are compared: a variant with its reference, or (off, on) of a needy and of a robust pair."""

    variant: Name | None = None
    reference: Name | None = None
    needy: tuple[Name, Name] | None = None
    robust: tuple[Name, Name] | None = None

    @property
    def arms(self) -> list[str]:
        single = [name for name in (self.variant, self.reference) if name]
        return [*single, *(self.needy or ()), *(self.robust or ())]

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Of arms, each of which is one difference."""
        if self.needy and self.robust:
            return [self.needy, self.robust]
        return [(self.variant, self.reference)] if self.variant and self.reference else []

    @model_validator(mode="after")
    def _one_form(self) -> ContrastOf:
        pair, fourfold = (self.variant, self.reference), (self.needy, self.robust)
        if all(pair) == all(fourfold) or any(pair) != all(pair) or any(fourfold) != all(fourfold):
            raise ValueError("has either variant and reference, or needy and robust")
        if twice := repeated(self.arms):
            raise ValueError(f"{', '.join(twice)} stands in it more than once: an arm is not compared with itself")
        return self


class CellOf(Part):
    """Pre-registered conditions: overrides for every arm, and the learning rate where that is one of them."""

    overrides: list[Name] = []
    main: bool = False
    lr: Rate | None = None


class Probe(Part):
    """An exact check: a function of this package, its arguments, and the interval that every value must lie in."""

    measure: Name
    arguments: dict[str, Any] = {}
    low: Number
    high: Number

    @model_validator(mode="after")
    def _in_order(self) -> Probe:
        if not self.low <= self.high:
            raise ValueError(f"low={self.low:g} high={self.high:g}: write the smaller one first")
        return self


class Claim(Part):
    """One file of `configs/claim/`. Arms, cells and base are lists of overrides, as on a command line."""

    name: str
    claim: Name
    source: Name
    kind: Kind
    tier: Literal["cpu", "gpu"]
    minutes: Rate
    """Expected on two cores (cpu) or one accelerator (gpu)."""
    base: list[Name] = []
    arms: dict[Name, list[Name]] = {}
    contrasts: dict[Name, ContrastOf] = {}
    lr: Rate | None = None
    """One rate for all arms: a condition."""
    lrs: list[Rate] = []
    """A grid: each arm's own best rate for quality, the whole of it for stability."""
    seeds: Seeds = Seeds(evaluation=[0])
    margin: Margin | None = None
    covers_critical: bool = False
    """Whether depth, scale of the start, learning rate and warm-up reach what theory calls critical."""
    cells: dict[Name, CellOf] = {"main": CellOf(main=True)}
    matching: Literal["none", "params", "flops", "cache"] = "none"
    knobs: dict[Name, Name] = {}
    """By arm: the key that matching turns, where it is not the width of the feed-forward."""
    unlike: list[Name] = []
    """Keys beside the arms' own overrides that may differ between arms: declared, so that preflight lets them."""
    probes: dict[Name, Probe] = {}
    """Of an exact claim."""

    @property
    def hash(self) -> str:
        """Of what it says, not of how it is written: comments and order of keys do not count."""
        content = self.model_dump(mode="json", exclude={"name"})
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def untrained(self) -> bool:
        """Measured at once, without runs or seeds."""
        return self.kind in ("exact", "cost")

    @property
    def tuned(self) -> bool:
        return self.kind in TUNED

    @property
    def compares_rates(self) -> bool:
        """Whether every arm says its own learning rate: nothing is tuned, and the rate is what is compared."""
        return bool(self.arms) and all(RATE in map(key_of, words) for words in self.arms.values())

    @model_validator(mode="after")
    def _complete(self) -> Claim:
        if self.kind == "exact":
            if not self.probes or self.arms:
                raise ValueError("kind=exact: has probes, and no arms")
            return self
        self._arms()
        self._rates()
        if self.margin is None and self.kind != "cost":
            raise ValueError("margin: is missing: the smallest effect of interest, in nats")
        if not any(cell.main for cell in self.cells.values()):
            raise ValueError("cells: mark the main one with main: true; it decides where cells do not disagree")
        self._overrides()
        return self

    def _overrides(self) -> None:
        """Each key once in a list, none that the claim says elsewhere, and no condition that an arm would undo."""
        lists = {"base": self.base}
        lists |= {f"arms.{name}": words for name, words in self.arms.items()}
        lists |= {f"cells.{name}.overrides": cell.overrides for name, cell in self.cells.items()}
        for place, words in lists.items():
            keys = [key_of(word) for word in words]
            if twice := repeated(keys):
                raise ValueError(f"{place}: {', '.join(twice)} is written more than once")
            of_its_own = {RATE} if place.startswith("arms.") and self.compares_rates else set()
            for key in keys:
                if key in RESERVED and key not in of_its_own:
                    raise ValueError(f"{place}: {key} cannot be set there: {RESERVED[key]}")
        for name, cell in self.cells.items():
            for arm, words in self.arms.items():
                if undone := {key_of(word) for word in cell.overrides} & {key_of(word) for word in words}:
                    raise ValueError(
                        f"cells.{name}: {', '.join(sorted(undone))} is set by the arm {arm} too, whose value would "
                        "stay: a condition holds for every arm"
                    )

    def _arms(self) -> None:
        if len(self.arms) < 2 or not self.contrasts:
            raise ValueError("arms and contrasts: two arms are compared, or more")
        for name, contrast in self.contrasts.items():
            for arm in contrast.arms:
                if arm not in self.arms:
                    raise ValueError(f"contrasts.{name}: no arm {arm}{did_you_mean(arm, list(self.arms))}")
            if (contrast.needy is not None) != (self.kind == "interaction"):
                form = "needy and robust" if self.kind == "interaction" else "variant and reference"
                raise ValueError(f"contrasts.{name}: kind={self.kind} compares {form}")
        compared = [tuple(sorted(contrast.arms)) for contrast in self.contrasts.values()]
        if twice := repeated(compared):
            raise ValueError(f"contrasts: {' and '.join(twice[0])} are compared more than once; once is evidence")
        if strange := set(self.knobs) - set(self.arms):
            raise ValueError(f"knobs: no arm {', '.join(sorted(strange))}")
        unused = set(self.arms) - {arm for contrast in self.contrasts.values() for arm in contrast.arms}
        if unused:
            raise ValueError(f"arms: {', '.join(sorted(unused))} stands in no contrast")

    def _rates(self) -> None:
        if twice := repeated([f"{rate:g}" for rate in self.lrs]):
            raise ValueError(f"lrs: {', '.join(twice)} more than once (in six digits, as it is run)")
        for low, high in pairwise(sorted(self.lrs)):
            if high < CLOSEST * low:
                raise ValueError(
                    f"lrs: {low:g} and {high:g} are a factor of {high / low:.3g} apart; among rates that close noise "
                    f"picks the best, so that it seems to lie inside any grid: {CLOSEST} or more"
                )
        if self.compares_rates:
            self._rates_of_arms()
            return
        gridded = self.tuned or self.kind == "stability"
        if gridded and len(self.lrs) < 3:
            raise ValueError(f"lrs: kind={self.kind} needs a grid of three learning rates or more")
        if self.tuned and not self.seeds.tuning:
            raise ValueError("seeds.tuning: is missing; the learning rate of an arm is chosen on seeds of its own")
        if not gridded and self.lrs:
            raise ValueError(f"lrs: kind={self.kind} is judged at one learning rate; write lr")
        if gridded and any(cell.lr for cell in self.cells.values()):
            raise ValueError(f"cells: kind={self.kind} goes over the grid lrs in every cell; lr is for one rate")
        if self.kind == "interaction" and self.lr is None and not all(cell.lr for cell in self.cells.values()):
            raise ValueError("lr: is missing: the one learning rate at which the interaction is judged")

    def _rates_of_arms(self) -> None:
        """They may be what is compared exactly where nothing else says a rate, and none is chosen."""
        if self.kind not in ("stability", "interaction"):
            raise ValueError(f"arms: kind={self.kind} compares no learning rates, so no arm sets {RATE}")
        said = [name for name, given in (("lrs", self.lrs), ("lr", self.lr)) if given]
        said += [f"cells.{name}.lr" for name, cell in self.cells.items() if cell.lr]
        if said:
            raise ValueError(f"{', '.join(said)}: the arms set {RATE} themselves; leave one of both out")
        for name, contrast in self.contrasts.items():
            pairs = [[_rate_and_rest(self.arms[arm]) for arm in pair] for pair in contrast.pairs]
            alone = all(one == other for (_, one), (_, other) in pairs)
            rates = {(one, other) for (one, _), (other, _) in pairs}
            if not alone or len(rates) > 1:
                raise ValueError(
                    f"contrasts.{name}: where arms set {RATE}, it is all that they differ in, and all pairs have the "
                    "same two; else it would explain what is said of another difference"
                )


def _rate_and_rest(words: Sequence[str]) -> tuple[str, frozenset[str]]:
    """Of an arm: the learning rate that it sets, and its other overrides."""
    (rate,) = [word.partition("=")[2] for word in words if key_of(word) == RATE]
    return rate, frozenset(word for word in words if key_of(word) != RATE)


def key_of(word: str) -> str:
    """Of an override, without the signs of Hydra before it."""
    return word.partition("=")[0].strip().lstrip("+~")


def shipped() -> list[str]:
    """Names of the claims in `configs/claim/`."""
    return sorted(path.stem for path in (CONFIG_DIR / "claim").glob("*.yaml"))


def load_claim(name: str) -> Claim:
    """The shipped claim of that name, or the one in that file. ValueError says what is wrong in it, key by key."""
    path = Path(name).expanduser()
    if path.suffix not in (".yaml", ".yml"):
        path = CONFIG_DIR / "claim" / f"{name}.yaml"
        if not path.is_file():
            near = did_you_mean(name, shipped())
            raise ValueError(f"claim={name}: no such claim{near}; there are {', '.join(shipped())}, or a file.yaml")
    if strange := sorted(set(re.findall(r"[^\w.+-]", path.stem))):
        raise ValueError(
            f"{path}: the name of the file names folders, and has {' '.join(map(repr, strange))} in it; use letters, "
            "digits, _ . + and -"
        )
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_EachKeyOnce)
    except FileNotFoundError:
        raise ValueError(f"claim={name}: no such file; shipped are {', '.join(shipped())}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path}: a claim is a mapping of keys: {', '.join(_keys())}")
    try:
        return Claim(name=path.stem, **{str(key): value for key, value in content.items()})
    except (ValidationError, TypeError) as error:
        raise ValueError("\n".join(f"{path}: {line}" for line in _in_words(error))) from None


class _EachKeyOnce(yaml.SafeLoader):
    """YAML takes the last of two equal keys in silence: an arm or a cell would be gone."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        twice = repeated([key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode) and key.value != "<<"])
        if twice:
            raise yaml.YAMLError(f"{', '.join(twice)} is written more than once {node.start_mark}")
        return super().construct_mapping(node, deep)


def _keys() -> list[str]:
    return [key for key in Claim.model_fields if key != "name"]


def _in_words(error: ValidationError | TypeError) -> list[str]:
    if isinstance(error, TypeError):  # a file that names itself
        return [str(error)]
    lines = []
    for problem in error.errors():
        key = ".".join(str(part) for part in problem["loc"])
        if problem["type"] == "extra_forbidden":
            lines.append(f"{key}: no such key{did_you_mean(key, _keys())}")
        elif problem["type"] == "missing":
            lines.append(f"{key}: is missing")
        else:
            words = problem["msg"].removeprefix("Value error, ")
            lines.append(f"{key}: {words}" if key else words)
    return lines
