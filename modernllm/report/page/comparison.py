"""All that a page says, before it is a page: the same for HTML, tables and JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from modernllm.report.page.answer import Answer, answers, by_bits
from modernllm.report.page.arms import Arm, arms
from modernllm.report.page.confounders import Confounder, confounders
from modernllm.report.page.ranking import Pair, Ranking, Standing, names, rankings
from modernllm.report.page.reading import Record, Unreadable, found_at, read
from modernllm.report.page.tables import Count, problems
from modernllm.runs.plans import Intent


@dataclass(frozen=True)
class Comparison:
    title: str
    arms: tuple[Arm, ...]
    """The best first within a yardstick."""
    rankings: tuple[Ranking, ...]
    unreadable: tuple[Unreadable, ...]
    ways_out: tuple[str, ...] = ()
    """What makes the runs that are missing."""

    @cached_property
    def answers(self) -> list[Answer]:
        return answers(self.rankings)

    @cached_property
    def standings(self) -> list[Standing]:
        return [standing for ranking in self.rankings for standing in ranking.standings]

    @cached_property
    def pairs(self) -> list[Pair]:
        return [pair for ranking in self.rankings for pair in ranking.pairs]

    @cached_property
    def by_bits(self) -> bool:
        return by_bits([ranking.yardstick for ranking in self.rankings])

    @cached_property
    def records(self) -> list[Record]:
        return [record for arm in self.arms for record in arm.records if not record.lent]

    @cached_property
    def count(self) -> Count:
        return Count.of(self.arms, self.unreadable)

    @cached_property
    def problems(self) -> list[str]:
        return problems(self.arms, self.unreadable)

    @cached_property
    def confounders(self) -> list[Confounder]:
        return confounders(self.arms)

    @cached_property
    def groups(self) -> list[tuple[str, Ranking]]:
        """What is ranked together, with what sets it apart from the others."""
        return list(zip(names(self.rankings), self.rankings, strict=True))

    @cached_property
    def rows(self) -> list[tuple[Arm, Standing | None]]:
        """Every arm with its standing, where it has one."""
        return [row for ranking in self.rankings for row in ranking.rows]


def compare(words: Sequence[str], by: Sequence[str] = (), out: Path = Path("runs")) -> Comparison:
    """Of studies, run folders and globs. FileNotFoundError names what leads nowhere, ValueError an unknown key."""
    found = found_at(words, out)
    records, unreadable = read(found)
    title = ", ".join(dict.fromkeys(Path(word).name or word for word in words))
    made = arms(records, by, planned=bool(found.intents))
    return comparison(title, made, unreadable, list(sweeps_again(found.intents, records)))


def comparison(
    title: str, arms: Sequence[Arm], unreadable: Sequence[Unreadable], ways_out: Sequence[str]
) -> Comparison:
    """Arms under one yardstick stay together, in the order in which the first of them comes."""
    ranked = rankings(arms)
    order = [arm for ranking in ranked for arm in ranking.arms]
    return Comparison(title, tuple(order), tuple(ranked), tuple(unreadable), tuple(ways_out))


def sweeps_again(intents: Sequence[Intent], records: Sequence[Record]) -> Iterator[str]:
    """The command of each sweep that has runs to make, or to go on with."""
    undone = {record.path for record in records if record.missing or record.word == "interrupted"}
    for intent in intents:
        number = sum(intent.study / run.run_id in undone for run in intent.runs)
        if number:
            command = shlex.join(["python", "train.py", "-m", *intent.command])
            yield f"{command} makes {number} of them, or goes on with them; to forget that plan delete {intent.path}."
