"""One FedAvg round against a plain PyTorch loop and FedJAX: the same clients, batches, model and start.

Every contestant receives the cohort's examples as bytes on the host and returns the server's new model. The
orders of examples differ, so models are compared by their loss on all examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from ml_collections import ConfigDict

from benchmarks.timing.contest import Contest, Work, optional_peer
from jaxfed.config import base
from jaxfed.config.build.assembly import make_algorithm
from jaxfed.config.build.networks import make_model
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
        ours, start = _ours(config, federation)
        peers: dict[str, Callable[[], Any]] = {}
        if with_peers:
            for peer, build in ((TORCH, _torch_loop), (FEDJAX, _fedjax)):
                peers |= optional_peer(peer, build, name, federation, config, start)
        yield Contest(
            task="FedAvg round",
            case={"model": name, "clients": 10, "examples": num_examples, "batch": 50},
            ours=ours,
            peers=peers,
            agreement=partial(_equally_good, config, federation),
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
    ours, _start = _ours(config, federation)
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
    labeled = tuple(np.arange(len(y)).reshape(num_clients, num_examples))
    nothing = tuple(np.zeros(0, np.int64) for _ in labeled)
    x = noisy_patterns(rng, y, side, channels)
    return Federation(x, y, Partition(labeled, nothing, nothing), NUM_CLASSES)


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


def _ours(config: ConfigDict, federation: Federation) -> tuple[Callable[[], Any], Parameters]:
    algorithm = make_algorithm(config, "fedavg", federation)
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


def _equally_good(
    config: ConfigDict, federation: Federation, ours: Parameters, theirs: Parameters
) -> str:
    """Check that losses are equal up to the effect of the examples' order."""
    model = make_model(config, federation)
    state = model.init(jax.random.key(0))

    def loss(parameters: Parameters) -> float:
        for path, variable in nnx.to_flat_state(state):
            variable[...] = jnp.asarray(parameters[".".join(str(part) for part in path)])
        logits = model.apply(state, jnp.asarray(federation.x))
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), federation.y[:, None], axis=1)
        return -float(chosen.mean())

    first, second = loss(ours), loss(theirs)
    assert abs(first - second) < 0.1 * max(first, second) + 0.02, f"losses {first} and {second}"
    return f"losses {first:.3f} and {second:.3f}"


def _batch_orders(rng: np.random.Generator, federation: Federation, client: int, size: int) -> Any:
    points = rng.permutation(federation.partition.labeled[client])
    return np.split(points, range(size, len(points), size))


