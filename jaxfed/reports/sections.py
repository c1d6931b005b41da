"""What a report is made of, whatever it is written as: sections with their tables and pictures."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from matplotlib.figure import Figure

from jaxfed.reports.style import Theme
from jaxfed.reports.tables import Table


class Picture(NamedTuple):
    """A plot by its file name (without ending), drawn for a theme when it is needed."""

    name: str
    caption: str
    draw: Callable[[Theme], Figure]


@dataclass(frozen=True)
class Section:
    """One experiment of a report. `unfinished` names what has no results yet, `failed` says why."""

    title: str
    kind: str
    tables: tuple[Table, ...]
    pictures: tuple[Picture, ...]
    unfinished: tuple[str, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
