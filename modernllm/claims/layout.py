"""A verdict as a person reads it: the word and its scope first, then a row a cell, then what the numbers are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import rich.console
from rich.table import Table
from rich.text import Text

from modernllm.claims.analysis import Finding
from modernllm.claims.judgement import SYMBOLS, Judgement
from modernllm.claims.verdict import CellVerdict, Verdict, scope_words

STYLES = {
    "supported": "bold green",
    "refuted": "bold red",
    "inconclusive": "bold yellow",
    "conditional": "bold magenta",
}
EXCESS = "Δ: loss of the variant less loss of the reference, in nats"
READ_AS = {
    "superiority": f"{EXCESS}; below 0 the variant is better",
    "equivalence": f"{EXCESS}; within the margin on both sides they are alike",
    "non_inferiority": f"{EXCESS}; below the margin the variant is no worse",
    "stability": "Δ: learning-rate regret of the reference less that of the variant, in nats; above 0 the variant is "
    "more stable",
    "interaction": "Δ: (off - on) of the needy pair less (off - on) of the robust one, in nats; above 0 as claimed",
    "cost": "ratio: step time of the variant over that of the reference",
    "exact": "value: what was measured; of several, the one farthest from the middle of the interval that is allowed",
}
"""What the number of a kind is, and what its sign means."""


def show(verdict: Verdict, console: rich.console.Console) -> None:
    """Print word, statement and scope, a row for every cell, and how to read the numbers."""
    _say(console, Text.assemble(_word(verdict.verdict), f": {verdict.statement}"))
    _say(console, Text(f"at {verdict.where}"))
    if verdict.void:
        _say(console, Text(f"! void: {verdict.void}", style="bold red"))
    console.print()
    console.print(cell_table(verdict))
    for cell in verdict.cells:
        if cell.capped:
            _say(console, Text(f"! {cell.name} cannot decide: {'; '.join(cell.capped)}"))
    console.print()
    for line in reading(verdict):
        _say(console, Text(line))


def show_all(verdicts: Sequence[Verdict], console: rich.console.Console) -> None:
    """Print a row for every claim of a suite, with the scope that they share said once."""
    common, own = split([verdict.scope for verdict in verdicts])
    table = Table("claim", "verdict", "why", "at", show_edge=False, pad_edge=False)
    for verdict, scope in zip(verdicts, own, strict=True):
        table.add_row(Text(verdict.claim), _word(verdict.verdict), Text(verdict.reason), Text(_pairs(scope)))
    console.print(table)
    if common:
        _say(console, Text(f"all at {scope_words(common)}"))


def cell_table(verdict: Verdict) -> Table:
    """A row a cell, with what its scope has other than the verdict's; under a cell that rests on several contrasts a
    row for each. Empty columns are left out.
    """
    rows = [row for cell in verdict.cells for row in _rows(cell, verdict.scope)]
    headings = ("cell", "verdict", _heading(_judgements(verdict)), "there", "note")
    shown = [place for place in range(len(headings)) if any(row[place] for row in rows)]
    table = Table(show_edge=False, pad_edge=False)
    for place in shown:
        table.add_column(headings[place], no_wrap=place in (1, 2), overflow="fold")
    for row in rows:
        table.add_row(*(row[place] for place in shown))
    return table


def reading(verdict: Verdict) -> Iterator[str]:
    """What was compared, over how many seeds, at what margin; and what the number means."""
    judgements = _judgements(verdict)
    kind = judgements[0].kind
    if kind not in SYMBOLS:
        contrasts = dict.fromkeys(finding.contrast for cell in verdict.cells for finding in cell.found.findings)
        seeds = "|".join(dict.fromkeys(str(judgement.n) for judgement in judgements))
        margin = "|".join(dict.fromkeys(f"{judgement.margin:g}" for judgement in judgements))
        yield f"{', '.join(contrasts)}: {seeds} seeds, margin {margin} nats"
    yield READ_AS[kind]


def split(scopes: Sequence[Mapping[str, str]]) -> tuple[dict[str, str], list[dict[str, str]]]:
    """What all scopes share, and what each has beside it."""
    common = {key: value for key, value in scopes[0].items() if all(scope.get(key) == value for scope in scopes)}
    return common, [{key: value for key, value in scope.items() if key not in common} for scope in scopes]


def _rows(cell: CellVerdict, main: Mapping[str, str]) -> Iterator[tuple[Text, Text, Text, Text, Text]]:
    there = _pairs({key: value for key, value in cell.found.cell.scope.items() if main.get(key) != value})
    name = cell.name if cell.name == "main" or not cell.found.cell.main else f"{cell.name} (main)"
    findings = cell.found.findings
    if len(findings) == 1:
        judgement = findings[0].judgement
        yield Text(name), _word(cell.verdict), Text(judgement.estimate), Text(there), Text(_note(cell, findings[0]))
        return
    yield Text(name), _word(cell.verdict), Text(), Text(there), Text()
    for finding in findings:
        word, estimate = Text(finding.judgement.verdict, style="dim"), Text(finding.judgement.estimate)
        yield Text(f"  {finding.contrast}"), word, estimate, Text(), Text(_note(cell, finding))


def _note(cell: CellVerdict, finding: Finding) -> str:
    """Flags, what would decide, and runs that broke."""
    judgement = finding.judgement
    notes = list(judgement.flags)
    if judgement.verdict == "inconclusive" and cell.seeds_help:
        notes.append(judgement.way_out)
    broke = [f"{arm} {of['failed']} of {of['n']}" for arm, of in finding.outcomes.items() if of["failed"]]
    if broke:
        notes.append(f"broke: {', '.join(broke)}")
    return "; ".join(notes)


def _heading(judgements: Sequence[Judgement]) -> str:
    symbol = SYMBOLS.get(judgements[0].kind, "Δ")
    levels = dict.fromkeys(f"{100 * judgement.level:.4g}" for judgement in judgements if judgement.interval)
    return f"{symbol} [{'|'.join(levels)} % interval]" if levels else symbol


def _judgements(verdict: Verdict) -> list[Judgement]:
    return [finding.judgement for cell in verdict.cells for finding in cell.found.findings]


def _pairs(scope: Mapping[str, str]) -> str:
    return " ".join(f"{key}={value}" for key, value in scope.items())


def _word(word: str) -> Text:
    return Text(word, style=STYLES[word])


def _say(console: rich.console.Console, text: Text) -> None:
    console.print(text, soft_wrap=True)
