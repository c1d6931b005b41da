"""Kernel, protocol and round microbenchmarks, with peers in the same run.

    python -m launch.bench [--kernel=NAME,...] [--peers] [--points=N,...] [--out=FILE.json]

It prints one line for each contest: our time, the share of the machine's limit that it reaches, and for every
peer the ratio of its time to ours (above 1: jaxfed is faster). FILE has all finished contests. On a machine
with a GPU the same command measures the GPU. Peers are optional packages:
pip install -r requirements-peers.txt.

With --points kernels are measured at these numbers of points; `launch.growth` plots the growth of time. A
peer that is expected to take more than a minute (--patience) is left out.
"""

from __future__ import annotations

from absl import flags

from benchmarks import bench
from benchmarks.catalog import BENCHMARKS, OF_ANY_SIZE
from jaxfed.errors import UsageError
from jaxfed.host.interruption import Interruption
from jaxfed.host.location import file_to_write

from . import entry

_KERNEL = flags.DEFINE_list("kernel", [], f"which, of {', '.join(BENCHMARKS)}; default all")
_PEERS = flags.DEFINE_bool("peers", False, "measure the named peers in the same run")
_OUT = entry.out_flag("write all figures to this JSON file")
_MAX_POINTS = flags.DEFINE_integer(
    "max_points", 0, "leave out contests with more points; 0 = none", lower_bound=0
)
_POINTS = flags.DEFINE_list(
    "points",
    [],
    f"numbers of points, in place of its own, of each kernel; only of {', '.join(OF_ANY_SIZE)}",
)
_PATIENCE = flags.DEFINE_float(
    "patience",
    60,
    "seconds; a peer that would take longer, by what it took at fewer points, is left out",
    lower_bound=0,
)


def main(arguments: list[str], overrides: list[str], interruption: Interruption) -> int:
    """Run the contests one after another; print and write each as it ends."""
    del interruption  # a signal may come at any time: files are written whole
    entry.refuse([*arguments, *overrides])
    if _OUT.value == "":
        raise UsageError("--out=: the name of a file is missing")
    return bench.run(
        _KERNEL.value,
        _POINTS.value,
        None if _OUT.value is None else file_to_write(_OUT.value, "--out"),
        with_peers=_PEERS.value,
        max_points=_MAX_POINTS.value,
        patience=_PATIENCE.value,
    )


if __name__ == "__main__":
    entry.start(main)
