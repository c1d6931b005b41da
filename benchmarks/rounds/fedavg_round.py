"""One FedAvg round against a plain PyTorch loop and FedJAX: the same clients, batches, model and start.

Every contestant receives the cohort's examples as bytes on the host and returns the server's new model. The
orders of examples differ, so models are compared by their loss on all examples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from benchmarks.peers.jax_network import mean_loss
from benchmarks.timing.contest import Contest, Work, optional_peer
from jaxfed.config import base
from jaxfed.config.assembly import make_algorithm
from jaxfed.data import Partition
from jaxfed.federation.clients import Federation

NUM_CLASSES, LEARNING_RATE = 10, 0.1
TORCH, FEDJAX = "PyTorch loop", "FedJAX"
Parameters = dict[str, np.ndarray]  # "hidden.0.kernel" -> float32 [in, out] or [h, w, in, out]


def fedavg_round(with_peers: bool) -> Iterator[Contest]:
    """10 clients, one epoch, batches of 50: an MLP on 500 images each, a small CNN on 100 each."""
    for name, num_examples, targets in (
        ("mlp", 500, {TORCH: 1.5, FEDJAX: 1.2}),
        ("cnn", 100, {TORCH: 1.5, FEDJAX: 3.0}),
    ):
        federation = _federation(num_clients=10, num_examples=num_examples, side=28, channels=1)
        config = _config(name, batch_size=50, epochs=1)
        ours, start = rounds_of("fedavg", config, federation)
        peers: dict[str, Callable[[], Any]] = {}
        if with_peers:
            for peer, build in ((TORCH, _torch_loop), (FEDJAX, _fedjax)):
                peers |= optional_peer(peer, build, federation, config, start)
        yield Contest(
            task="FedAvg round",
            case={"model": name, "clients": 10, "examples": num_examples, "batch": 50},
            ours=ours,
            peers=peers,
            agreement=partial(equally_good, federation),
            work=Work(6 * _MULTIPLY_ADDS[name] * 10 * num_examples, "matmul_f32_flops"),
            targets={peer: targets[peer] for peer in peers} if on_cpu() else {},
        )
    if not on_cpu():
        yield _cifar_round(with_peers)


def _cifar_round(with_peers: bool) -> Contest:
    """The round of XCLP's A.2: 5 clients, 5 epochs, 13-layer CNN, 500 images a client, bfloat16."""
    federation = _federation(num_clients=5, num_examples=500, side=32, channels=3)
    config = _config("cnn13", batch_size=100, epochs=5)
    config.execution.precision = "bfloat16"
    ours, _start = rounds_of("fedavg", config, federation)
    peers = (
        optional_peer("PyTorch bf16 loop", _torch_cnn13, federation, config) if with_peers else {}
    )
    return Contest(
        task="FedAvg round",
        case={"model": "cnn13", "clients": 5, "examples": 500, "batch": 100, "epochs": 5},
        ours=ours,
        peers=peers,
        work=Work(6 * _MULTIPLY_ADDS["cnn13"] * 5 * 5 * 500, "matmul_bf16_flops"),
        targets=dict.fromkeys(peers, 2.0),
    )


# Per image, forward; backward takes twice as many, and a multiply-add is two operations.
_MULTIPLY_ADDS = {
    "mlp": 784 * 512 + 512 * 512 + 512 * 10,
    "cnn": 28 * 28 * 9 * 16 + 14 * 14 * 9 * 16 * 32 + 7 * 7 * 32 * 128 + 128 * 10,
    "cnn13": 9
    * (
        32 * 32 * (3 * 128 + 2 * 128 * 128)
        + 16 * 16 * (128 * 256 + 2 * 256 * 256)
        + 6 * 6 * 256 * 512
    )
    + 6 * 6 * (512 * 256 + 256 * 128)
    + 128 * 10,
}


