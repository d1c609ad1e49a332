"""What stands on top of the page where the runs are those of a claim: its verdict, rule, certificate and power."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from modernllm.claims.claim import Claim
from modernllm.claims.judgement import SYMBOLS
from modernllm.claims.ledger import Ledger
from modernllm.claims.rules import Cost, Equivalence, Exact, Interaction, NonInferiority, Stability, Superiority
from modernllm.claims.study import OWN, Study
from modernllm.claims.table import Key
from modernllm.report.page.arms import AXES, NOT_COMPARED
from modernllm.report.page.curve import short
from modernllm.report.page.figures import OUTCOMES, Figure, bar, interval_layout, label
from modernllm.report.page.markup import Html, joined, table, tag
from modernllm.report.page.reading import Record
from modernllm.runs.directory import read_json, read_rows
from modernllm.runs.identity import SECTIONS, leaves_of
from modernllm.runs.plans import KNOWN
from modernllm.sweep.request import Requests

FILES = ("verdict.json", "certificate.json", "ledger.jsonl")
RULES = {rule.kind: rule for rule in (Superiority, Equivalence, NonInferiority, Stability, Interaction, Exact, Cost)}
TOY = "Toy size: the machinery was exercised; the word says nothing about the claim."
WORDS = {"supported": OUTCOMES["ok"], "refuted": OUTCOMES["diverged"], "inconclusive": OUTCOMES["degraded"]}


@dataclass(frozen=True)
class Court:
    """What a claim's folder in `verdicts/` holds; {} for what is not there yet. `studied` are its runs."""

    folder: Path
    verdict: Mapping[str, Any]
    certificate: Mapping[str, Any]
    claim: Claim | None

    @property
    def studied(self) -> Path:
        return self.folder.parent.parent / self.folder.name

    @property
    def toy(self) -> bool:
        return self.folder.name.startswith("toy-")

    @property
    def name(self) -> str:
        return self.folder.name.partition("-")[2]

    @property
    def word(self) -> str:
        return self.verdict.get("verdict", "no verdict yet")

    @property
    def statement(self) -> str:
        return self.verdict.get("statement") or (self.claim.claim if self.claim else self.name)

    @property
    def cells(self) -> list[str]:
        """In the order of the claim's file, those that decide first."""
        if self.claim is None:
            return [cell["name"] for cell in self.findings]
        return [name for name, _ in sorted(self.claim.cells.items(), key=lambda each: not each[1].main)]

    @property
    def findings(self) -> list[Mapping[str, Any]]:
        """The cells of the verdict, those that decide first."""
        return sorted(self.verdict.get("cells", []), key=lambda cell: not cell["main"])


def is_court(folder: Path) -> bool:
    return folder.parent.name == "verdicts" and any((folder / name).exists() for name in FILES)


def court_of(path: Path) -> Court | None:
    """Of a claim's folder, or of its study beside `verdicts/`. ValueError names a damaged file."""
    for folder in (path, path.parent / "verdicts" / path.name):
        if is_court(folder):
            verdict, certificate = (_read(folder / name) for name in FILES[:2])
            return Court(folder, verdict, certificate, _claim(folder))
    return None


def _read(path: Path) -> dict[str, Any]:
    return read_json(path) if path.exists() else {}


def _claim(folder: Path) -> Claim | None:
    """As it was frozen last."""
    frozen = [row["content"] for row in read_rows(Ledger(folder / "ledger.jsonl").path) if row["event"] == "frozen"]
    return Claim(**frozen[-1]) if frozen else None


def absent(court: Court, records: Sequence[Record]) -> list[Record]:
    """Runs that the claim asks for and that are not among `records`, as far as its rates are chosen: missing, or made
    for another cell that they are the same in.
    """
    if court.claim is None or court.claim.untrained:
        return []
    study, best, seeds = _judged(court, court.claim)
    keys = study.tuning_keys()
    chosen = all((cell, arm) in best for cell in court.claim.cells for arm in court.claim.arms)
    if not court.claim.tuned or chosen:
        keys += study.evaluation_keys(seeds, best)
    made = {key: record for record in records if (key := _key(record, court.claim))}
    configurations = {_leaves(record.config): record for record in records}
    like = {(key.cell, key.arm, study.chooses(key)): record for key, record in made.items()}
    found = []
    for key in dict.fromkeys(keys):
        if key in made:
            continue
        kind = (key.cell, key.arm, study.chooses(key))
        beside = like.get(kind) or like.setdefault(kind, _composed(study, key, records))
        record = beside.other(beside.lr if key.lr == OWN else key.lr, key.seed)
        same = configurations.get(_leaves(record.config))
        found.append(same.lent_to(study.origin(key)) if same else record)
    return found


