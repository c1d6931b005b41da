"""The installed commands: `jaxfed-run` is `python -m launch.run`, and so on, from any folder."""

import runpy


def run() -> None:
    """Run one experiment."""
    _start("launch.run")


def sweep() -> None:
    """Run every point of a config's sweep."""
    _start("launch.sweep")


def report() -> None:
    """Make tables, plots and one page of results."""
    _start("launch.report")


def audit() -> None:
    """Run one experiment and infer membership from what its methods send."""
    _start("launch.audit")


def bench() -> None:
    """Measure kernels, protocols and rounds beside their peers."""
    _start("launch.bench")


def growth() -> None:
    """Draw how time grows with the number of points."""
    _start("launch.growth")


def costs() -> None:
    """Count what a round of each method costs a client."""
    _start("launch.costs")


def bounds() -> None:
    """Draw FedCT's bounds on convergence and sensitivity."""
    _start("launch.bounds")


def accelerator() -> None:
    """Measure everything on an accelerator, piece by piece."""
    _start("launch.accelerator")


def _start(module: str) -> None:
    runpy.run_module(module, run_name="__main__", alter_sys=True)
