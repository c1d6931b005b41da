"""Installed commands: `jaxfed-run` is `python -m launch.run`, and so on, from any folder.

    jaxfed-run --config=xclp_digits:smoke --workdir=runs/first

All commands call `main`, which finds the entry by the command's name. A wheel has this folder as
`jaxfed.launch`. It has no benchmarks: commands that measure are refused.
"""

import runpy
import sys
from pathlib import Path

_MEASURING = ("bench", "growth", "accelerator")


def main() -> None:
    """Run the entry that the command is named after."""
    entry = Path(sys.argv[0]).stem.removeprefix("jaxfed-")
    if entry in _MEASURING:
        print(
            f"jaxfed: jaxfed-{entry} needs the repository, which has the benchmarks: in a checkout of it run "
            f"python -m launch.{entry}",
            file=sys.stderr,
        )
        sys.exit(2)
    runpy.run_module(f"{__package__}.{entry}", run_name="__main__", alter_sys=True)
