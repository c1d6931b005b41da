"""FedAvg rounds with more clients, devices and processes, and with very unequal clients.

A FedAvg round of K clients (5 to 1,000) with 20 images each, on one CPU device, on two forced ones, and in
two processes of one device (`jaxfed.host.parallel.processes`); a layout's processes stay for all cases:

    strong scaling    one K in three layouts: the ratios of a row
    weak scaling      K at one device and 2 K at two: "us a client-example" of two rows

Two devices made of two cores share the resources of the single device, so the best possible ratio is 1; the
measurement shows the overhead of sharding. Samples are interleaved.

Then rounds with one client of many examples among many of few, against the same number of examples split
equally ("equal deal"), and against arrays padded to the largest client ("padded"). The ratio to the equal
deal is near 1 if padding costs nothing; at least 1 / 1.3 is promised. (If two cores are two devices, the one
with FedAvg's largest client takes 249 of a round's steps, and 150 with equal clients.)
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from benchmarks.rounds.fedavg_round import NUM_CLASSES, noisy_patterns
from benchmarks.timing.contest import Contest
from jaxfed.config import base
from jaxfed.config.assembly import make_algorithm
from jaxfed.data import Partition
from jaxfed.federation.clients import Federation

ONE, TWO, PROCESSES = "one device", "two devices", "two processes"
COHORTS = (5, 10, 20, 100, 500, 1000)
WORKER = "benchmarks.rounds.scaling_worker"
EXAMPLES = 20  # of a client
SAMPLES = 15  # a round takes milliseconds, and devices sometimes wait for each other
EQUAL, PADDED = "equal deal", "padded"
# name -> clients, examples of the largest, of each other
UNEQUAL = {"fedavg": (100, 10_000, 50), "fedavg_xclp": (40, 2_000, 50)}
PROMISED = 1 / 1.3


def scaling(with_peers: bool) -> Iterator[Contest]:
    """Cohorts of all sizes in three layouts, then unequal clients; there are no peers to install."""
    del with_peers
    layouts = {name: Layout(name) for name in (TWO, ONE, PROCESSES)}
    for num_clients in COHORTS:
        yield cohort_contest(layouts, num_clients)
    for layout in layouts.values():
        layout.close()
    for method in UNEQUAL:
        yield unequal_contest(method)


def cohort_contest(layouts: dict[str, Layout], num_clients: int) -> Contest:
    """Contest at one K: two devices against the other layouts."""

    def at(layout: str) -> Callable[[], dict[str, float]]:
        return lambda: layouts[layout].played(num_clients, EXAMPLES)

    return Contest(
        task="FedAvg round, scaling",
        case={"clients": num_clients, "examples": EXAMPLES, "model": "mlp 32"},
        ours=at(TWO),
        peers={name: at(name) for name in (ONE, PROCESSES)},
        agreement=_same_loss,
        figures=lambda result, took: {
            "us a client-example": 1e6 * took / (num_clients * EXAMPLES),
        },
        samples=SAMPLES,
        timed=lambda result: result["seconds"],
    )


def unequal_contest(method: str) -> Contest:
    """One client of many examples among many of few, against the same examples split equally."""
    num_clients, largest, others = UNEQUAL[method]
    sizes = [largest] + [others] * (num_clients - 1)
    total = sum(sizes)
    equal = [total // num_clients] * num_clients
    ours = round_of(method, federation_of(sizes))
    peers = {EQUAL: round_of(method, federation_of(equal))}
    if method == "fedavg":  # a graph of all rows of the padded array takes too long
        peers[PADDED] = round_of(method, federation_of(sizes), ragged=False)
    return Contest(
        task=f"{method} round, unequal clients",
        case={"clients": num_clients, "largest": largest, "others": others},
        ours=ours,
        peers=peers,
        figures=lambda result, took: {"us a client-example": 1e6 * took / total},
        targets={EQUAL: PROMISED},
        samples=SAMPLES,
    )


def federation_of(sizes: list[int]) -> Federation:
    """A federation with clients of these sizes; half of the images are labeled."""
    rng = np.random.default_rng(0)
    y = rng.integers(NUM_CLASSES, size=sum(sizes)).astype(np.int32)
    points = np.split(np.arange(len(y)), np.cumsum(sizes)[:-1])
    partition = Partition(
        tuple(own[: (len(own) + 1) // 2] for own in points),
        tuple(own[(len(own) + 1) // 2 :] for own in points),
        tuple(own[:0] for own in points),
    )
    return Federation(noisy_patterns(rng, y, 28, 1), y, partition, NUM_CLASSES)


def round_of(
    method: str, federation: Federation, *, ragged: bool | None = None, strategy: str = "auto"
) -> Callable[[], float]:
    """A function that plays a round of all clients, from the host's examples, and returns its loss."""
    config = base.get_config()
    config.model.name, config.model.hidden = "mlp", (32,)
    config.training.epochs, config.training.batches = 1, "joint"
    config.training.batch_size = 50
    config.xclp.num_bits = 1024
    config.execution.strategy = strategy
    algorithm = make_algorithm(config, method, federation)
    state, key = algorithm.init(jax.random.key(0), federation), jax.random.key(1)

    def advance() -> float:
        after, metrics = algorithm.round(state, federation.cohort(ragged=ragged), key)
        jax.block_until_ready(after.model)
        return float(metrics["train_loss"])

    return advance


class Layout:
    """Worker processes that play rounds: each reads a case per line and prints seconds and loss."""

    def __init__(self, name: str) -> None:
        number = 2 if name == PROCESSES else 1
        devices = 2 if name == TWO else 1
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        flags = (
            f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        )
        environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        command = [sys.executable, "-m", WORKER]
        self._processes = [
            subprocess.Popen(
                [*command, address, str(number), str(own), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
                cwd=Path(__file__).parents[2],
                start_new_session=True,  # keeps the terminal's Ctrl-C from the workers
            )
            for own in range(number)
        ]
        atexit.register(self.close)

    def played(self, num_clients: int, examples: int) -> dict[str, float]:
        """Seconds and loss of one round, from the first process."""
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.write(f"{num_clients} {examples}\n")
            process.stdin.flush()
        answers = [_answer(process) for process in self._processes]
        return answers[0]

    def close(self) -> None:
        """Kill the processes at once, even if one waits for the other."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.communicate()


def _answer(process: subprocess.Popen[str]) -> dict[str, float]:
    """The next line with an answer; skips Gloo's messages on connections."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("{"):
            return dict(json.loads(line))
    raise RuntimeError(f"{WORKER} ended with exit status {process.wait()}")


def _same_loss(ours: dict[str, Any], theirs: dict[str, Any]) -> str:
    assert np.isclose(ours["loss"], theirs["loss"], rtol=1e-3), f"{ours} and {theirs}"
    return f"losses {ours['loss']:.4f} and {theirs['loss']:.4f}"
