"""FedAvg's rounds over clients whose examples lie on disk, against frameworks that read the clients drawn.

Clients hold 20 images of 28 x 28 in bytes, in ten classes. A round has 1,000 of them, one epoch in one batch
each, an MLP of 32 hidden units. Every contestant draws its own cohorts, reads them, trains, and averages:

    jaxfed          a packed folder (`jaxfed.data.pack`); a thread reads the next cohort
    FedJAX          its SQLite file, a compressed row a client
    pfl-research    its data set by a function of the user, which reads rows of the same folder

Files are written before any round, and mostly stay in the system's cache. Networks are compared by their
accuracy on 2,000 images that no client has.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks.peers.jax_network import accuracy
from benchmarks.rounds.fedavg_round import (
    FEDJAX,
    LEARNING_RATE,
    NUM_CLASSES,
    Parameters,
    as_dict,
)
from benchmarks.timing.contest import Contest, Work, optional_peer
from jaxfed.config import base
from jaxfed.config.assembly import make_algorithm
from jaxfed.data import pack
from jaxfed.federation.clients import Federation
from jaxfed.federation.rounds import Sampling, cohorts_of, play

PFL = "pfl-research"
POPULATIONS = (10_000, 100_000)
COHORT, EXAMPLES, TEST = 1_000, 20, 2_000
ROUNDS = 1_000_000  # more than any contest plays
_MULTIPLY_ADDS = 784 * 32 + 32 * 10
_ALIKE = 0.1  # between accuracies: cohorts differ
_PATTERNS = np.random.default_rng(0).integers(0, 64, (NUM_CLASSES, 28, 28, 1), np.uint8)


def on_disk(with_peers: bool) -> Iterator[Contest]:
    """A contest for each number of clients."""
    for number in POPULATIONS:
        with tempfile.TemporaryDirectory(prefix="jaxfed-bench-") as folder:
            yield _contest(number, Path(folder), with_peers)


def _contest(number: int, folder: Path, with_peers: bool) -> Contest:
    test = images(TEST, seed=number)
    packed = folder / "clients"
    pack(clients(number), packed, test=test, num_classes=NUM_CLASSES)
    federation = Federation.open_packed(packed)
    ours, start = _ours(federation)
    peers: dict[str, Callable[[], Any]] = {}
    if with_peers:
        peers |= optional_peer(FEDJAX, _fedjax, federation, folder / "fedjax.sqlite", start)
        peers |= optional_peer(PFL, _pfl, federation, start)
    x_test, y_test = _normalization(federation)(test[0]), test[1]

    def alike(own: Parameters, other: Parameters) -> str:
        first, second = (
            accuracy(jax.tree.map(jax.numpy.asarray, model), x_test, y_test)
            for model in (own, other)
        )
        assert abs(first - second) < _ALIKE, f"accuracies {first} and {second}"
        return f"accuracies {first:.3f} and {second:.3f}"

    return Contest(
        task="round of clients on disk",
        case={"clients": f"{COHORT}/{number}", "examples": EXAMPLES},
        ours=ours,
        peers=peers,
        agreement=alike,
        work=Work(6 * _MULTIPLY_ADDS * COHORT * EXAMPLES, "matmul_f32_flops"),
        targets=dict.fromkeys(peers, 1.2),
        figures=lambda result, took: {"us a client": 1e6 * took / COHORT},
    )


def images(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Images uint8 [count, 28, 28, 1], a pattern for each class under noise, and labels int32."""
    rng = np.random.default_rng((1, seed))
    y = rng.integers(NUM_CLASSES, size=count).astype(np.int32)
    noise = np.frombuffer(rng.bytes(count * 784), np.uint8).reshape(count, 28, 28, 1) // 2
    return _PATTERNS[y] + noise, y


def _normalization(federation: Federation) -> Callable[[Any], Any]:
    mean, deviation = federation.normalization
    scale, shift = 1 / (255 * deviation), mean / deviation
    return lambda x: x * scale - shift


