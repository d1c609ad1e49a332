"""The same comparison for terminals, comments, papers and programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence

from modernllm.claims.verdict import strict
from modernllm.report.page.claim_report import CELLS, TOY, Court, cell_rows, scope_of
from modernllm.report.page.comparison import Comparison
from modernllm.report.page.tables import arm_cells

BESIDE = "Beside the verdict, of the runs by themselves:"
"""What nobody wrote down before decides nothing."""


def rows(comparison: Comparison) -> list[list[str]]:
    """The table of arms, its headings first; where there are several rankings, each arm with the one that it is in."""
    several = len(comparison.rankings) > 1
    head, body = ["outcomes"], []
    for name, ranking in comparison.groups:
        for arm, standing in ranking.rows:
            cells = arm_cells(arm, standing, comparison.by_bits)
            ended = " ".join(f"{number} {word}" for word, number in arm.outcomes.most_common())
            head = [*cells, *["ranked among"] * several, "outcomes"]
            body.append([*(str(cell.shown) for cell in cells.values()), *[name] * several, ended])
    return [head, *body]


def words(comparison: Comparison) -> list[str]:
    """The answer, and what does not count."""
    told = [sentence for answer in comparison.answers for sentence in answer.sentences]
    return [*told, comparison.count.line, *comparison.problems, *comparison.ways_out]


def markdown(comparison: Comparison, court: Court | None = None) -> str:
    first, *more = comparison.answers
    lines = [*_verdict(court), f"{BESIDE} {escaped(first.headline)}"] if court else [f"**{escaped(first.headline)}**"]
    lines += ["", *(f"* {escaped(told)}" for answer in (first, *more) for told in answer.sentences[answer is first :])]
    lines += ["", *_table(rows(comparison)), ""]
    mind = [*comparison.problems, *comparison.ways_out]
    lines += [escaped(comparison.count.line), *(f"* {escaped(sentence)}" for sentence in mind)]
    return "\n".join(lines) + "\n"


def _verdict(court: Court) -> Iterator[str]:
    """The word, what it rests on, and every condition."""
    yield f"**{escaped(f'{court.word}: {court.statement}')}**"
    if not court.verdict:
        return
    void = court.verdict["void"]
    told = [f"Void: {void}" if void else court.verdict["reason"], scope_of(court.verdict)]
    for sentence in [*told, *[TOY] * (court.toy and not void)]:
        yield from ("", escaped(sentence))
    yield from ("", *_table([list(CELLS), *cell_rows(court)]), "")


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Its first row are the headings; the first and the last column are words."""
    head, *body = rows
    rule = ["--:" if number not in (0, len(head) - 1) else "---" for number in range(len(head))]
    yield from (f"| {' | '.join(map(escaped, row))} |" for row in (head, rule, *body))


def escaped(text: str) -> str:
    """Neither a column nor markup of a comment."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def comma_separated(comparison: Comparison, court: Court | None = None) -> str:
    """A row for every run, usable or not."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(
        ["run", "arm", "lr", "seed", "outcome", "val_loss", "val_bits_per_byte", "clipped", "skipped", "problem"]
    )
    for arm in comparison.arms:
        for r in arm.records:
            writer.writerow(
                [r.path.name, arm.label, r.lr, r.seed, r.word, r.loss, r.bits, r.clipped, r.skipped, r.problem]
            )
    for each in comparison.unreadable:
        writer.writerow([each.path.name, *[""] * 8, each.reason])
    return file.getvalue()


def as_json(comparison: Comparison, court: Court | None = None) -> str:
    """Strict JSON: answers, arms, pairs, confounders, counts and problems; `verdict` is that of the claim, or null."""
    count = comparison.count
    content = {
        "schema": "modernllm.comparison/1",
        "title": comparison.title,
        "verdict": court.verdict or None if court else None,
        "answers": [
            {"headline": a.headline, "tone": a.tone, "sure": a.sure, "why": a.why, "mind": a.mind}
            for a in comparison.answers
        ],
        "arms": [
            {
                "arm": arm.label,
                "planned": arm.planned,
                "usable": len(arm.usable),
                "outcomes": dict(arm.outcomes),
                "lr": standing.choice.lr if standing else None,
                "mean": standing.mean if standing else None,
                "sd": standing.spread if standing else None,
                "losses": {str(seed): loss for seed, loss in standing.losses.items()} if standing else {},
            }
            for arm, standing in comparison.rows
        ],
        "pairs": [
            {"better": pair.better.arm.label, "worse": pair.worse.arm.label, "judgement": pair.judgement.to_json()}
            for pair in comparison.pairs
        ],
        "confounders": [
            {"name": each.name, "values": each.values, "suspect": each.suspect} for each in comparison.confounders
        ],
        "runs": {
            "planned": count.planned,
            "missing": count.missing,
            "usable": count.usable,
            "unusable": count.unusable,
            "unreadable": count.unreadable,
        },
        "problems": comparison.problems,
    }
    return json.dumps(strict(content), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def latex(comparison: Comparison, court: Court | None = None) -> str:
    """Tables of booktabs: of a claim first its conditions, then the arms."""
    tables = [[list(CELLS), *cell_rows(court)]] if court and court.verdict else []
    return "\n".join(_tabular(table) for table in [*tables, rows(comparison)])


def _tabular(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = [r"\begin{tabular}{l" + "r" * (len(head) - 2) + "l}", r"\toprule", _tex(head), r"\midrule"]
    return "\n".join([*lines, *map(_tex, body), r"\bottomrule", r"\end{tabular}"]) + "\n"


ESCAPED = {character: f"\\{character}" for character in "&%$#_{}"}
ESCAPED |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--"}
ESCAPED |= {"<": r"\textless{}", ">": r"\textgreater{}"}


def _tex(row: Sequence[str]) -> str:
    return " & ".join("".join(ESCAPED.get(character, character) for character in cell) for cell in row) + r" \\"


FORMATS: dict[str, Callable[..., str]] = {
    "md": markdown,
    "csv": comma_separated,
    "json": as_json,
    "latex": latex,
}
