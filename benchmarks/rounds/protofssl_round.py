"""One ProtoFSSL round against the same round in plain PyTorch, one client after another.

Both start from the same network and the same helpers' prototypes, and draw their own episodes. The resulting
networks are compared by the accuracy of nearest prototypes on the labeled images.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks.rounds.fedavg_round import (
    NUM_CLASSES,
    Parameters,
    as_dict,
    noisy_patterns,
    on_cpu,
    put,
)
from benchmarks.timing.contest import Contest, Work, optional_peer
from jaxfed.config.assembly import make_algorithm, make_model
from jaxfed.config.file import shipped
from jaxfed.data import Partition
from jaxfed.federation.clients import Federation
from jaxfed.models import Model

CLIENTS, LABELS_A_CLASS, UNLABELED = 5, 5, 490  # Section 6: 540 images a client
_MULTIPLY_ADDS = 0.38e9  # of ResNet-8, one image, forward; see its docstring
_TORCH = "PyTorch loop"


def protofssl_round(with_peers: bool) -> Iterator[Contest]:
    """5 clients, 10 episodes, ResNet-8; the unlabeled query of Table 5, on a CPU a fifth of it."""
    federation = _federation()
    config = shipped("protofssl").get_config("cifar10_iid")
    config.protofssl.unlabeled_query = 20 if on_cpu() else 100
    algorithm = make_algorithm(config, "protofssl", federation)
    start = algorithm.init(jax.random.key(0), federation)
    state, _ = algorithm.round(start, federation.cohort(), jax.random.key(1))  # with helpers

    def advance() -> Parameters:
        after, _metrics = algorithm.round(state, federation.cohort(), jax.random.key(2))
        return as_dict(jax.block_until_ready(after.model))

    helpers = np.asarray(state.memory.helpers.center)
    peers = (
        optional_peer(_TORCH, _torch_loop, federation, config, as_dict(state.model), helpers)
        if with_peers
        else {}
    )
    wanted = config.protofssl
    rows = NUM_CLASSES * (wanted.support + wanted.query) + wanted.unlabeled_query
    images = (
        3 * config.training.epochs * rows + NUM_CLASSES * LABELS_A_CLASS
    )  # forward passes' worth
    yield Contest(
        task="ProtoFSSL round",
        case={"model": "resnet8", "clients": CLIENTS, "episodes": 10, "rows": rows},
        ours=advance,
        peers=peers,
        agreement=partial(
            _equally_good, make_model(config, federation, head=False), state.model, federation
        ),
        work=Work(2 * _MULTIPLY_ADDS * CLIENTS * images, "matmul_f32_flops"),
        targets=dict.fromkeys(peers, 1.0 if on_cpu() else 2.0),
    )


def _federation() -> Federation:
    """Images of 32 x 32; a client has five labels of each class first."""
    rng = np.random.default_rng(0)
    y = rng.integers(
        NUM_CLASSES, size=(CLIENTS, NUM_CLASSES * LABELS_A_CLASS + UNLABELED), dtype=np.int32
    )
    num_labeled = NUM_CLASSES * LABELS_A_CLASS
    y[:, :num_labeled] = np.tile(np.arange(NUM_CLASSES), LABELS_A_CLASS)
    rows, y = np.arange(y.size).reshape(y.shape), y.ravel()
    x = noisy_patterns(rng, y, side=32, channels=3)
    labeled, unlabeled = tuple(rows[:, :num_labeled]), tuple(rows[:, num_labeled:])
    nothing = tuple(np.zeros(0, np.int64) for _ in labeled)
    return Federation(x, y, Partition(labeled, unlabeled, nothing), NUM_CLASSES)


def _equally_good(
    model: Model, state: Any, federation: Federation, ours: Parameters, theirs: Parameters
) -> str:
    """Check that accuracies of nearest class means are equal up to the effect of other episodes."""
    labeled = np.concatenate(federation.partition.labeled)
    embed = jax.jit(model.features)

    def accuracy(parameters: Parameters) -> float:
        put(parameters, state)
        embedding = np.asarray(embed(state, federation.x[labeled]))
        label = federation.y[labeled]
        means = np.stack([embedding[label == c].mean(axis=0) for c in range(NUM_CLASSES)])
        distance = np.linalg.norm(embedding[:, None] - means, axis=-1)
        return float((distance.argmin(axis=1) == label).mean())

    first, second = accuracy(ours), accuracy(theirs)
    assert abs(first - second) < 0.1, f"accuracies {first} and {second}"
    return f"accuracies {first:.3f} and {second:.3f}"


def _torch_resnet8() -> Any:
    """ResNet-8 without a head, as a PyTorch module."""
    from torch import nn
    from torch.nn import functional

    def conv(into: int, out: int) -> nn.Conv2d:
        return nn.Conv2d(into, out, 3, padding=1, bias=False)

    class ResNet8(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = conv(3, 64)
            self.widen = nn.ModuleList([conv(64, 128), conv(128, 256), conv(256, 512)])
            self.residual_128 = nn.ModuleList([conv(128, 128), conv(128, 128)])
            self.residual_512 = nn.ModuleList([conv(512, 512), conv(512, 512)])

        def forward(self, x: Any) -> Any:
            def unit(layer: nn.Module, x: Any) -> Any:
                return functional.relu(layer(x))

            def residual(x: Any, layers: nn.ModuleList) -> Any:
                return x + unit(layers[1], unit(layers[0], x))

            x = unit(self.stem, x)
            x = residual(functional.max_pool2d(unit(self.widen[0], x), 2), self.residual_128)
            x = functional.max_pool2d(unit(self.widen[1], x), 2)
            x = functional.max_pool2d(unit(self.widen[2], x), 2)
            return functional.max_pool2d(residual(x, self.residual_512), 4).flatten(1)

    return ResNet8()


def _torch_loop(
    federation: Federation, config: ConfigDict, start: Parameters, helpers: np.ndarray
) -> Callable[[], Parameters]:
    """Algorithm 1's RunClient as a PyTorch user writes it, and the server's mean."""
    import torch
    from torch import nn
    from torch.nn import functional

    device = "cpu" if on_cpu() else "cuda"
    wanted = config.protofssl

    # Channels last throughout, which suits convolutions on both kinds of device.
    network = _torch_resnet8().to(device, memory_format=torch.channels_last)
    layers = dict(network.named_modules())
    names = [name for name, layer in layers.items() if isinstance(layer, nn.Conv2d)]
    server = {
        name: torch.tensor(start[f"{name}.linear.kernel"]).permute(3, 2, 0, 1).to(device)
        for name in names
    }
    centers = torch.tensor(helpers, device=device)
    mean, deviation = (torch.tensor(part, device=device) for part in federation.normalization)

    def probabilities(embedding: Any, center: Any) -> Any:
        return functional.log_softmax(-torch.cdist(embedding, center), dim=-1)

    def loss(images: Any, by_class: Any, unlabeled: Any) -> Any:
        drawn = torch.stack([rows[torch.randperm(len(rows))] for rows in by_class])
        support = drawn[:, : wanted.support]
        query = drawn[:, wanted.support : wanted.support + wanted.query]
        others = unlabeled[torch.randperm(len(unlabeled))[: wanted.unlabeled_query]]
        embedding = network(images[torch.cat([support.ravel(), query.ravel(), others])])
        first, second = support.numel(), support.numel() + query.numel()
        own = embedding[:first].reshape(NUM_CLASSES, wanted.support, -1).mean(dim=1)
        label = torch.arange(NUM_CLASSES, device=device).repeat_interleave(wanted.query)
        value = functional.nll_loss(probabilities(embedding[first:second], own), label)
        with torch.no_grad():
            target = torch.stack(
                [probabilities(embedding[second:], c).exp() for c in centers]
            ).mean(dim=0)
            target = target ** (1 / wanted.temperature)
            target = target / target.sum(dim=1, keepdim=True)
        of_unlabeled = -(target * probabilities(embedding[second:], own)).sum(dim=1).mean()
        return value + wanted.unlabeled_weight * of_unlabeled

    def advance() -> Parameters:
        torch.manual_seed(2)
        sums = {name: torch.zeros_like(kernel) for name, kernel in server.items()}
        for labeled, unlabeled in zip(
            federation.partition.labeled, federation.partition.unlabeled, strict=True
        ):
            with torch.no_grad():
                for name, kernel in server.items():
                    layers[name].weight.copy_(kernel)
            optimizer = torch.optim.RMSprop(
                network.parameters(),
                lr=config.training.learning_rate,
                alpha=0.9,
                weight_decay=config.training.weight_decay,
            )
            rows = np.concatenate([labeled, unlabeled])
            images = torch.from_numpy(federation.x[rows]).to(device).float() / 255
            images = ((images - mean) / deviation).permute(0, 3, 1, 2)
            label = federation.y[labeled]
            by_class = [torch.from_numpy(np.flatnonzero(label == c)) for c in range(NUM_CLASSES)]
            others = torch.arange(len(labeled), len(rows))
            for _ in range(config.training.epochs):
                optimizer.zero_grad()
                loss(images, by_class, others).backward()
                optimizer.step()
            with torch.no_grad():
                embedding = network(images[: len(labeled)])
                [
                    embedding[rows].mean(dim=0) for rows in by_class
                ]  # prototypes that the client shares
                for name in names:
                    sums[name] += layers[name].weight
        after = {name: (total / federation.num_clients).cpu() for name, total in sums.items()}
        return {
            f"{name}.linear.kernel": kernel.permute(2, 3, 1, 0).numpy()
            for name, kernel in after.items()
        }

    return advance
