"""README's first command as a new user starts it: time until the first result.

    workdir                       Python, JAX and this package are imported, and the config is checked
    first result, nothing kept    the main method's labels of the first seed and their accuracy, the first
                                  line of metrics.jsonl; no compiled program is on disk
    first result, programs kept   the same, with the programs that the first start has compiled

The command runs in a separate process, which is killed after the first result: the rest repeats the same work
for more methods and seeds.

Findings on two cores. Without compiled programs half of the time is compilation, a third of that of one
program, conjugate gradients. One more second went to single operations outside of programs (keys, slices,
cosines), each compiled separately in 30 to 100 ms. With compiled programs half of the time is imports, two
thirds of it JAX and Flax; the rest is tracing and lowering, which cannot be cached. Compiling two programs at
a time was not tried: JAX would compile a program again if it is called before it is ready.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.timing.contest import Contest

SAMPLES = 5
CONFIG = "ml_collections_configs/xclp_digits.py"
_ROOT = Path(__file__).parents[2]
_LOOK_AGAIN = 0.005  # seconds


class Start(NamedTuple):
    """Seconds from the start of the process: to the workdir, and to the first result."""

    workdir: float
    result: float


def first_result(with_peers: bool) -> Iterator[Contest]:
    """Time to the first result, without and with compiled programs on disk; time to the workdir."""
    del with_peers
    with tempfile.TemporaryDirectory(prefix="jaxfed-bench-") as kept:

        def contest(until: str, disk: str, cache: Path | None) -> Contest:
            return Contest(
                task=f"start of the main job, to its {until}",
                case={"config": CONFIG, "disk": disk},
                ours=partial(started, cache),
                samples=SAMPLES,
                timed=lambda start: float(getattr(start, until)),
            )

        yield contest("result", "nothing kept", None)
        yield contest("result", "programs kept", Path(kept))
        yield contest("workdir", "programs kept", Path(kept))


def started(cache: Path | None) -> Start:
    """Start the command with a folder of compiled programs; None: with an empty one.

    Raises:
        RuntimeError: it ends before it has a result.
    """
    with tempfile.TemporaryDirectory(prefix="jaxfed-bench-") as folder:
        workdir = Path(folder) / "run"
        begun = time.perf_counter()
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "launch.run"),
                *(f"--config={CONFIG}", f"--workdir={workdir}"),
            ],
            cwd=_ROOT,
            env={**os.environ, "JAXFED_CACHE": str(cache or Path(folder) / "cache")},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

        def seconds_until(happened: Callable[[], bool]) -> float:
            while not happened():
                if process.poll() is not None:
                    raise RuntimeError(
                        f"the run ended, status {process.returncode}, without a result"
                    )
                time.sleep(_LOOK_AGAIN)
            return time.perf_counter() - begun

        metrics = workdir / "metrics.jsonl"
        try:
            return Start(
                seconds_until(workdir.exists),
                seconds_until(lambda: metrics.exists() and metrics.stat().st_size > 0),
            )
        finally:
            process.kill()
            process.wait()
