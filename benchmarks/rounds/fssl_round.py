"""One round of methods that compare two views, against FixMatch's; SAGE also against a PyTorch loop.

Every contestant starts from the same network, and draws its own batches and views: weak ones are shifts by up
to 2 pixels and flips, strong ones shifts by up to 4, flips and a gray square. Networks are compared by their
loss on all examples.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from benchmarks.rounds.fedavg_round import (
    NUM_CLASSES,
    TORCH,
    Parameters,
    equally_good,
    noisy_patterns,
    on_cpu,
    rounds_of,
)
from benchmarks.timing.contest import Contest, optional_peer
from jaxfed.config.file import shipped
from jaxfed.data import Partition
from jaxfed.federation.clients import Federation

CLIENTS, LABELED, UNLABELED = 8, 20, 180  # of config `fssl:fashion_mnist`, a client of 200
FIXMATCH = "FixMatch"
MOST = {"sage": 1.3, "fedlabel": 1.3, "feddb": 1.3}  # times FixMatch's round
_THRESHOLD = 0.95


def fssl_round(with_peers: bool) -> Iterator[Contest]:
    """8 clients, 20 labeled and 180 unlabeled images each, 2 epochs, a small CNN."""
    federation = _federation()
    config = shipped("fssl").get_config("fashion_mnist")
    fixmatch, start = rounds_of("fixmatch", config, federation)
    for name, most in MOST.items():
        ours, _ = rounds_of(name, config, federation)
        peers: dict[str, Callable[[], Any]] = {FIXMATCH: fixmatch}
        targets = {FIXMATCH: 1 / most}
        if with_peers and name == "sage":
            peers |= optional_peer(TORCH, _torch_loop, federation, config, start)
            targets |= {TORCH: 1.5} if TORCH in peers else {}
        yield Contest(
            task="round with two views",
            case={"method": name, "model": "cnn", "clients": CLIENTS, "epochs": 2},
            ours=ours,
            peers=peers,
            agreement=partial(equally_good, federation),
            targets=targets if on_cpu() else {},
        )


def _federation() -> Federation:
    rng, size = np.random.default_rng(0), LABELED + UNLABELED
    y = rng.integers(NUM_CLASSES, size=CLIENTS * size).astype(np.int32)
    rows = np.arange(len(y)).reshape(CLIENTS, size)
    labeled, unlabeled = tuple(rows[:, :LABELED]), tuple(rows[:, LABELED:])
    nothing = (rows[0, :0],) * CLIENTS
    x = noisy_patterns(rng, y, side=28, channels=1)
    return Federation(x, y, Partition(labeled, unlabeled, nothing), NUM_CLASSES)


def _torch_loop(
    federation: Federation, config: ConfigDict, start: Parameters
) -> Callable[[], Parameters]:
    """SAGE as a PyTorch user writes it, one client after another, and the mean of their weights."""
    import torch
    from torch.nn import functional

    from benchmarks.peers.torch_network import network, parameters

    wanted = config.training
    model, received = network(start), network(start)
    server = {key: value.clone() for key, value in model.state_dict().items()}
    mean, deviation = (torch.tensor(part) for part in federation.normalization)

    def shifted(x: Any, pixels: int) -> Any:
        """Each image moved on its own, with reflection at the border, and flipped with probability 1/2."""
        padded = functional.pad(x, (pixels,) * 4, mode="reflect")
        position = torch.arange(28)
        top, left = torch.randint(2 * pixels + 1, (2, len(x)))
        column = position.expand(len(x), -1)
        column = torch.where(torch.rand(len(x), 1) < 0.5, column.flip(1), column) + left[:, None]
        row = position + top[:, None]
        return padded[torch.arange(len(x))[:, None, None], :, row[:, :, None], column[:, None, :]]

    def strong(x: Any) -> Any:
        moved = shifted(x, 4).permute(0, 3, 1, 2)
        position, first = torch.arange(28), torch.randint(28, (2, len(x), 1)) - 7
        inside = (position >= first) & (position < first + 14)
        hole = inside[0][:, None, :, None] & inside[1][:, None, None, :]
        return torch.where(hole, 0.5, moved)

    def normalized(x: Any) -> Any:
        return (x - mean) / deviation

    def loss(x: Any, label: Any, others: Any) -> Any:
        weak = normalized(torch.cat([shifted(part, 2).permute(0, 3, 1, 2) for part in (x, others)]))
        logits = model(torch.cat([weak, normalized(strong(others))]))
        with torch.no_grad():
            own = functional.softmax(logits[len(x) : len(weak)], dim=1)
            other = functional.softmax(received(weak[len(x) :]), dim=1)
            (sure, label_own), (sure_other, label_other) = own.max(1), other.max(1)
            share = torch.exp(-math.log(2) / 0.05 * (sure - sure_other).abs())
            share = torch.where(sure >= _THRESHOLD, share, 0)[:, None]
            one, two = (
                functional.one_hot(y, NUM_CLASSES).float() for y in (label_own, label_other)
            )
            target = share * one + (1 - share) * two
            counts = (torch.maximum(sure, sure_other) >= _THRESHOLD).float()
        log_strong = functional.log_softmax(logits[len(weak) :], dim=1)
        term = functional.kl_div(log_strong, target, reduction="none").sum(1)
        return functional.cross_entropy(logits[: len(x)], label) + (counts * term).mean()

    def advance() -> Parameters:
        torch.manual_seed(2)
        sums = {key: torch.zeros_like(value) for key, value in server.items()}
        size = wanted.batch_size
        for labeled, unlabeled in zip(
            federation.partition.labeled, federation.partition.unlabeled, strict=True
        ):
            model.load_state_dict(server)
            optimizer = torch.optim.SGD(
                model.parameters(), lr=wanted.learning_rate, weight_decay=wanted.weight_decay
            )
            images, others = (
                torch.from_numpy(federation.x[rows]).float().permute(0, 3, 1, 2) / 255
                for rows in (labeled, unlabeled)
            )
            label = torch.from_numpy(federation.y[labeled]).long()
            for _ in range(wanted.epochs):
                order = torch.randperm(len(labeled)).repeat(len(unlabeled) // (2 * size))
                batches = torch.randperm(len(unlabeled)).split(2 * size)
                for first, second in zip(order.split(size), batches, strict=False):
                    optimizer.zero_grad()
                    loss(images[first], label[first], others[second]).backward()
                    optimizer.step()
            for key, value in model.state_dict().items():
                sums[key] += value
        model.load_state_dict({key: value / CLIENTS for key, value in sums.items()})
        return parameters(model, start)

    return advance