def _torch_loop(
    name: str, federation: Federation, config: ConfigDict, start: Parameters
) -> Callable[[], Parameters]:
    """A typical PyTorch loop: one client after another, a batch at a time."""
    import torch
    from torch import nn

    device = "cpu" if on_cpu() else "cuda"
    side, channels = federation.x.shape[1], federation.x.shape[3]
    mean, deviation = (torch.tensor(part, device=device) for part in federation.normalization)
    if name == "mlp":
        network = nn.Sequential(
            nn.Flatten(),
            *(nn.Linear(side * side * channels, 512), nn.ReLU()),
            *(nn.Linear(512, 512), nn.ReLU()),
            nn.Linear(512, NUM_CLASSES),
        )
    else:
        pooled = (side // 4) ** 2
        network = nn.Sequential(
            *(nn.Conv2d(channels, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(32 * pooled, 128), nn.ReLU()),
            nn.Linear(128, NUM_CLASSES),
        )
    network.to(device)
    layers = [layer for layer in network if isinstance(layer, nn.Linear | nn.Conv2d)]
    names = sorted({key.rpartition(".")[0] for key in start}, key=_depth)
    server = []
    for layer, key in zip(layers, names, strict=True):
        kernel = torch.tensor(start[f"{key}.kernel"])
        if isinstance(layer, nn.Conv2d):
            kernel = kernel.permute(3, 2, 0, 1)
        elif key == "dense":  # row order: height, width, channel here; channel first in PyTorch
            cells = math.isqrt(kernel.shape[0] // 32)
            kernel = kernel.reshape(cells, cells, 32, -1).permute(2, 0, 1, 3).flatten(0, 2).T
        else:
            kernel = kernel.T
        server += [kernel.contiguous(), torch.tensor(start[f"{key}.bias"])]
    server = [tensor.to(device) for tensor in server]
    loss = nn.CrossEntropyLoss()
    size = config.training.batch_size

    def advance() -> Parameters:
        rng = np.random.default_rng(1)
        sums = [torch.zeros_like(tensor) for tensor in server]
        for client in range(federation.num_clients):
            with torch.no_grad():
                for parameter, tensor in zip(network.parameters(), server, strict=True):
                    parameter.copy_(tensor)
            optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE)
            for rows in _batch_orders(rng, federation, client, size):
                x = torch.from_numpy(federation.x[rows]).to(device).float() / 255
                x = ((x - mean) / deviation).permute(0, 3, 1, 2)
                if name == "mlp":
                    x = x.permute(0, 2, 3, 1)
                y = torch.from_numpy(federation.y[rows]).to(device).long()
                optimizer.zero_grad()
                loss(network(x), y).backward()
                optimizer.step()
            with torch.no_grad():
                for total, parameter in zip(sums, network.parameters(), strict=True):
                    total += parameter
        means = [(total / federation.num_clients).cpu() for total in sums]
        after: Parameters = {}
        for position, (layer, key) in enumerate(zip(layers, names, strict=True)):
            kernel, bias = means[2 * position : 2 * position + 2]
            if isinstance(layer, nn.Conv2d):
                kernel = kernel.permute(2, 3, 1, 0)
            elif key == "dense":
                cells = math.isqrt(kernel.shape[1] // 32)
                kernel = kernel.T.reshape(32, cells, cells, -1).permute(1, 2, 0, 3).flatten(0, 2)
            else:
                kernel = kernel.T
            after[f"{key}.kernel"], after[f"{key}.bias"] = kernel.numpy(), bias.numpy()
        return after

    return advance


def _depth(layer: str) -> tuple[int, str]:
    """Sort key: convolutions and hidden layers in their order, then the dense layer, then the head."""
    return (2 if layer == "head" else 1 if layer == "dense" else 0), layer


def _fedjax(
    name: str, federation: Federation, config: ConfigDict, start: Parameters
) -> Callable[[], Parameters]:
    """FedJAX's own federated averaging over a model of XLA's dense and convolution operations."""
    if not hasattr(jax, "tree_map"):  # FedJAX 0.0.17 was written for JAX 0.3
        jax.tree_map = jax.tree.map  # type: ignore[attr-defined]
    import fedjax

    mean, deviation = federation.normalization

    def logits(parameters: Any, x: jax.Array) -> jax.Array:
        def dense(x: jax.Array, layer: str) -> jax.Array:
            return x @ parameters[f"{layer}.kernel"] + parameters[f"{layer}.bias"]

        x = (x.astype(jnp.float32) / 255 - mean) / deviation
        if name == "mlp":
            x = x.reshape(len(x), -1)
            for layer in ("hidden.0", "hidden.1"):
                x = jax.nn.relu(dense(x, layer))
            return dense(x, "head")
        for layer in ("units.0.linear", "units.1.linear"):
            x = jax.lax.conv_general_dilated(
                x,
                parameters[f"{layer}.kernel"],
                (1, 1),
                "SAME",
                dimension_numbers=("NHWC", "HWIO", "NHWC"),
            )
            x = jax.nn.relu(x + parameters[f"{layer}.bias"])
            x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return dense(jax.nn.relu(dense(x.reshape(len(x), -1), "dense")), "head")

    @jax.jit
    def gradient(parameters: Any, batch: Any, key: Any) -> Any:
        del key

        def loss(parameters: Any) -> jax.Array:
            log_probability = jax.nn.log_softmax(logits(parameters, batch["x"]))
            return -jnp.take_along_axis(log_probability, batch["y"][:, None], axis=1).mean()

        return jax.grad(loss)(parameters)

    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        gradient,
        fedjax.optimizers.sgd(LEARNING_RATE),
        fedjax.optimizers.sgd(1.0),
        fedjax.ShuffleRepeatBatchHParams(
            batch_size=config.training.batch_size, num_epochs=1, seed=1
        ),
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
    """The 13-layer CNN in bfloat16 on the GPU, one client after another.

    Images and all activations are in channels-last layout. (Kernels are not: weight norm recomputes them
    in every step.)
    """
    import torch
    from torch import nn
    from torch.nn.utils.parametrizations import weight_norm

    device = "cpu" if on_cpu() else "cuda"

    def unit(into: int, out: int, size: int = 3, padding: int = 1) -> list[Any]:
        conv = weight_norm(nn.Conv2d(into, out, size, padding=padding))
        return [conv, nn.BatchNorm2d(out), nn.LeakyReLU(0.1)]

    network = nn.Sequential(
        *(*unit(3, 128), *unit(128, 128), *unit(128, 128), nn.MaxPool2d(2), nn.Dropout(0.5)),
        *(*unit(128, 256), *unit(256, 256), *unit(256, 256), nn.MaxPool2d(2), nn.Dropout(0.5)),
        *(*unit(256, 512, padding=0), *unit(512, 256, 1, 0), *unit(256, 128, 1, 0)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), weight_norm(nn.Linear(128, NUM_CLASSES))),
    ).to(device)
    mean, deviation = (torch.tensor(part, device=device) for part in federation.normalization)
    server = {key: value.clone() for key, value in network.state_dict().items()}
    loss = nn.CrossEntropyLoss()
    size = config.training.batch_size

    def advance() -> Any:
        rng = np.random.default_rng(1)
        sums = {key: torch.zeros_like(value) for key, value in server.items()}
        for client in range(federation.num_clients):
            network.load_state_dict(server)
            optimizer = torch.optim.SGD(network.parameters(), lr=LEARNING_RATE)
            points = federation.partition.labeled[client]
            images = torch.from_numpy(federation.x[points]).to(device)
            labels = torch.from_numpy(federation.y[points]).to(device).long()
            for _ in range(config.training.epochs):
                order = torch.from_numpy(rng.permutation(len(points))).to(device)
                for rows in order.split(size):
                    x = ((images[rows].float() / 255 - mean) / deviation).permute(0, 3, 1, 2)
                    optimizer.zero_grad()
                    with torch.autocast(device, torch.bfloat16):
                        value = loss(network(x), labels[rows])
                    value.backward()
                    optimizer.step()
            for key, value in network.state_dict().items():
                sums[key] += value
        if device == "cuda":
            torch.cuda.synchronize()
        return {key: value / federation.num_clients for key, value in sums.items()}

    return advance
