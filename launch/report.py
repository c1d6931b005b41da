"""Make tables, plots and one HTML page of the results of launch.run and launch.sweep.

python -m launch.report WORKDIR... [--out=DIR] [--format=pdf,svg]

A WORKDIR is that of a run or of a sweep, or a folder with such workdirs at any depth. DIR (`report` in the
first WORKDIR if not given) gets report.html, report.md, tables/*.csv and *.tex, and plots/*.png.
--format=pdf,svg writes each plot in these formats as well.
"""

from __future__ import annotations

from absl import flags

from jaxfed.errors import UsageError
from jaxfed.host.interruption import Interruption

from . import entry

_OUT = entry.out_flag("Where the report goes; WORKDIR/report if not given.")
_FORMAT = flags.DEFINE_list(
    "format", [], "Formats of plots beside PNG: pdf, svg; tables/ has each table as CSV and LaTeX."
)


def main(arguments: list[str], overrides: list[str], interruption: Interruption) -> int:
    """Write the report and print where it is."""
    if overrides:
        raise UsageError(f"--config.{overrides[0]}: a report has no config; give workdirs only")

    # Imported late, so that --helpshort and a mistyped flag are answered at once.
    from jaxfed.audit.report import parts_of
    from jaxfed.reports.report import write_report

    if unknown := {*_FORMAT.value} - {"pdf", "svg"}:
        raise UsageError(f"--format={min(unknown)}: no such format; use pdf, svg, or both")
    page = write_report(arguments, _OUT.value, added=parts_of, formats=_FORMAT.value)
    print(f"report is in {page}")
    return 0


if __name__ == "__main__":
    entry.start(main)
