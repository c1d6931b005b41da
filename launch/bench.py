"""Kernel, protocol and round microbenchmarks, with peers in the same run.

    python -m launch.bench [--kernel=NAME,...] [--peers] [--out=FILE.json]

Prints one line a contest: our time, what share of the machine's own limit that is, and for every peer the
ratio of its time to ours (above 1: jaxfed is faster). On a GPU the same command measures there. Peers are
optional packages: pip install -r requirements-peers.txt.
"""

from __future__ import annotations

import json
from typing import Any

from absl import flags

from jaxfed.errors import UsageError
from jaxfed.host.devices import one_device_a_core
from jaxfed.host.interruption import Interruption
from jaxfed.host.location import file_to_write
from launch import entry
from launch.benchmarks import BENCHMARKS
from launch.benchmarks.contest import MIN_ROUNDS, PEER_RATES, contest_name, processor, run_contest
from launch.benchmarks.limits import machine_limits
from launch.benchmarks.record import as_line, environment

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


def main(arguments: list[str], overrides: list[str], interruption: Interruption) -> None:
    """Run the contests one after another and print each as it ends."""
    del interruption  # nothing is saved that a signal could spoil
    for argument in (*arguments, *overrides):
        raise UsageError(f"{argument}: no such argument; see --helpshort")
    for name in KERNEL.value:
        if name not in BENCHMARKS:
            raise UsageError(f"--kernel={name}: allowed are {', '.join(BENCHMARKS)}")
    out = file_to_write(OUT.value, "--out") if OUT.value else None
    one_device_a_core()
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


def record_peers(contest: Any, row: dict[str, Any]) -> None:
    """Keep the peers' times as the usual ones on this processor."""
    recorded = json.loads(PEER_RATES.read_text()) if PEER_RATES.exists() else {}
    times = recorded.setdefault(processor(), {})
    for name in contest.peers:
        times[contest_name(name, contest)] = row["median_seconds"][name]
    PEER_RATES.parent.mkdir(exist_ok=True)
    PEER_RATES.write_text(json.dumps(recorded, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    entry.start(main)