def on_cpu() -> bool:
    """True if JAX's default backend is the CPU."""
    return jax.default_backend() == "cpu"


def _federation(num_clients: int, num_examples: int, side: int, channels: int) -> Federation:
    """A federation of labeled images with a learnable pattern per class."""
    rng = np.random.default_rng(0)
    y = rng.integers(NUM_CLASSES, size=num_clients * num_examples).astype(np.int32)
    x = noisy_patterns(rng, y, side, channels)
    return labeled_clients(x, y, num_clients, num_examples, NUM_CLASSES)


def labeled_clients(
    x: np.ndarray, y: np.ndarray, num_clients: int, size: int, num_classes: int
) -> Federation:
    """Clients with `size` labeled examples each; all further examples are public."""
    rows = np.arange(len(y))
    dealt = num_clients * size
    labeled = tuple(rows[:dealt].reshape(num_clients, size))
    nothing = (rows[:0],) * num_clients
    partition = Partition(labeled, nothing, nothing)
    return Federation(x, y, partition, num_classes, public=rows[dealt:])


def noisy_patterns(
    rng: np.random.Generator, y: np.ndarray, side: int, channels: int, contrast: int = 32
) -> np.ndarray:
    """Images of these classes, uint8 [n, side, side, channels]: a random pattern a class, under noise."""
    shape = (NUM_CLASSES, side, side, channels)
    patterns = rng.integers(128 - contrast, 128 + contrast, size=shape)
    noise = rng.integers(-64, 64, size=(len(y), side, side, channels))
    return (patterns[y] + noise).astype(np.uint8)


def _config(model: str, *, batch_size: int, epochs: int) -> ConfigDict:
    config = base.get_config()
    config.model.name = model
    config.training.epochs = epochs
    config.training.batches = "joint"
    config.training.batch_size = batch_size
    config.training.learning_rate = LEARNING_RATE
    return config


def rounds_of(
    method: str, config: ConfigDict, federation: Federation
) -> tuple[Callable[[], Parameters], Parameters]:
    """Return a function that plays a round of all clients from the initial model, and this model."""
    algorithm = make_algorithm(config, method, federation)
    state, key = algorithm.init(jax.random.key(0), federation), jax.random.key(1)

    def advance() -> Parameters:
        after, _metrics = algorithm.round(state, federation.cohort(), key)
        return as_dict(jax.block_until_ready(after.model))

    return advance, as_dict(state.model)


def as_dict(state: Any) -> Parameters:
    """A model's state as arrays by name."""
    return {
        ".".join(str(part) for part in path): np.asarray(variable[...])
        for path, variable in nnx.to_flat_state(state)
    }


def put(parameters: Parameters, state: Any) -> None:
    """Set a model's state to arrays by name."""
    for path, variable in nnx.to_flat_state(state):
        variable[...] = jnp.asarray(parameters[".".join(str(part) for part in path)])


def equally_good(federation: Federation, ours: Parameters, theirs: Parameters) -> str:
    """Check that losses on all examples are equal up to the effect of the examples' order."""
    x, y = jnp.asarray(_normalized(federation, federation.x)), jnp.asarray(federation.y)
    both = jax.tree.map(jnp.asarray, (ours, theirs))
    return alike(*(float(mean_loss(each, x, y)) for each in both))


def alike(first: float, second: float) -> str:
    """Check that two losses differ by no more than the order of examples changes."""
    assert abs(first - second) < 0.1 * max(first, second) + 0.02, f"losses {first} and {second}"
    return f"losses {first:.3f} and {second:.3f}"


def _normalized(federation: Federation, x: Any) -> Any:
    mean, deviation = federation.normalization
    return (x.astype(np.float32) / 255 - mean) / deviation


def _torch_loop(
    federation: Federation, config: ConfigDict, start: Parameters
) -> Callable[[], Parameters]:
    from benchmarks.peers.torch_network import network, parameters

    model = network(start)
    advance = _torch_round(model, federation, config)

    def played() -> Parameters:
        model.load_state_dict(advance())
        return parameters(model, start)

    return played


