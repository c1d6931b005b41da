"""Results in a notebook: a table as HTML, the pictures of a run, and a stop without a traceback."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from pathlib import Path

from jaxfed.errors import UsageError
from jaxfed.experiment.store.records import Run


class Stopped(KeyboardInterrupt):
    """A run that Ctrl-C, or a notebook's stop, has ended; its text says how to go on.

    A notebook shows the text alone.
    """

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class Plots(tuple[Path, ...]):
    """Paths of pictures (PNG); a notebook shows the pictures."""

    __slots__ = ()

    def __repr__(self) -> str:
        """One path a line."""
        return "\n".join(map(str, self))

    def _repr_html_(self) -> str:
        return "\n".join(map(_figure, self))


def _figure(picture: Path) -> str:
    content = b64encode(picture.read_bytes()).decode()
    name = escape(picture.stem)
    return f'<img alt="{name}" title="{name}" src="data:image/png;base64,{content}">'


def plots_of(run: Run, folder: Path) -> Plots:
    """Return the pictures in the folder; if there are none, draw them.

    Raises:
        UsageError: the run has data for no picture, or none can be drawn.
    """
    if not any(folder.glob("*.png")):
        from jaxfed.reports.figures.plots import draw_plots

        draw_plots(run, folder)
    pictures = Plots(sorted(folder.glob("*.png")))
    if not pictures:
        raise UsageError(f"plot: {folder} has no pictures, and none could be drawn")
    return pictures


def html_table(headings: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """Return a table and lines below it as HTML; all texts are escaped."""
    lines = ["<table>", _row("th", headings), *(_row("td", row) for row in rows), "</table>"]
    return "\n".join([*lines, *(f"<p>{escape(note)}</p>" for note in notes)])


def _row(tag: str, cells: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
