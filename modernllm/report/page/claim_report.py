"""What stands on top of the page where the runs are those of a claim: its verdict, rule, certificate and power."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from modernllm.claims.claim import Claim
from modernllm.claims.judgement import SYMBOLS
from modernllm.claims.ledger import Ledger
from modernllm.claims.rules import Cost, Equivalence, Exact, Interaction, NonInferiority, Stability, Superiority
from modernllm.claims.study import Study
from modernllm.claims.table import Key
from modernllm.report.page.arms import AXES, NOT_COMPARED, SECTIONS, flat
from modernllm.report.page.curve import short
from modernllm.report.page.figures import OUTCOMES, Figure, bar, interval_layout, label
from modernllm.report.page.markup import Html, joined, table, tag
from modernllm.report.page.reading import Record
from modernllm.runs.directory import read_json, read_rows

FILES = ("verdict.json", "certificate.json", "ledger.jsonl")
RULES = {rule.kind: rule for rule in (Superiority, Equivalence, NonInferiority, Stability, Interaction, Exact, Cost)}
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


def absent(court: Court, records: Sequence[Record]) -> list[str]:
    """Runs that the claim asks for and that are not among `records`, as far as its rates are chosen."""
    if court.claim is None or court.claim.untrained:
        return []
    study = Study(court.claim, toy=court.toy)
    best: dict[tuple[str, str], float] = {}
    seeds = study.evaluation
    for cell in court.verdict.get("cells", []):
        for finding in cell["findings"]:
            seeds = finding["seeds"]
            for arm, choice in finding["choices"].items():
                best[cell["name"], arm] = choice["lr"]
                study.grids[cell["name"]] = list(choice["grid"])
    keys = study.tuning_keys()
    if not court.claim.tuned or best:
        keys += study.evaluation_keys(seeds, best)
    made = {_key(record, court.claim) for record in records}
    configurations = {_leaves(record.config) for record in records}
    return [
        f"{key.cell}, {key.arm}, learning rate {key.lr:g}, seed {key.seed}: no run"
        for key in dict.fromkeys(keys)
        if key not in made and _composed(study, key) not in configurations  # made for another cell
    ]


def _key(record: Record, claim: Claim) -> Key | None:
    origin = record.identity.get("origin") or {}
    if origin.get("cell") not in claim.cells or origin.get("arm") not in claim.arms:
        return None
    return Key(origin["cell"], origin["arm"], record.lr, record.seed)


def _composed(study: Study, key: Key) -> frozenset[tuple[str, str]] | None:
    """None where it cannot be composed here, as with components of one's own."""
    from modernllm.config.build import resolve
    from modernllm.config.compose import compose

    try:
        return _leaves(resolve(compose(study.overrides(key))))
    except ValueError:
        return None


def _leaves(config: Mapping[str, Any]) -> frozenset[tuple[str, str]]:
    """What makes it the run that it is; the vocabulary is the tokenizer's, and known later."""
    leaves = ((key, value) for section in SECTIONS for key, value in flat(section, config[section]))
    apart = NOT_COMPARED - set(AXES)
    kept = {(key, str(value)) for key, value in leaves if key not in apart and key != "model.vocab_size"}
    return frozenset({*kept, ("seed", str(config["seed"]))})


def top(court: Court) -> Iterator[Html]:
    verdict, claim = court.verdict, court.claim
    statement = verdict.get("statement") or (claim.claim if claim else court.name)
    word = verdict.get("verdict", "no verdict yet")
    lines = [tag("p", {"class": f"verdict {word}"}, word), tag("h2", {}, statement)]
    if verdict:
        lines += [tag("p", {}, verdict["reason"]), tag("p", {"class": "note"}, scope_of(verdict))]
        lines += [tag("p", {}, f"Void: {verdict['void']}")] if verdict["void"] else []
    if court.toy:
        lines.append(tag("p", {}, "Toy size: the machinery was exercised; the word says nothing about the claim."))
    tone = {"supported": "clear", "refuted": "clear"}.get(word, "open")
    yield tag("section", {"class": f"card answer {tone}", "id": "verdict"}, joined(lines))
    if verdict:
        yield _heading("Cells", "The conditions that were written down before; those in bold decide.")
        yield cells_table(verdict)
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


def cells_table(verdict: Mapping[str, Any]) -> Html:
    """A row for each contrast of each cell, with its power."""
    rows = []
    for cell in verdict["cells"]:
        for finding in cell["findings"]:
            judged = finding["judgement"]
            numbers = [_form(judged["mean"]), _interval(judged), judged["n"], _form(judged["mde"], sign="")]
            notes = "; ".join([*judged["flags"], *cell["capped"]])
            name = tag("b", {}, cell["name"]) if cell["main"] else cell["name"]
            cells = [name, finding["contrast"], _word(judged["verdict"])]
            body = [tag("td", {}, value) for value in cells] + [tag("td", {"class": "n"}, value) for value in numbers]
            seeds = judged["seeds_needed"]
            body += [tag("td", {"class": "n"}, "–" if seeds is None else seeds), tag("td", {}, notes)]
            rows.append(tag("tr", {}, joined(body)))
    head = ("cell", "contrast", "word", "mean", "interval", "seeds", "detectable at 80 %", "seeds needed", "notes")
    return table("cells", head, rows)


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


def intervals(verdict: Mapping[str, Any]) -> Figure | None:
    """Of every contrast in every cell."""
    found = [(cell, finding) for cell in verdict.get("cells", []) for finding in cell["findings"]]
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
