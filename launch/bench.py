"""Kernel, protocol and round microbenchmarks, with peers in the same run.

    python -m launch.bench [--kernel=NAME,...] [--peers] [--points=N,...] [--out=FILE.json]

Prints one line per contest: our time, the share of the machine's limit that it reaches, and for every peer
the ratio of its time to ours (above 1: jaxfed is faster). FILE has all finished contests. On a GPU the same
command measures there. Peers are optional packages: pip install -r requirements-peers.txt.

With --points kernels are measured at these numbers of points; `launch.growth` plots the growth of time. A
peer expected to take more than a minute (--patience) is left out there.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from absl import flags

from benchmarks.catalog import BENCHMARKS, OF_ANY_SIZE, PART_OF
from benchmarks.timing.contest import (
    MIN_ROUNDS,
    PEER_RATES,
    Contest,
    adopt_orphans,
    contest_name,
    processor,
    run_contest,
)
from benchmarks.timing.limits import machine_limits
from benchmarks.timing.patience import Patience
from benchmarks.timing.record import as_line, environment
from jaxfed.errors import UsageError
from jaxfed.host import storage
from jaxfed.host.interruption import Interrupted, Interruption
from jaxfed.host.location import file_to_write
from jaxfed.host.parallel.devices import one_device_a_core

from . import entry

KERNEL = flags.DEFINE_list("kernel", [], f"which, of {', '.join(BENCHMARKS)}; default all")
PEERS = flags.DEFINE_bool("peers", False, "measure the named peers in the same run")
OUT = flags.DEFINE_string("out", None, "write all figures to this JSON file")
ROUNDS = flags.DEFINE_integer("rounds", MIN_ROUNDS, "interleaved rounds", lower_bound=MIN_ROUNDS)
MAX_POINTS = flags.DEFINE_integer(
    "max_points", 0, "leave out contests with more points; 0 = none", lower_bound=0
)
POINTS = flags.DEFINE_list(
    "points",
    [],
    f"numbers of points, in place of its own, of each kernel; only of {', '.join(OF_ANY_SIZE)}",
)
PATIENCE = flags.DEFINE_float(
    "patience",
    60,
    "seconds; a peer that would take longer, by what it took at fewer points, is left out",
    lower_bound=0,
)
RECORD = flags.DEFINE_bool(
    "record_peers",
    False,
    f"write the peers' times to {PEER_RATES.name} as usual for this processor",
)

LEAST_POINTS = 100  # several of each class, and more than a point's neighbors


def main(arguments: list[str], overrides: list[str], interruption: Interruption) -> int:
    """Run the contests one after another; print and write each as it ends."""
    del interruption  # a signal may come at any time: files are written whole
    for argument in (*arguments, *overrides):
        raise UsageError(f"{argument}: no such argument; see --helpshort")
    sizes = _sizes(POINTS.value)
    allowed = OF_ANY_SIZE if sizes else BENCHMARKS
    for name in KERNEL.value:
        if name not in allowed:
            given = " with --points" if sizes else ""
            raise UsageError(f"--kernel={name}: choose{given} one of {', '.join(allowed)}")
    if OUT.value == "":
        raise UsageError("--out=: the name of a file is missing")
    out = None if OUT.value is None else file_to_write(OUT.value, "--out")
    adopt_orphans()
    one_device_a_core()
    report: dict[str, Any] = {"contests": []}
    kept = 0
    try:
        for report in _reports(_contests(_without_parts(KERNEL.value or allowed), sizes)):
            if out is not None and _keeps(out):
                _write(report, out)
                kept = len(report["contests"])
    except Interrupted as signal:
        has = f"{out} has the contests that had ended, {kept}; " if kept else ""
        print(f"jaxfed: stopped by {signal}; {has}the same command begins anew", file=sys.stderr)
        return signal.exit_status
    if not report["contests"]:
        raise UsageError(f"--kernel={','.join(KERNEL.value)}: has no contest on this machine")
    if out is not None and not _keeps(out):
        out.write_text(_as_text(report))
    return 0


def _reports(contests: Iterator[Contest]) -> Iterator[dict[str, Any]]:
    """Measure the machine, then the contests; yield all figures so far after each."""
    if MAX_POINTS.value:  # checked before the work; else each is set up in turn
        first = next(contests, None)
        if first is None:
            raise UsageError(f"--max_points={MAX_POINTS.value}: no contest has so few")
        contests = chain([first], contests)
        del first
    measured = machine_limits()
    limits = measured.rates
    print(
        f"{processor()}; " + "; ".join(f"{name} {rate:.3g}/s" for name, rate in limits.items()),
        flush=True,
    )
    if measured.doubt:
        print(f"warning: {measured.doubt}", flush=True)
    rows: list[dict[str, Any]] = []
    report = {
        "environment": environment(),
        "machine_limits": limits,
        "machine_limits_doubt": measured.doubt,
        "contests": rows,
    }
    patience = Patience(PATIENCE.value)
    for drawn in contests:
        contest, left_out = patience.without_slow_peers(drawn)
        row = run_contest(contest, ROUNDS.value, limits, recording=RECORD.value)
        row["left_out"] = left_out
        patience.remember(contest, row["median_seconds"])
        rows.append(row)
        print(as_line(row), flush=True)
        if RECORD.value:
            record_peers(contest, row)
        yield report


def _keeps(out: Path) -> bool:
    """True for a file, existing or new, which can be rewritten; False for a pipe."""
    return out.is_file() or not out.exists()


def _write(report: dict[str, Any], out: Path) -> None:
    """Write the report so far, in place of what was there."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with storage.whole_file(out.resolve()) as file:
            file.write(_as_text(report))
    except OSError as error:
        raise UsageError(f"--out={out}: {error.strerror}") from error


def _as_text(report: dict[str, Any]) -> str:
    return json.dumps(report, indent=1) + "\n"


def _without_parts(names: Iterable[str]) -> list[str]:
    """Names without duplicates and without benchmarks that are part of another one."""
    chosen = list(dict.fromkeys(names))
    return [name for name in chosen if PART_OF.get(name) not in chosen]


def _contests(names: Iterable[str], sizes: list[int]) -> Iterator[Contest]:
    """Contests of these benchmarks, at their own or the given numbers of points, up to --max_points."""
    most = MAX_POINTS.value or math.inf
    few = [n for n in sizes if n <= most]
    for name in names:
        if few:
            yield from OF_ANY_SIZE[name](PEERS.value, few)
        elif not sizes:
            for contest in BENCHMARKS[name](PEERS.value):
                if contest.case.get("n", 0) <= most:
                    yield contest
                elif name in OF_ANY_SIZE:  # its sizes ascend: the rest need no set-up
                    break


def _sizes(given: list[str]) -> list[int]:
    """Sizes in ascending order, so that a peer's time at fewer points is known first."""
    for text in given:
        if not (text.isascii() and text.isdigit() and int(text) >= LEAST_POINTS):
            raise UsageError(
                f"--points={text}: use integers from {LEAST_POINTS} on, with commas between"
            )
    return sorted({int(text) for text in given})


def record_peers(contest: Any, row: dict[str, Any]) -> None:
    """Record the peers' times as the usual ones on this processor."""
    recorded = json.loads(PEER_RATES.read_text()) if PEER_RATES.exists() else {}
    times = recorded.setdefault(processor(), {})
    for name in contest.peers:
        times[contest_name(name, contest)] = row["median_seconds"][name]
    PEER_RATES.parent.mkdir(exist_ok=True)
    PEER_RATES.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    entry.start(main)
