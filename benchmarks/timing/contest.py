"""Reliable timing: interleaved rounds, pairwise ratios, and a refusal when the machine is busy.

A contest is one task with our solution and peers' solutions. Every round times each contestant once, in turn,
so a slowdown of the machine affects all. The ratio is the median over rounds of peer time over our time.
A ratio is printed as "unreliable" when other processes (or the hypervisor) took CPU time on our cores
during the rounds.
"""

from __future__ import annotations

import ctypes
import os
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from jaxfed.experiment.run.environment import peak_memory_bytes

ROUNDS = 5  # of a contest that asks for no other number
SHORTEST_SAMPLE = 0.25  # seconds: a faster task is repeated within a sample
LONGEST_PROBE = 10.0  # seconds: no second trial run above this
REST = 0.05  # seconds between contestants: idle OpenMP threads of a peer spin for a while
OTHERS_ALLOWED = 0.10  # CPU seconds of others per second of a contestant's time
PEAK = "GiB, the process at its peak"  # name of a figure
_SET_CHILD_SUBREAPER = 36  # of Linux's prctl


class Work(NamedTuple):
    """Work of a task in units of a machine's limit.

    Fields:
        amount: number of operations, or of bytes moved.
        limit: a key of the machine's limits: "popcount_bits", "matmul_f32_flops", "bytes", ...
    """

    amount: float
    limit: str


@dataclass(frozen=True)
class Contest:
    """One task with our solution and its peers'.

    Attributes:
        task: its name, such as "exact 10-NN".
        case: the sizes, such as {"n": 4096, "num_bits": 4096}.
        ours: solves the task; a result that is a JAX pytree is waited for.
        peers: name -> a function that solves the same task.
        agreement: (our result, a peer's result) -> a short text on their agreement; raises
            AssertionError if they disagree.
        work: what the task needs at least, in units of one of the machine's limits; None: not compared.
        targets: peer name -> the ratio this repository promises.
        parts: peer name -> the part of the task that it solves, in (0, 1), if the whole would take hours;
            its times are scaled up, and the row notes it. Other peers solve all of it.
        figures: (our result, our median seconds) -> numbers by name, such as "us a pair".
        at_most: name of a figure -> the most that this repository promises.
        samples: number of interleaved rounds for a long task; 0: `ROUNDS`.
        once: time the first run, and none after it: a task of minutes that compiles nothing.
        timed: result -> its seconds, for tasks that time themselves; None: by the clock, around the task.
    """

    task: str
    case: dict[str, Any]
    ours: Callable[[], Any]
    peers: dict[str, Callable[[], Any]] = field(default_factory=dict)
    agreement: Callable[[Any, Any], str] | None = None
    work: Work | None = None
    targets: dict[str, float] = field(default_factory=dict)
    parts: dict[str, float] = field(default_factory=dict)
    figures: Callable[[Any, float], dict[str, float]] | None = None
    at_most: dict[str, float] = field(default_factory=dict)
    samples: int = 0
    once: bool = False
    timed: Callable[[Any], float] | None = None


def peak_memory_figure() -> dict[str, float]:
    """The most memory of this process so far, a figure of a contest."""
    return {PEAK: peak_memory_bytes() / 2**30}


def run_contest(contest: Contest, limits: dict[str, float]) -> dict[str, Any]:
    """Time a contest; return a dict of plain numbers and strings for the JSON file."""
    contestants = {"jaxfed": contest.ours, **contest.peers}
    results: dict[str, Any] = {}
    first: dict[str, float] = {}  # the first run compiles and allocates
    elapsed, others = 0.0, 0.0
    for name, solve in contestants.items():
        results[name], first[name], busy = _run(solve)
        elapsed, others = elapsed + first[name], others + busy
    agreement = {
        name: contest.agreement(results["jaxfed"], results[name])
        for name in contest.peers
        if contest.agreement
    }
    figures = partial(contest.figures, results["jaxfed"]) if contest.figures else None
    del results
    if contest.once:
        seconds = {name: [took / contest.parts.get(name, 1)] for name, took in first.items()}
    else:
        seconds, elapsed, others = _interleaved(contest, contestants, first)

    ours = statistics.median(seconds["jaxfed"])
    row: dict[str, Any] = {
        "task": contest.task,
        "case": contest.case,
        "rounds": len(seconds["jaxfed"]),
        "seconds": seconds,
        "median_seconds": {name: statistics.median(times) for name, times in seconds.items()},
        "others_cpu_share": others / elapsed if elapsed > SHORTEST_SAMPLE else 0.0,
        "agreement": agreement,
        "peers": {},
    }
    if figures:
        row["figures"] = {
            name: {"measured": figure, "at_most": contest.at_most.get(name)}
            for name, figure in figures(ours).items()
        }
    if contest.work is not None:
        row |= _rates(contest.work, ours, limits)
    doubt = None
    if row["others_cpu_share"] > OTHERS_ALLOWED:
        doubt = f"other processes took {row['others_cpu_share']:.2f} cores"
    for name in contest.peers:
        ratios = [peer / own for peer, own in zip(seconds[name], seconds["jaxfed"], strict=True)]
        row["peers"][name] = {
            "ratio": statistics.median(ratios),
            "ratio_range": [min(ratios), max(ratios)],
            "target": contest.targets.get(name),
            "scaled_from_part": contest.parts.get(name),
            "unreliable": doubt,
        }
    return row


