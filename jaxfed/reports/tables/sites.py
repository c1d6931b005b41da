"""Table of the sites of a run over a network."""

from __future__ import annotations

from jaxfed.experiment.store.records import Run
from jaxfed.reports.tables.tables import Cell, Table


def table_of(run: Run, name: str) -> Table | None:
    """Return the sites of a run over a network, one a row; None for a simulation."""
    sites = (run.summary or {}).get("sites", ())
    if not sites:
        return None
    columns = tuple(dict.fromkeys(key for site in sites for key in site))
    return Table(
        name=name,
        title=f"{run.name}: sites",
        columns=tuple(column.replace("_", " ") for column in columns),
        rows=tuple(tuple(Cell(str(site.get(column, ""))) for column in columns) for site in sites),
        num_settings=1,
        caption="The means of a round do not count sites that left it. The last reason is that of the last "
        "round that the site left.",
        records=tuple(sites),
    )
