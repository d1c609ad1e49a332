"""The same comparison for terminals, comments, papers and programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Sequence

from modernllm.claims.verdict import strict
from modernllm.report.page.comparison import Comparison
from modernllm.report.page.tables import arm_cells


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


def markdown(comparison: Comparison) -> str:
    first, *more = comparison.answers
    lines = [f"**{_md(first.headline)}**", ""]
    lines += [f"* {_md(sentence)}" for answer in (first, *more) for sentence in answer.sentences[answer is first :]]
    head, *body = rows(comparison)
    numbers = ["--:" if number not in (0, len(head) - 1) else "---" for number in range(len(head))]
    lines += ["", *(f"| {' | '.join(map(_md, row))} |" for row in (head, numbers, *body)), ""]
    mind = [*comparison.problems, *comparison.ways_out]
    lines += [_md(comparison.count.line), *(f"* {_md(sentence)}" for sentence in mind)]
    return "\n".join(lines) + "\n"


def _md(text: str) -> str:
    """Neither a column nor markup of a comment."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def comma_separated(comparison: Comparison) -> str:
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


def as_json(comparison: Comparison) -> str:
    """Strict JSON: answers, arms, pairs, confounders, counts and problems."""
    count = comparison.count
    content = {
        "schema": "modernllm.comparison/1",
        "title": comparison.title,
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


def latex(comparison: Comparison) -> str:
    """A table of booktabs."""
    head, *body = rows(comparison)
    lines = [r"\begin{tabular}{l" + "r" * (len(head) - 2) + "l}", r"\toprule", _tex(head), r"\midrule"]
    return "\n".join([*lines, *map(_tex, body), r"\bottomrule", r"\end{tabular}"]) + "\n"


ESCAPED = {character: f"\\{character}" for character in "&%$#_{}"}
ESCAPED |= {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "±": r"$\pm$", "–": "--"}
ESCAPED |= {"<": r"\textless{}", ">": r"\textgreater{}"}


def _tex(row: Sequence[str]) -> str:
    return " & ".join("".join(ESCAPED.get(character, character) for character in cell) for cell in row) + r" \\"


FORMATS: dict[str, Callable[[Comparison], str]] = {
    "md": markdown,
    "csv": comma_separated,
    "json": as_json,
    "latex": latex,
}