def _interleaved(
    contest: Contest, contestants: dict[str, Callable[[], Any]], first: dict[str, float]
) -> tuple[dict[str, list[float]], float, float]:
    """Time all contestants in turn; return their seconds a task, those of all, and others' CPU seconds."""
    takes_long = contest.samples > 0 or contest.timed is not None
    repeats = {
        name: 1 if takes_long else _repeats(solve, first[name])
        for name, solve in contestants.items()
    }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    elapsed, others = 0.0, 0.0
    for _ in range(contest.samples or ROUNDS):
        for name, solve in contestants.items():
            time.sleep(REST)
            result, took, busy = _run(solve, repeats[name])
            per_task = contest.timed(result) if contest.timed else took / repeats[name]
            seconds[name].append(per_task / contest.parts.get(name, 1))
            elapsed, others = elapsed + took, others + busy
    return seconds, elapsed, others


def _rates(work: Work, seconds: float, limits: dict[str, float]) -> dict[str, Any]:
    """Rate of the work, and its share of the machine's limit."""
    rate = work.amount / seconds
    share = rate / limits[work.limit]
    if work.limit == "bytes":
        return {"bytes_per_second": rate, "share_of_machine_bandwidth": share}
    return {
        "operations_per_second": rate,
        "operation": work.limit,
        "share_of_machine_limit": share,
    }


def _run(solve: Callable[[], Any], repeats: int = 1) -> tuple[Any, float, float]:
    """Solve a task so many times; return the last result, the seconds, and others' CPU seconds meanwhile."""
    busy, start = others_cpu_seconds(), time.perf_counter()
    for _ in range(repeats):
        result = _finished(solve)
    return result, time.perf_counter() - start, others_cpu_seconds() - busy


def _finished(solve: Callable[[], Any]) -> Any:
    return jax.block_until_ready(solve())


def _repeats(solve: Callable[[], Any], first_seconds: float) -> int:
    if first_seconds > LONGEST_PROBE:
        return 1
    start = time.perf_counter()
    _finished(solve)
    return max(1, round(SHORTEST_SAMPLE / max(time.perf_counter() - start, 1e-6)))


def others_cpu_seconds() -> float:
    """CPU seconds on our cores so far by processes other than this one and its descendants (Linux; else 0).

    Stolen time is included. Our cores are those this process may run on; load on other cores does not
    matter.
    """
    try:
        lines = Path("/proc/stat").read_text().splitlines()
    except OSError:
        return 0.0
    ours = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    ticks = 0
    for name, *fields in (line.split() for line in lines):
        if name in ours:
            user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields[:8])
            ticks += user + nice + system + irq + softirq + steal
    return (ticks - _own_ticks()) / os.sysconf("SC_CLK_TCK")


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, whose time would else count as that of others (Linux).

    Ray, started by Flower's simulation, ends a moment after its parent.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, 1)


def _own_ticks() -> int:
    """CPU ticks of this process and all its descendants, ended ones included."""
    parent: dict[int, int] = {}
    ticks: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended meanwhile
            continue
        process = int(path.parent.name)
        parent[process], ticks[process] = int(fields[1]), sum(map(int, fields[11:15]))
    own = {os.getpid()}
    while started := {process for process in parent if parent[process] in own} - own:
        own |= started
    return sum(ticks[process] for process in own)


def optional_peer(
    name: str, build: Callable[..., Callable[[], Any]], *inputs: Any
) -> dict[str, Callable[[], Any]]:
    """{name: build(*inputs)}, or {} and a line on stderr when the peer's package is missing."""
    try:
        return {name: build(*inputs)}
    except ImportError as error:
        why = f"{error.name} is not installed" if error.name else str(error)
        print(
            f"bench: peer {name} left out, {why} (pip install -r requirements-peers.txt)",
            file=sys.stderr,
        )
        return {}
