"""Plot run time against the number of points: ours, peers', and the machine's limit.

python -m launch.growth FILE.json... [--out=DIR]

A FILE was written by launch.bench --points=N,... --out=FILE or by launch.accelerator. All files must be from
one machine; if several measured the same task and size, the last one counts. DIR (`growth` beside the first
file if not given) gets a figure for each task, on logarithmic axes, and growth.csv.
"""

from __future__ import annotations

from jaxfed.errors import UsageError
from jaxfed.host.interruption import Interruption
from jaxfed.host.location import folder_to_write, location

from . import entry

_OUT = entry.out_flag("Where figures go; `growth` beside the first FILE if not given.")


def main(arguments: list[str], overrides: list[str], interruption: Interruption) -> None:
    """Draw the figures and print their paths."""
    del interruption  # nothing is saved that a signal could spoil
    if overrides:
        raise UsageError(f"--config.{overrides[0]}: figures have no config; give files only")
    if not arguments:
        raise UsageError("give one FILE.json of launch.bench or more")
    files = [location(text, "FILE") for text in arguments]
    folder = folder_to_write(_OUT.value, "--out") if _OUT.value else files[0].parent / "growth"

    # Imported late, so that --helpshort and a mistyped flag are answered at once.
    from benchmarks.growth.document import write_growth

    for path in write_growth(files, folder):
        print(path)


if __name__ == "__main__":
    entry.start(main)
