"""FedAvg on clients whose examples stay on disk: 20 images of 28 x 28 each, made up and written as a stream.

python -m examples.on_disk                         # 1,000 clients in a folder that is deleted at the end
python -m examples.on_disk 1000000 300 million     # 10^6 clients, 16 GB; `million` stays

A second call with the same folder opens it and trains at once. Memory holds two cohorts and the labels.
"""

import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import jax
import numpy as np
from flax import nnx

import jaxfed
from jaxfed.data import pack

IMAGES, COHORT = 20, 1000  # of a client; clients a round
PATTERNS = np.random.default_rng(0).integers(0, 128, (10, 28, 28), np.uint8)


def made_up(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images of ten classes, a pattern and noise each."""
    rng = np.random.default_rng((1, seed))
    y = rng.integers(0, 10, count)
    noise = np.frombuffer(rng.bytes(count * 784), np.uint8).reshape(count, 28, 28)
    return PATTERNS[y] + noise // 2, y


def clients(number: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for first in range(0, number, COHORT):
        x, y = made_up(min(COHORT, number - first) * IMAGES, first)
        parts = range(0, len(y), IMAGES)
        yield from ((x[start : start + IMAGES], y[start : start + IMAGES]) for start in parts)


class Network(nnx.Module):
    def __init__(self, rngs: nnx.Rngs):
        self.first = nnx.Linear(784, 32, rngs=rngs)
        self.last = nnx.Linear(32, 10, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.last(
            nnx.relu(self.first(x.reshape(len(x), -1) - 0.5))
        )  # bytes are read as 0..1


def main(number: int = 1000, rounds: int = 20, folder: str = "") -> None:
    with TemporaryDirectory() as temporary:
        path = Path(folder or f"{temporary}/clients")
        begun = time.perf_counter()
        if not path.exists():
            pack(clients(number), path, test=made_up(10_000, number), num_classes=10)
            print(f"{number:,} clients written in {time.perf_counter() - begun:.1f} s")
        begun = time.perf_counter()
        federation = jaxfed.Federation.open_packed(path)
        print(f"{federation.num_clients:,} clients opened in {time.perf_counter() - begun:.2f} s")
        training = jaxfed.Training(jaxfed.from_flax(Network, (28, 28)))
        fedavg = jaxfed.algorithms.fedavg(training=training)
        size = min(COHORT, federation.num_clients)
        result = jaxfed.simulate(fedavg, federation, rounds=rounds, cohort_size=size)
        seconds = np.median([record["seconds"] for record in result.records[1:]])
        epoch = seconds * federation.num_clients / size
        print(f"test accuracy {result.metrics['test_accuracy']:.3f}")
        print(f"{seconds:.3f} s a round of {size:,} clients, {epoch:.1f} s for all clients once")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"examples on disk {federation.x.nbytes / 1e9:.2f} GB, peak memory {peak:.2f} GB")


if __name__ == "__main__":
    number, rounds, folder = [*sys.argv[1:], *("1000", "20", "")[len(sys.argv) - 1 :]]
    main(int(number), int(rounds), folder)
