"""Kernel, protocol and round microbenchmarks, with peers in the same run.

    python -m launch.bench [--kernel=NAME,...] [--peers] [--out=FILE.json]

Prints one line a contest: our time, what share of the machine's own limit that is, and for every peer the
ratio of its time to ours (above 1: jaxfed is faster). On a GPU the same command measures there. Peers are
optional packages: pip install -r requirements-peers.txt.
"""

from __future__ import annotations

import json
import os
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from absl import flags

from jaxfed.errors import UsageError
from jaxfed.experiment.environment import describe
from jaxfed.host.interruption import Interruption
from jaxfed.host.location import file_to_write
from launch import entry
from launch.benchmarks import BENCHMARKS
from launch.benchmarks.contest import MIN_ROUNDS, PEER_RATES, contest_name, processor, run_contest
from launch.benchmarks.limits import machine_limits

KERNEL = flags.DEFINE_list("kernel", [], f"which, of {', '.join(BENCHMARKS)}; default all")
PEERS = flags.DEFINE_bool("peers", False, "measure the named peers in the same run")
OUT = flags.DEFINE_string("out", None, "write all figures to this JSON file")
ROUNDS = flags.DEFINE_integer("rounds", MIN_ROUNDS, "interleaved rounds", lower_bound=MIN_ROUNDS)
MAX_POINTS = flags.DEFINE_integer("max_points", 0, "leave out contests with more points; 0 = none")
RECORD = flags.DEFINE_bool(
    "record_peers",
    False,
    f"write the peers' times to {PEER_RATES.name} as usual for this processor",
)
_PACKAGES = (
    "jax",
    "jaxlib",
    "numpy",
    "scipy",
    "faiss-cpu",
    "torch",
    "cryptography",
    "phe",
    "gmpy2",
)


def main(arguments: list[str], overrides: list[str], interruption: Interruption) -> None:
    """Run the contests one after another and print each as it ends."""
    del interruption  # nothing is saved that a signal could spoil
    for argument in (*arguments, *overrides):
        raise UsageError(f"{argument}: no such argument; see --helpshort")
    for name in KERNEL.value:
        if name not in BENCHMARKS:
            raise UsageError(f"--kernel={name}: allowed are {', '.join(BENCHMARKS)}")
    out = file_to_write(OUT.value, "--out") if OUT.value else None
    limits = machine_limits()
    print(f"{processor()}; " + "; ".join(f"{name} {rate:.3g}/s" for name, rate in limits.items()))
    rows = []
    for name in KERNEL.value or BENCHMARKS:
        for contest in BENCHMARKS[name](PEERS.value):
            if MAX_POINTS.value and contest.case.get("n", 0) > MAX_POINTS.value:
                continue
            row = run_contest(contest, ROUNDS.value, limits, recording=RECORD.value)
            rows.append(row)
            print(as_line(row), flush=True)
            if RECORD.value:
                record_peers(contest, row)
    if out is not None:
        report = {"environment": environment(), "machine_limits": limits, "contests": rows}
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1) + "\n")


def as_line(row: dict[str, Any]) -> str:
    """A contest's figures as one line."""
    case = " ".join(f"{key}={value}" for key, value in row["case"].items())
    parts = [f"{row['task']:24s} {case:40s} {1e3 * row['median_seconds']['jaxfed']:9.2f} ms"]
    for name, figure in row.get("figures", {}).items():
        promised = f" (at most {figure['at_most']:g})" if figure["at_most"] is not None else ""
        parts.append(f"{figure['measured']:.3g} {name}{promised}")
    if "share_of_machine_limit" in row:
        rate = row["operations_per_second"]
        parts.append(f"{rate:.3g} {row['operation']}/s = {row['share_of_machine_limit']:.0%}")
    if "share_of_machine_bandwidth" in row:
        share = row["share_of_machine_bandwidth"]
        parts.append(
            f"{share:.0%} of bandwidth" if share <= 1 else f"{share:.1f} x memory, in cache"
        )
    for name, peer in row["peers"].items():
        target = f" (target {peer['target']})" if peer["target"] else ""
        figure = f"{peer['ratio']:.2f} x" if not peer["unreliable"] else "unreliable"
        reason = f": {peer['unreliable']}" if peer["unreliable"] else ""
        milliseconds = 1e3 * row["median_seconds"][name]
        part = peer["scaled_from_part"]
        scaled = f" (scaled up from {part:.2g} of the task)" if part else ""
        parts.append(f"{name}: {milliseconds:.2f} ms{scaled}, {figure}{target}{reason}")
        if name in row["agreement"]:
            parts.append(row["agreement"][name])
    return " | ".join(parts)


def record_peers(contest: Any, row: dict[str, Any]) -> None:
    """Keep the peers' times as the usual ones on this processor."""
    recorded = json.loads(PEER_RATES.read_text()) if PEER_RATES.exists() else {}
    times = recorded.setdefault(processor(), {})
    for name in contest.peers:
        times[contest_name(name, contest)] = row["median_seconds"][name]
    PEER_RATES.parent.mkdir(exist_ok=True)
    PEER_RATES.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


def environment() -> dict[str, Any]:
    """Where the figures come from."""
    versions = {}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {**describe(), "cores_allowed": allowed, "versions": versions}


if __name__ == "__main__":
    entry.start(main)
