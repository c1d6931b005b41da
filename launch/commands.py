"""Installed commands: `jaxfed-run` is `python -m launch.run`, and so on, from any folder.

A wheel has this folder as `jaxfed.launch`. It has no benchmarks: commands that measure are refused.
"""

import runpy
import sys
from pathlib import Path

_MEASURING = ("bench", "growth", "accelerator")


<<<<<<< HEAD
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
=======
def run() -> None:
    """Run one experiment."""
    _start("run")


def sweep() -> None:
    """Run every point of a config's sweep."""
    _start("sweep")


def report() -> None:
    """Make tables, plots and one page of results."""
    _start("report")


def audit() -> None:
    """Run one experiment and infer membership from what its methods send."""
    _start("audit")


def costs() -> None:
    """Count what a round of each method costs a client."""
    _start("costs")


def bounds() -> None:
    """Draw FedCT's bounds on convergence and sensitivity."""
    _start("bounds")


def flower() -> None:
    """Try, serve or join a federation of real clients, by Flower."""
    _start("flower")


def bench() -> None:
    """Refuse to measure kernels, protocols and rounds."""
    _refuse("bench")


def growth() -> None:
    """Refuse to draw how time grows with the number of points."""
    _refuse("growth")


def accelerator() -> None:
    """Refuse to measure an accelerator."""
    _refuse("accelerator")


def _start(entry: str) -> None:
>>>>>>> sites
    runpy.run_module(f"{__package__}.{entry}", run_name="__main__", alter_sys=True)
