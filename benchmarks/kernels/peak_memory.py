"""Peak memory of a nearest-neighbor search, as the system counts it for a separate process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from functools import cache, partial
from typing import NamedTuple

from benchmarks.timing.contest import Contest, Work

NUM_BITS, NUM_NEIGHBORS = 4096, 10
GIB = 1 << 30

# Codes are made on the host, so that the peak is that of the search. `before` is the process without
# it. `getrusage` would give the parent's peak if that is higher.
_PROCESS = """
import json, re, sys, time
from pathlib import Path
import jax, numpy as np
from jaxfed.kernels import knn

def peak():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+) kB", status)[1])

n, words, k = map(int, sys.argv[1:])
codes = jax.numpy.asarray(np.random.default_rng(0).integers(2**32, size=(n, words), dtype=np.uint32))
before, start = peak(), time.perf_counter()
jax.block_until_ready(knn.hamming_knn(codes, k))
seconds = time.perf_counter() - start
print(json.dumps({"seconds": seconds, "peak": peak(), "before": before}))
"""


class Peak(NamedTuple):
    """Seconds and peak resident memory of one process, in bytes: before the search, and overall."""

    seconds: float
    peak: int
    before: int


def peak_memory(with_peers: bool) -> Iterator[Contest]:
    """Exact Hamming 10-NN, L = 4096: memory of the whole process, with Python, XLA and compilation."""
    del with_peers
    for n in (10_000, 100_000):
        yield Contest(
            task="peak memory of exact Hamming 10-NN",
            case={"n": n, "num_bits": NUM_BITS},
            ours=partial(measured, n),
            work=Work(n * n * NUM_BITS, "popcount_bits"),
            figures=_figures,
            at_most={"peak GiB": 1.5},
            samples=1,
            timed=lambda found: float(found.seconds),
        )


@cache  # a search is slow, and its peak does not change
def measured(n: int, num_bits: int = NUM_BITS, num_neighbors: int = NUM_NEIGHBORS) -> Peak:
    """Search in a new process. The seconds include compilation."""
    sizes = map(str, (n, num_bits // 32, num_neighbors))
    done = subprocess.run(
        [sys.executable, "-c", _PROCESS, *sizes], check=True, capture_output=True, text=True
    )
    return Peak(**json.loads(done.stdout.splitlines()[-1]))


def _figures(found: Peak, seconds: float) -> dict[str, float]:
    del seconds
    return {"peak GiB": found.peak / GIB, "of it before the search GiB": found.before / GIB}
