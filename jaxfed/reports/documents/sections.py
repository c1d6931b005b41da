"""Sections of a report with their tables and pictures, independent of the output format."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from matplotlib.figure import Figure

from jaxfed.reports.tables.tables import Table

Facts = tuple[tuple[str, str], ...]
HOW = "How it was made"


class Picture(NamedTuple):
    """A plot: its file name without extension, its caption, and a function that draws it."""

    name: str
    caption: str
    draw: Callable[[], Figure]


@dataclass(frozen=True)
class Section:
    """Part of a report about one experiment.

    Attributes:
        title: heading.
        parts: tables and pictures as they are read: each result before its picture.
        unfinished: the workdirs without results.
        failed: pairs of workdir and reason.
        origin: pairs of name and text: command, config, data, seeds, commit, device.
    """

    title: str
    parts: tuple[Table | Picture, ...]
    unfinished: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
    origin: Facts = ()

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables among the parts."""
        return tuple(part for part in self.parts if isinstance(part, Table))

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """The pictures among the parts."""
        return tuple(part for part in self.parts if isinstance(part, Picture))


def origins(sections: Sequence[Section]) -> list[tuple[str, Facts]]:
    """Return title and provenance of each section; first, without a title, what all have in common."""
    told = [section for section in sections if section.origin]
    common = (
        [fact for fact in told[0].origin if all(fact in s.origin for s in told)] if told else []
    )
    rest = [(s.title, tuple(fact for fact in s.origin if fact not in common)) for s in told]
    return [(title, facts) for title, facts in (("", tuple(common)), *rest) if facts]