def _judged(court: Court, claim: Claim) -> tuple[Study, dict[tuple[str, str], float], Sequence[int]]:
    """The study as it was judged: the rates that were chosen, by cell and arm, and the seeds that were looked at."""
    study = Study(claim, toy=court.toy)
    for cell, fair in _read(court.folder / "fairness.json").items():
        study.match(cell, fair["overrides"])
    best: dict[tuple[str, str], float] = {}
    seeds = study.evaluation
    for cell in court.verdict.get("cells", []):
        for finding in cell["findings"]:
            seeds = finding["seeds"]
            for arm, choice in finding["choices"].items():
                best[cell["name"], arm] = choice["lr"]
                study.grids[cell["name"]] = list(choice["grid"])
    return study, best, seeds


def _key(record: Record, claim: Claim) -> Key | None:
    origin = record.identity.get("origin") or {}
    if origin.get("cell") not in claim.cells or origin.get("arm") not in claim.arms:
        return None
    return Key(origin["cell"], origin["arm"], OWN if claim.compares_rates else record.lr, record.seed)


def _composed(study: Study, key: Key, records: Sequence[Record]) -> Record:
    """A run of an arm that has none in its cell, on the text of the others; one of theirs where it cannot be composed
    here, as with components of one's own.
    """
    beside = max(records, key=lambda record: _nearness(study, key, record))
    config, identity = beside.config, beside.identity
    with suppress(ValueError):
        made, asked = Requests()(study.overrides(key))
        vocabulary = made["model"]["vocab_size"] or config["model"]["vocab_size"]
        config = {**made, "model": {**made["model"], "vocab_size": vocabulary}}
        identity = {**identity, "choices": asked.choices, "overrides": asked.overrides, "dead_switches": {}}
    origin = study.origin(key)
    return Record.absent(Path(), config, {**{k: identity[k] for k in KNOWN}, "origin": origin}, "no run")


def _nearness(study: Study, key: Key, record: Record) -> tuple[bool, bool]:
    """Measured on the same windows, then in the same cell."""
    origin = record.identity.get("origin") or {}
    return (record.held_out == "tuning") == study.chooses(key), origin.get("cell") == key.cell


