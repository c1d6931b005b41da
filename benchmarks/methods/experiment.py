"""A whole experiment of each framework as its user starts it: process, imports, rounds, final accuracy.

FedAvg on Fashion-MNIST (if it is missing, on synthetic images of its size), 100 clients, 10 a round, one
epoch of batches of 50, the same initial weights. The test set of 10,000 is evaluated every fifth round and
after the last. Two networks:

    mlp    784-512-512-10, 500 examples a client
    cnn    two 3 x 3 convolutions of 32 and 64 channels, each with pooling, and the head; 100 a client

`--kernel=experiment` measures both, `experiment_mlp` and `experiment_cnn` one each.

jaxfed is `launch.run` with a config's defaults: checkpoints by the clock, states and predictions at the end,
compiled programs cached on disk; but no plots, which no peer draws. Peers (`benchmarks.peers`, one file each,
written as in their documentation) save nothing. Every contestant runs once before it is timed, so jaxfed
finds its compiled programs; "s at the first start" is that first run of jaxfed, which compiles. A contestant
that takes more than five minutes runs only once (DrJAX's CNN).

A run has two timings: from the start of the process to its end, and the median time of a round, from the end
of the previous round to its own end.

Clients of a round and orders of examples differ, so accuracies agree up to chance only.

Findings on two cores. The training program takes 96 % or more of a median round: the cohort is stacked during
the previous round, and a checkpoint is a copy of milliseconds. Outside of rounds five things were slow and
are now faster: evaluation in batches of 500 images (100 stay in the caches), a second evaluation of the same
state, mean and deviation of bytes as float64, imports (scikit-learn and scipy.stats took one of two seconds),
and Python's garbage collector (0.7 of eight seconds). What remains is JAX and Flax, tracing, and reading
programs from the cache; a first run mostly waits for compilation. (Plots would take one more second.) The CNN
is bound by memory: a batch of 50 goes through its layers five images at a time, which takes 0.75 of the time
(`jaxfed.training.local.losses`).

All peers can be installed together on Python 3.11, with `--no-deps` where they require older packages. FedLab
and fluke import torchvision, which must be built for the same PyTorch, CPU or CUDA.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks.peers import played, task
from benchmarks.rounds.fedavg_round import as_dict, noisy_patterns
from benchmarks.timing.contest import Contest, optional_peer
from jaxfed.config import file as config_file
from jaxfed.config.assembly import make_algorithm
from jaxfed.config.data.simulation import Simulation
from jaxfed.config.overrides import as_text
from jaxfed.errors import UsageError

PEERS = {  # name -> its file in `benchmarks.peers`
    "PyTorch loop": "pytorch",
    "FedJAX": "fedjax",
    "pfl-research": "pfl",
    "fluke": "fluke",
    "FedLab": "fedlab",
    "DrJAX": "drjax",
    "Flower": "flower",
}
NETWORKS: dict[str, dict[str, Any]] = {
    "mlp": {"model.name": "mlp", "model.hidden": (512, 512)},
    "cnn": {"model.name": "cnn", "model.channels": (32, 64), "model.hidden": 0},
}
EXAMPLES = {"mlp": 500, "cnn": 100}  # of a client
CLIENTS, TEST = 100, 10_000
ROUNDS = 30
SAMPLES = 3  # runs of each that are timed; the first, untimed one compiles
LONG = 300.0  # seconds; a run that takes longer is not repeated
CHANCE = 0.06  # between accuracies after so few rounds
_ROOT = Path(__file__).parents[2]
_CONFIG = "ml_collections_configs/federated_optimization.py"
_SIDE = 28


class Run(NamedTuple):
    """One run: seconds from its start to its end, times of its rounds, and accuracy."""

    seconds: float
    played: played.Played


class Runs:
    """Runs contestants for one contest, and replays the same runs in order for a second contest."""

    def __init__(self) -> None:
        self._done: dict[str, list[Run]] = {}

    def once_more(self, name: str, play: Callable[[], played.Played]) -> Run:
        """Play and record a run; return the previous one if that took longer than `LONG`."""
        done = self._done.setdefault(name, [])
        if done and done[-1].seconds > LONG:
            run = done[-1]
        else:
            start = time.perf_counter()
            result = play()
            run = Run(time.perf_counter() - start, result)
        done.append(run)
        return run

    def again(self, name: str) -> Run:
        """Return the oldest run that has not been replayed."""
        return self._done[name].pop(0)


def experiment(with_peers: bool, networks: Iterable[str] | None = None) -> Iterator[Contest]:
    """For each network (default all): a contest of whole runs, and one of the rounds of the same runs."""
    for network in NETWORKS if networks is None else networks:
        with tempfile.TemporaryDirectory(prefix="jaxfed-bench-") as folder:
            yield from _contests(network, Path(folder), with_peers)


def _contests(network: str, folder: Path, with_peers: bool) -> Iterator[Contest]:
    keys = settings_of(network, folder)
    config = config_file.load(str(_ROOT / _CONFIG), texts(keys))
    task_of(config).save(folder)
    plays: dict[str, Callable[[], Any]] = {}
    if with_peers:
        for name, file in PEERS.items():
            plays |= optional_peer(name, partial(peer, folder), file)
    runs = Runs()
    ours = partial(jaxfed, folder, keys)
    case = {
        "model": network,
        "clients": f"{config.cohort_size}/{CLIENTS}",
        "examples": EXAMPLES[network],
        "rounds": config.rounds,
        "data": Path(config.dataset.name).stem,
    }
    first: list[float] = []

    def figures(run: Run, seconds: float) -> dict[str, float]:
        del seconds
        first.append(run.seconds)
        return {"s at the first start": first[0], "accuracy": run.played.accuracy}

    yield Contest(
        task="experiment",
        case=case,
        ours=partial(runs.once_more, "jaxfed", ours),
        peers={name: partial(runs.once_more, name, play) for name, play in plays.items()},
        agreement=_equally_good,
        samples=SAMPLES,
        targets=dict.fromkeys(plays, 1.2),
        figures=figures,
        timed=lambda run: run.seconds,
    )
    yield Contest(
        task="experiment, a round",
        case=case,
        ours=partial(runs.again, "jaxfed"),
        peers={name: partial(runs.again, name) for name in plays},
        samples=SAMPLES,
        targets=dict.fromkeys(plays, 1.2),
        timed=lambda run: statistics.median(run.played.round_seconds),
    )


def settings_of(network: str, folder: Path) -> dict[str, Any]:
    """The config's keys with other values than the defaults; missing data are made in `folder`."""
    keys = {
        **NETWORKS[network],
        "baselines": (),
        "num_repeats": 1,
        "rounds": ROUNDS,
        "cohort_size": 10,
        "evaluate_every": 5,
        "evaluate_test": True,
        "dataset.name": "fashion_mnist",
        "dataset.train_size": CLIENTS * EXAMPLES[network],
        "dataset.validation_fraction": 0.0,
        "federation.num_clients": CLIENTS,
        "federation.partition": "iid",
        "training.epochs": 1,
        "training.batch_size": 50,
        "execution.compilation_cache": str(folder / "compiled"),
        "execution.plots": False,
    }
    try:
        Simulation(config_file.load(str(_ROOT / _CONFIG), texts(keys)))
    except UsageError:
        keys["dataset.name"] = str(_stand_in(folder / "noisy_patterns.npz"))
        keys["dataset.train_size"] = 0
    return keys


