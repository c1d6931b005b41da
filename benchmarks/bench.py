"""Contests of `launch.bench`: which, in what order, and the report of their figures."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from benchmarks.catalog import BENCHMARKS, OF_ANY_SIZE, PART_OF
from benchmarks.timing.contest import Contest, adopt_orphans, run_contest
from benchmarks.timing.limits import machine_limits
from benchmarks.timing.patience import Patience
from benchmarks.timing.record import as_line, environment
from jaxfed.errors import UsageError
from jaxfed.experiment.run.environment import processor
from jaxfed.host import storage
from jaxfed.host.interruption import Interrupted
from jaxfed.host.parallel.devices import one_device_a_core

LEAST_POINTS = 100  # several of each class, and more than a point's neighbors


def run(
    kernels: Sequence[str],
    points: Sequence[str],
    out: Path | None,
    *,
    with_peers: bool,
    max_points: int,
    patience: float,
) -> int:
    """Run contests one after another; print each, and write all so far; return the exit status.

    A signal leaves the contests that have ended.

    Args:
        kernels: names of benchmarks; default all.
        points: numbers of points in place of the benchmarks' own.
        out: file of all figures.
        with_peers: measure peers.
        max_points: leave out contests with more points; 0 = none.
        patience: seconds; a peer that is expected to take longer is left out.

    Raises:
        UsageError: there is no such benchmark, a number of points is too small, or no contest is left.
    """
    sizes = _sizes(points)
    allowed = OF_ANY_SIZE if sizes else BENCHMARKS
    for name in kernels:
        if name not in allowed:
            given = " with --points" if sizes else ""
            raise UsageError(f"--kernel={name}: choose{given} one of {', '.join(allowed)}")
    adopt_orphans()
    one_device_a_core()
    drawn = _contests(without_parts(kernels or allowed), sizes, with_peers, max_points or math.inf)
    first = next(drawn, None)
    if first is None:
        if max_points:
            raise UsageError(f"--max_points={max_points}: no contest has so few")
        raise UsageError(f"--kernel={','.join(kernels)}: has no contest on this machine")
    drawn = chain([first], drawn)
    del first  # its data are freed once it has run
    report: dict[str, Any] = {}
    written = 0
    is_file = out is not None and (
        out.is_file() or not out.exists()
    )  # it can be rewritten; no pipe
    try:
        for report in _reports(drawn, Patience(patience)):
            if out is not None and is_file:
                write(report, out)
                written = len(report["contests"])
    except Interrupted as signal:
        has = f"{out} has the contests that had ended, {written}; " if written else ""
        print(f"jaxfed: stopped by {signal}; {has}the same command begins anew", file=sys.stderr)
        return signal.exit_status
    if out is not None and not is_file:
        out.write_text(_as_text(report))
    return 0


def _sizes(points: Iterable[str]) -> list[int]:
    """Sizes in ascending order, so that a peer's time at fewer points is known first."""
    for text in points:
        if not (text.isascii() and text.isdigit() and int(text) >= LEAST_POINTS):
            raise UsageError(
                f"--points={text}: use integers from {LEAST_POINTS} on, with commas between"
            )
    return sorted({int(text) for text in points})


def without_parts(names: Iterable[str]) -> list[str]:
    """Names without duplicates and without benchmarks that are part of another one."""
    chosen = list(dict.fromkeys(names))
    return [name for name in chosen if PART_OF.get(name) not in chosen]


def _contests(
    names: Iterable[str], sizes: Sequence[int], with_peers: bool, most: float
) -> Iterator[Contest]:
    few = [n for n in sizes if n <= most]
    for name in names:
        if few:
            yield from OF_ANY_SIZE[name](with_peers, few)
        elif not sizes:
            for contest in BENCHMARKS[name](with_peers):
                if contest.case.get("n", 0) <= most:
                    yield contest
                elif name in OF_ANY_SIZE:  # its sizes ascend: the rest need no set-up
                    break


def _reports(drawn: Iterator[Contest], patience: Patience) -> Iterator[dict[str, Any]]:
    """Measure the machine, then the contests; yield all figures so far after each."""
    measured = machine_limits()
    rates = "; ".join(f"{name} {rate:.3g}/s" for name, rate in measured.rates.items())
    print(f"{processor()}; {rates}", flush=True)
    if measured.doubt:
        print(f"warning: {measured.doubt}", flush=True)
    rows: list[dict[str, Any]] = []
    report = {
        "environment": environment(),
        "machine_limits": measured.rates,
        "machine_limits_doubt": measured.doubt,
        "contests": rows,
    }
    for whole in drawn:
        contest, left_out = patience.without_slow_peers(whole)
        row = run_contest(contest, measured.rates)
        row["left_out"] = left_out
        patience.remember(contest, row["median_seconds"])
        rows.append(row)
        print(as_line(row), flush=True)
        yield report


def write(report: dict[str, Any], out: Path) -> None:
    """Write the report so far, in place of what was there."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with storage.whole_file(out.resolve()) as file:
            file.write(_as_text(report))
    except OSError as error:
        raise UsageError(f"--out={out}: {error.strerror}") from error


def _as_text(report: dict[str, Any]) -> str:
    return json.dumps(report, indent=1) + "\n"