def _torch_round(network: Any, federation: Federation, config: ConfigDict) -> Callable[[], Any]:
    """A typical PyTorch loop: one client after another, a batch at a time; the mean of their weights.

    With `execution.precision` bfloat16, by autocast. A client's images are on the device at once.
    """
    import torch
    from torch import nn

    device = "cpu" if on_cpu() else "cuda"
    network.to(device)
    mean, deviation = (torch.tensor(part, device=device) for part in federation.normalization)
    server = {key: value.clone() for key, value in network.state_dict().items()}
    loss = nn.CrossEntropyLoss()
    is_short = config.execution.precision == "bfloat16"

    def advance() -> Any:
        rng = np.random.default_rng(1)
        sums = {key: torch.zeros_like(value) for key, value in server.items()}
        for points in federation.partition.labeled:
            network.load_state_dict(server)
            optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE)
            images = torch.from_numpy(federation.x[points]).to(device)
            labels = torch.from_numpy(federation.y[points]).to(device).long()
            for _ in range(config.training.epochs):
                order = torch.from_numpy(rng.permutation(len(points))).to(device)
                for rows in order.split(config.training.batch_size):
                    x = ((images[rows].float() / 255 - mean) / deviation).permute(0, 3, 1, 2)
                    optimizer.zero_grad()
                    with torch.autocast(device, torch.bfloat16, enabled=is_short):
                        value = loss(network(x), labels[rows])
                    value.backward()
                    optimizer.step()
            for key, value in network.state_dict().items():
                sums[key] += value
        if device == "cuda":
            torch.cuda.synchronize()
        return {key: value / federation.num_clients for key, value in sums.items()}

    return advance


def _fedjax(
    federation: Federation, config: ConfigDict, start: Parameters
) -> Callable[[], Parameters]:
    """FedJAX's own federated averaging over a model of XLA's dense and convolution operations."""
    from benchmarks.peers.fedjax import averaging, fedjax

    algorithm = averaging(
        LEARNING_RATE,
        config.training.batch_size,
        normalized=partial(_normalized, federation),
        seed=1,
    )
    state = algorithm.init(jax.tree.map(jnp.asarray, start))
    clients = [
        (
            str(client),
            fedjax.ClientDataset({"x": federation.x[points], "y": federation.y[points]}),
            jax.random.PRNGKey(client),
        )
        for client, points in enumerate(federation.partition.labeled)
    ]

    def advance() -> Parameters:
        after, _diagnostics = algorithm.apply(state, clients)
        return {key: np.asarray(value) for key, value in after.params.items()}

    return advance


def _torch_cnn13(federation: Federation, config: ConfigDict) -> Callable[[], Any]:
    """The 13-layer CNN in bfloat16 on the GPU.

    Images and all activations are in channels-last layout. (Kernels are not: weight norm recomputes them
    in every step.)
    """
    from torch import nn
    from torch.nn.utils.parametrizations import weight_norm

    def unit(into: int, out: int, size: int = 3, padding: int = 1) -> list[Any]:
        conv = weight_norm(nn.Conv2d(into, out, size, padding=padding))
        return [conv, nn.BatchNorm2d(out), nn.LeakyReLU(0.1)]

    network = nn.Sequential(
        *(*unit(3, 128), *unit(128, 128), *unit(128, 128), nn.MaxPool2d(2), nn.Dropout(0.5)),
        *(*unit(128, 256), *unit(256, 256), *unit(256, 256), nn.MaxPool2d(2), nn.Dropout(0.5)),
        *(*unit(256, 512, padding=0), *unit(512, 256, 1, 0), *unit(256, 128, 1, 0)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), weight_norm(nn.Linear(128, NUM_CLASSES))),
    )
    return _torch_round(network, federation, config)