def clients(number: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Examples of one client after another, made a thousand clients at a time."""
    for first in range(0, number, COHORT):
        x, y = images(min(COHORT, number - first) * EXAMPLES, seed=first)
        parts = range(0, len(y), EXAMPLES)
        yield from ((x[start : start + EXAMPLES], y[start : start + EXAMPLES]) for start in parts)


def _config() -> ConfigDict:
    config = base.get_config()
    config.model.name, config.model.hidden = "mlp", (32,)
    config.training.epochs, config.training.batch_size = 1, EXAMPLES
    config.training.learning_rate, config.training.momentum = LEARNING_RATE, 0.0
    config.training.weight_decay = 0.0
    return config


def _ours(federation: Federation) -> tuple[Callable[[], Parameters], Parameters]:
    algorithm = make_algorithm(_config(), "fedavg", federation)
    key = jax.random.key(0)
    state = algorithm.init(key, federation)
    cohort_of = cohorts_of(algorithm, federation, Sampling(COHORT), 0, ROUNDS)
    played = play(algorithm, state, range(1, ROUNDS), cohort_of=cohort_of, key=key)
    return lambda: as_dict(next(played).after.model), as_dict(state.model)


def _fedjax(federation: Federation, file: Path, start: Parameters) -> Callable[[], Parameters]:
    from benchmarks.peers.fedjax import averaging, fedjax

    with fedjax.SQLiteFederatedDataBuilder(str(file)) as builder:
        builder.add_many(
            (str(client).encode(), {"x": x, "y": y})
            for client, (x, y) in enumerate(clients(federation.num_clients))
        )

    algorithm = averaging(LEARNING_RATE, EXAMPLES, normalized=_normalization(federation))
    sampler = fedjax.client_samplers.UniformGetClientSampler(
        fedjax.SQLiteFederatedData.new(str(file)), num_clients=COHORT, seed=0
    )
    played = [algorithm.init(jax.tree.map(jax.numpy.asarray, start))]

    def advance() -> Parameters:
        state, _diagnostics = algorithm.apply(played.pop(), sampler.sample())
        played.append(jax.block_until_ready(state))
        return {name: np.asarray(value) for name, value in state.params.items()}

    return advance


def _pfl(federation: Federation, start: Parameters) -> Callable[[], Parameters]:
    import torch
    from pfl.aggregate.simulate import SimulatedBackend
    from pfl.aggregate.weighting import WeightByDatapoints
    from pfl.algorithm.base import NNAlgorithmParams
    from pfl.algorithm.federated_averaging import FederatedAveraging
    from pfl.data.dataset import Dataset
    from pfl.data.federated_dataset import FederatedDataset
    from pfl.data.sampling import get_user_sampler
    from pfl.hyperparam.base import NNTrainHyperParams
    from pfl.model.pytorch import PyTorchModel

    from benchmarks.peers.pfl import Network
    from benchmarks.peers.torch_network import parameters

    normalized = _normalization(federation)

    def user_dataset(user: int) -> Dataset:
        rows = np.random.default_rng(user).permutation(federation.partition.labeled[user])
        x = torch.from_numpy(normalized(federation.x[rows])).permute(0, 3, 1, 2)
        return Dataset(raw_data=[x, torch.from_numpy(federation.y[rows]).long()], user_id=str(user))

    sampler = get_user_sampler("random", range(federation.num_clients))
    data = FederatedDataset(user_dataset, sampler)
    backend = SimulatedBackend(data, data, postprocessors=[WeightByDatapoints()])
    module = Network(start)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    one_round = NNAlgorithmParams(
        central_num_iterations=1,
        evaluation_frequency=2,
        train_cohort_size=COHORT,
        val_cohort_size=None,
    )
    training = NNTrainHyperParams(
        local_num_epochs=1, local_learning_rate=LEARNING_RATE, local_batch_size=EXAMPLES
    )

    def advance() -> Parameters:
        FederatedAveraging().run(one_round, backend, model, training)
        return parameters(module.layers, start)

    return advance
