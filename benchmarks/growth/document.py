"""Growth of run time with n, from launch.bench's files: figures and a table.

    TASK.png      seconds against n on logarithmic axes, ours and each peer's; dashed, the machine's limit
                  (`growth_figure`)
    growth.csv    the same numbers: task, case, n; contestant; seconds (the median of all rounds), fastest,
                  slowest; limit_seconds; scaled_from_part, the share of the task that a peer solved; doubt,
                  the reason why a peer's ratio is unreliable; left_out_seconds, expected for an omitted peer

Each case of a task, such as C = 10, has a figure if it was measured at two or more values of n. The limit is
the work of the task, as its contest counts it, over the best rate measured in the files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.growth.figure import Growth, Limit, Timing, growth_figure
from jaxfed.errors import UsageError
from jaxfed.host import storage
from jaxfed.host.safe_files import content_of, json_object
from jaxfed.host.storage import write_csv
from jaxfed.reports.style import write

OURS = "jaxfed"
_COLUMNS = (
    *("task", "case", "n", "contestant", "seconds", "fastest", "slowest", "limit_seconds"),
    *("scaled_from_part", "doubt", "left_out_seconds"),
)
# Keys of a row: the unit of its limit, the measured rate, and the share of the limit.
_RATES = (
    ("operation", "operations_per_second", "share_of_machine_limit"),
    ("", "bytes_per_second", "share_of_machine_bandwidth"),
)


class _Work(NamedTuple):
    """Amount of a resource that a task needs at n points, and the machine's rate per second."""

    resource: str
    n: int
    amount: float
    rate: float


def write_growth(files: Sequence[Path], folder: Path) -> list[Path]:
    """Draw the tasks of some files into `folder`; return the figures' paths.

    Args:
        files: of launch.bench or launch.accelerator, from one machine; if several measured a task at the same
            n, the last one counts.
        folder: created if it is missing.

    Raises:
        UsageError: a file is not from these commands, the files are from several machines, no task has
            several n, or the folder cannot be written.
    """
    growths, figures = read_growths(files), []
    try:
        for growth in growths:
            path = folder / f"{_file_name(growth, growths)}.png"
            with storage.naming(path):
                figures.append(write(growth_figure(growth), path))
        path = folder / "growth.csv"
        with storage.naming(path):
            write_csv(path, _COLUMNS, _table(growths))
    except OSError as error:
        raise UsageError(f"--out={folder}: {error.filename}: {error.strerror}") from error
    return figures


def read_growths(files: Sequence[Path]) -> list[Growth]:
    """Return the tasks measured at two or more values of n, in order of their first appearance.

    Raises:
        UsageError: as `write_growth`.
    """
    rows: dict[tuple[str, str], dict[int, dict[str, Any]]] = {}
    devices: dict[str, Path] = {}
    for file in files:
        content = json_object(content_of(file), file)
        try:
            devices.setdefault(content["environment"]["device"], file)
            for row in content["contests"]:
                if "error" not in row and isinstance(row["case"].get("n"), int):
                    rows.setdefault(_group(row), {})[row["case"]["n"]] = row
        except (KeyError, TypeError, AttributeError) as error:
            raise _not_ours(file, error) from None
    if len(devices) > 1:
        (one, first), (other, second) = list(devices.items())[:2]
        raise UsageError(f"{first} is of {one}, {second} of {other}: give files of one machine")
    grown = {group: by_n for group, by_n in rows.items() if len(by_n) > 1}
    if not grown:
        names = ", ".join(map(str, files))
        raise UsageError(
            f"{names}: no task at several numbers of points; launch.bench --points=1000,10000 has them"
        )
    try:
        return [_growth(*group, by_n) for group, by_n in grown.items()]
    except (KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError) as error:
        raise _not_ours(files[0], error) from None


def _not_ours(file: Path, error: Exception) -> UsageError:
    why = f"has no {error}" if isinstance(error, KeyError) else repr(error)
    return UsageError(f"{file} was not written by launch.bench: {why}")


def _group(row: dict[str, Any]) -> tuple[str, str]:
    """Return task and case of a row, without n."""
    case = {key: value for key, value in row["case"].items() if key != "n"}
    return row["task"], ", ".join(f"{key}={value}" for key, value in case.items())


def _growth(task: str, case: str, by_n: dict[int, dict[str, Any]]) -> Growth:
    rows = [by_n[n] for n in sorted(by_n)]
    contestants = dict.fromkeys(name for row in rows for name in row["seconds"])
    return Growth(
        task=task,
        case=case,
        timings={
            name: [_timing(row, name) for row in rows if name in row["seconds"]]
            for name in contestants
        },
        limits=_limits([work for row in rows for work in _work(row)]),
        left_out={
            name: [
                (row["case"]["n"], float(row["left_out"][name]))
                for row in rows
                if name in row.get("left_out", {})
            ]
            for name in contestants
        },
    )


def _timing(row: dict[str, Any], name: str) -> Timing:
    seconds, peer = row["seconds"][name], row["peers"].get(name, {})
    return Timing(
        n=row["case"]["n"],
        seconds=float(row["median_seconds"][name]),
        fastest=float(min(seconds)),
        slowest=float(max(seconds)),
        part=peer.get("scaled_from_part"),
        doubt=peer.get("unreliable"),
    )


def _work(row: dict[str, Any]) -> Iterator[_Work]:
    for kind, own_rate, share in _RATES:
        if row.get(share):
            rate = row[own_rate]
            amount = rate * row["median_seconds"][OURS]
            yield _Work(row[kind] if kind else "bytes", row["case"]["n"], amount, rate / row[share])


def _limits(work: Iterable[_Work]) -> list[Limit]:
    by_resource: dict[str, list[_Work]] = {}
    for each in work:
        by_resource.setdefault(each.resource, []).append(each)
    limits = []
    for resource, needed in by_resource.items():
        rate = max(each.rate for each in needed)
        limits.append(Limit(resource, rate, [(each.n, each.amount / rate) for each in needed]))
    return limits


def _file_name(growth: Growth, among: Sequence[Growth]) -> str:
    alone = sum(other.task == growth.task for other in among) == 1
    name = growth.task if alone else f"{growth.task} {growth.case}"
    return re.sub(r"[^a-z0-9.]+", "_", name.lower()).strip("_")


def _table(growths: Iterable[Growth]) -> Iterator[dict[str, Any]]:
    for growth in growths:
        where = {"task": growth.task, "case": growth.case}
        limit: dict[int, float] = {}
        for _, _, times in growth.limits:
            for n, seconds in times:
                limit[n] = max(seconds, limit.get(n, 0.0))
        for name, timings in growth.timings.items():
            for timing in timings:
                yield {
                    **where,
                    "n": timing.n,
                    "contestant": name,
                    "seconds": timing.seconds,
                    "fastest": timing.fastest,
                    "slowest": timing.slowest,
                    "limit_seconds": limit.get(timing.n),
                    "scaled_from_part": timing.part,
                    "doubt": timing.doubt,
                }
            for n, seconds in growth.left_out[name]:
                yield {**where, "n": n, "contestant": name, "left_out_seconds": seconds}