def _leaves(config: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """What makes it the run that it is; the vocabulary is the tokenizer's, and known later."""
    leaves = ((key, value) for section in SECTIONS for key, value in leaves_of(section, config[section]))
    apart = NOT_COMPARED - set(AXES)
    kept = {(key, str(value)) for key, value in leaves if key not in apart and key != "model.vocab_size"}
    return frozenset({*kept, ("seed", str(config["seed"]))})


def top(court: Court) -> Iterator[Html]:
    verdict, claim, word = court.verdict, court.claim, court.word
    lines = [tag("p", {"class": f"verdict {word}"}, word), tag("h2", {}, court.statement)]
    if verdict:
        lines.append(tag("p", {}, f"Void: {verdict['void']}" if verdict["void"] else verdict["reason"]))
        lines.append(tag("p", {"class": "note"}, scope_of(verdict)))
    if court.toy and not verdict.get("void"):
        lines.append(tag("p", {}, TOY))
    tone = {"supported": "clear", "refuted": "clear"}.get(word, "open")
    yield tag("section", {"class": f"card answer {tone}", "id": "verdict"}, joined(lines))
    if verdict:
        yield _heading("Cells", "The conditions that were written down before; those in bold decide.")
        yield cells_table(court)
    if claim:
        yield _heading("Rule", f"Fixed before the first run (claim {claim.hash}; {claim.source}).")
        yield tag("div", {"class": "card", "id": "rule"}, joined(rule(claim)))
    if court.certificate:
        yield _heading("Preflight", "What was certified before any training.")
        yield certificate(court.certificate)


def _heading(title: str, note: str) -> Html:
    return joined([tag("h2", {}, title), tag("p", {"class": "note"}, note)])


def scope_of(verdict: Mapping[str, Any]) -> str:
    scope = ", ".join(f"{key}={value}" for key, value in verdict["scope"].items())
    return f"Scope: {scope}; second initialisation: {verdict['second_init']}."


def rule(claim: Claim) -> Iterator[Html]:
    """In the words of the rule itself, with the claim's numbers."""
    for paragraph in (inspect.getdoc(RULES[claim.kind]) or "").replace("*", "").split("\n\n"):
        yield joined(tag("p", {}, line) for line in paragraph.splitlines())
    seeds = claim.seeds
    told = [f"kind {claim.kind}", f"margin {claim.margin:g} nats" if claim.margin else ""]
    told += [
        f"seeds that tune {_list(seeds.tuning)}" if seeds.tuning else "",
        f"seeds that judge {_list(seeds.evaluation)}",
    ]
    told += [f"learning rates {' '.join(f'{lr:g}' for lr in claim.lrs)}" if claim.lrs else ""]
    told += [f"learning rate {claim.lr:g}" if claim.lr else "", f"matching {claim.matching}"]
    yield tag("p", {"class": "note"}, "; ".join(filter(None, told)))


def _list(seeds: Sequence[int]) -> str:
    return ", ".join(map(str, seeds))


CELLS = ("cell", "contrast", "word", "mean", "interval", "seeds", "detectable at 80 %", "seeds needed", "notes")
"""Headings of what was found."""


def cell_rows(court: Court) -> Iterator[list[str]]:
    """Of CELLS, for each contrast of each cell, with its power."""
    for cell in court.findings:
        for finding in cell["findings"]:
            judged = finding["judgement"]
            numbers = [_form(judged["mean"]), _interval(judged), str(judged["n"]), _form(judged["mde"], sign="")]
            needed = "–" if judged["seeds_needed"] is None else str(judged["seeds_needed"])
            notes = "; ".join([*judged["flags"], *cell["capped"]])
            yield [cell["name"], finding["contrast"], judged["verdict"], *numbers, needed, notes]


def cells_table(court: Court) -> Html:
    deciding = {cell["name"] for cell in court.findings if cell["main"]}
    rows = []
    for name, contrast, word, *numbers, notes in cell_rows(court):
        first = [tag("b", {}, name) if name in deciding else name, contrast, _word(word)]
        body = [tag("td", {}, value) for value in first] + [tag("td", {"class": "n"}, value) for value in numbers]
        rows.append(tag("tr", {}, joined([*body, tag("td", {}, notes)])))
    return table("cells", CELLS, rows)


def _form(value: float | int | None, sign: str = "+") -> str:
    return "–" if value is None else f"{value:{sign}.4g}"


def _interval(judged: Mapping[str, Any]) -> str:
    if not judged["interval"]:
        return "–"
    low, high = judged["interval"]
    return f"{low:+.4g} to {high:+.4g} at {100 * judged['level']:.4g} %"


def _word(word: str) -> Html:
    return tag("span", {"class": "pill", "style": f"--c:{WORDS.get(word, '#8a94a6')}"}, word)


def certificate(cells: Mapping[str, Any]) -> Html:
    parts = []
    for name, found in cells.items():
        word = "passed" if found["passed"] else "refused"
        checks = [
            f"{'ok' if check['passed'] else 'REFUSED'}: {check['name']}: {check['sentence']}"
            for check in found["checks"]
        ]
        listed = [tag("li", {}, text) for text in [*checks, *(f"note: {warning}" for warning in found["warnings"])]]
        summary = tag("summary", {}, f"{name}: {word}, {len(checks)} checks, certificate {found['hash']}")
        parts.append(tag("details", {} if found["passed"] else {"open": ""}, summary, tag("ul", {}, joined(listed))))
    return tag("div", {"class": "card", "id": "certificate"}, joined(parts))


def intervals(court: Court) -> Figure | None:
    """Of every contrast in every cell."""
    found = [(cell, finding) for cell in court.findings for finding in cell["findings"]]
    found = [(cell, finding) for cell, finding in found if finding["judgement"]["kind"] not in SYMBOLS][::-1]
    if not found:
        return None
    data: list[dict[str, Any]] = []
    one_contrast = len({finding["contrast"] for _, finding in found}) == 1
    for cell, finding in found:
        judged = finding["judgement"]
        name = label(cell["name"] if one_contrast else f"{cell['name']}: {finding['contrast']}")
        colour = WORDS.get(judged["verdict"], "#8a94a6")
        one = {"showlegend": False, "name": "", "mode": "markers"}
        if judged["interval"]:
            data.append({**one, **bar(judged["interval"], name, colour)})
        values = short(np.array(judged["values"], dtype=np.float64))
        ticks = {"color": colour, "size": 6, "symbol": "line-ns-open", "line": {"width": 2}}
        data.append({**one, "x": values, "y": [name] * len(values), "marker": ticks})
        data.append({**one, "x": [judged["mean"]], "y": [name], "marker": {"color": colour, "size": 11}})
    note = "What the verdict rests on: intervals, means, and a tick for each seed; the band is the margin."
    margin = found[0][1]["judgement"]["margin"]
    title = found[0][1]["contrast"] if one_contrast else "Contrasts of the claim"
    return Figure("pairs", title, note, data, interval_layout(len(found), margin, "nats"), wide=True)
