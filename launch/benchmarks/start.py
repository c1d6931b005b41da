"""README's first command as a new user starts it: how long until there is something to read.

    nothing kept     no compiled program on disk
    programs kept    the same again, in a workdir of its own

Seen from outside: the workdir is there when Python, JAX and this package are, and the config is checked; the
first line of `metrics.jsonl` is the first method's labels of the first seed, its accuracy with them. The run
is ended then; what follows is the same again, for more methods and seeds.

What was found on two cores. FOUND
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from launch.benchmarks.contest import Contest

SAMPLES = 5
_ROOT = Path(__file__).parents[2]
_LOOK_AGAIN = 0.005  # seconds


class Start(NamedTuple):
    """Seconds from the start of the process: to the workdir, and to the first result."""

    workdir: float
    result: float


def first_result(with_peers: bool) -> Iterator[Contest]:
    """Without programs on disk, and with them."""
    del with_peers
    with tempfile.TemporaryDirectory(prefix="jaxfed-bench-") as folder:
        for case, cache in (("nothing kept", None), ("programs kept", Path(folder))):
            yield Contest(
                task="time to the first result",
                case={"config": "xclp_digits", "disk": case},
                ours=partial(started, cache),
                figures=lambda start, seconds: {"s to the workdir": start.workdir},
                samples=SAMPLES,
                timed=lambda start: float(start.result),
            )


def started(cache: Path | None) -> Start:
    """Start the command, with what a folder keeps between processes; None: with nothing."""
    with tempfile.TemporaryDirectory(prefix="jaxfed-bench-") as folder:
        workdir = Path(folder) / "run"
        begun = time.perf_counter()
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "launch.run"),
                f"--config={_ROOT / 'ml_collections_configs' / 'xclp_digits.py'}",
                f"--workdir={workdir}",
            ],
            cwd=_ROOT,
            env={**os.environ, "JAXFED_CACHE": str(cache or Path(folder) / "cache")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            there = _seconds_until(workdir.exists, process, begun)
            metrics = workdir / "metrics.jsonl"
            result = _seconds_until(lambda: metrics.exists() and metrics.stat().st_size, process, begun)
        finally:
            process.kill()
            process.wait()
    return Start(there, result)


def _seconds_until(happened, process, begun):
    while not happened():
        if process.poll() is not None:
            raise RuntimeError(f"the run ended with {process.returncode} before its first result")
        time.sleep(_LOOK_AGAIN)
    return time.perf_counter() - begun
