"""All that a page says, before it is a page: the same for HTML, tables and JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from modernllm.report.page.answer import Answer, answers, by_bits
from modernllm.report.page.arms import Arm, arms
from modernllm.report.page.confounders import Confounder, confounders
from modernllm.report.page.ranking import Pair, Ranking, Standing, rankings
from modernllm.report.page.reading import Record, Unreadable, found_at, read
from modernllm.report.page.tables import Count, problems


@dataclass(frozen=True)
class Comparison:
    title: str
    arms: tuple[Arm, ...]
    """The best first within a yardstick."""
    rankings: tuple[Ranking, ...]
    unreadable: tuple[Unreadable, ...]
    absent: tuple[str, ...] = ()
    """Runs that a claim's file asks for and that are not there."""

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
        return [record for arm in self.arms for record in arm.records]

    @cached_property
    def count(self) -> Count:
        return Count.of(self.arms, self.unreadable, len(self.absent))

    @cached_property
    def problems(self) -> list[str]:
        return [*problems(self.arms, self.unreadable), *self.absent]

    @cached_property
    def confounders(self) -> list[Confounder]:
        return confounders(self.arms)

    @cached_property
    def rows(self) -> list[tuple[Arm, Standing | None]]:
        """Every arm with its standing, where it has one."""
        by_arm = {standing.arm.label: standing for standing in self.standings}
        return [(arm, by_arm.get(arm.label)) for arm in self.arms]


def compare(words: Sequence[str], by: Sequence[str] = (), out: Path = Path("runs")) -> Comparison:
    """Of studies, run folders and globs. FileNotFoundError names what leads nowhere, ValueError an unknown key."""
    entries, strangers = found_at(words, out)
    records, unreadable = read(entries)
    found = arms(records, by)
    ranked = rankings(found)
    order = [each.arm for ranking in ranked for each in ranking.standings]
    order += [arm for ranking in ranked for arm, _ in ranking.unranked]
    title = ", ".join(dict.fromkeys(Path(word).name or word for word in words))
    return Comparison(title, tuple(order), tuple(ranked), (*strangers, *unreadable))
