"""Sections of a report with their tables and pictures, independent of the output format."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from matplotlib.figure import Figure

from jaxfed.reports.tables.tables import Table


class Picture(NamedTuple):
    """A plot: its file name without extension, its caption, and a function that draws it."""

    name: str
    caption: str
    draw: Callable[[], Figure]


@dataclass(frozen=True)
class Section:
    """Part of a report about one experiment.

    `unfinished` are the workdirs without results, `failed` pairs of workdir and reason.
    """

    title: str
    kind: str
    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...]
    unfinished: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