def _stand_in(file: Path) -> Path:
    """Images of Fashion-MNIST's size with something to learn."""
    rng = np.random.default_rng(0)
    num_train = CLIENTS * max(EXAMPLES.values())
    y = rng.integers(10, size=num_train + TEST).astype(np.int32)
    x = noisy_patterns(rng, y, _SIDE, 1, contrast=8)
    np.savez(file, x=x[:num_train], y=y[:num_train], x_test=x[num_train:], y_test=y[num_train:])
    return file


def texts(keys: dict[str, Any]) -> list[str]:
    """Return the keys as `KEY=VALUE` texts for a command line."""
    return [as_text(key, value) for key, value in keys.items()]


def task_of(config: ConfigDict) -> task.Task:
    """The experiment of this config for peers: data and initial weights of its first repeat."""
    federation = Simulation(config).federation(config.seed)
    mean, deviation = federation.normalization
    start = make_algorithm(config, config.algorithm, federation).init(
        jax.random.fold_in(jax.random.key(config.seed), 0), federation
    )
    held = np.stack(federation.partition.labeled)
    rows = held.reshape(-1)
    settings = task.Settings(
        rounds=config.rounds,
        cohort_size=config.cohort_size,
        batch_size=config.training.batch_size,
        learning_rate=config.training.learning_rate,
        evaluate_every=config.evaluate_every,
        num_classes=federation.num_classes,
    )
    return task.Task(
        settings,
        images=federation.x[rows],
        labels=federation.y[rows].astype(np.int64),
        clients=np.arange(len(rows)).reshape(held.shape),
        test_images=federation.x[federation.test],
        test_labels=federation.y[federation.test].astype(np.int64),
        mean=mean,
        deviation=deviation,
        start=as_dict(start.model),
    )


def jaxfed(folder: Path, keys: dict[str, Any]) -> played.Played:
    """Run `launch.run` with the config and read its files."""
    workdir = folder / "jaxfed"
    _call(
        "launch.run",
        f"--config={_ROOT / _CONFIG}",
        f"--workdir={workdir}",
        "--overwrite",
        *(f"--config.{text}" for text in texts(keys)),
    )
    lines = (workdir / "metrics.jsonl").read_text().splitlines()
    rounds = [line["seconds"] for line in map(json.loads, lines) if line["round"] > 1]
    return played.Played(rounds, json.loads(lines[-1])["test_accuracy"])


def peer(folder: Path, file: str) -> Callable[[], played.Played]:
    """Return a function that plays the task in the folder with the peer of that file.

    Raises:
        ImportError: the peer's file cannot be imported; with the last line of the error.
    """
    failed = _process("-c", f"import benchmarks.peers.{file}")
    if failed.returncode:
        raise ImportError(failed.stderr.strip().splitlines()[-1])

    def play() -> played.Played:
        _call("benchmarks.peers.played", file, str(folder))
        return played.load(folder)

    return play


def _equally_good(ours: Run, theirs: Run) -> str:
    first, second = ours.played.accuracy, theirs.played.accuracy
    assert abs(first - second) < CHANCE, f"accuracies {first} and {second}"
    return f"accuracies {first:.3f} and {second:.3f}"


def _call(module: str, *arguments: str) -> None:
    ended = _process("-m", module, *arguments)
    if ended.returncode:
        raise RuntimeError(f"{module} {' '.join(arguments)}:\n{ended.stderr}")


def _process(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a Python process as a user starts it, without this process's settings of JAX and threads."""
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
