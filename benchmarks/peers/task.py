"""The experiment shared by all peers: clients, their images, initial weights, and settings."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

_SETTINGS, _ARRAYS = "task.json", "task.npz"
_START = "start/"


@dataclass(frozen=True)
class Settings:
    """Settings of FedAvg.

    Attributes:
        rounds: of the experiment.
        cohort_size: clients a round.
        batch_size: of a client's one epoch.
        learning_rate: of its SGD; the server takes the clients' mean.
        evaluate_every: rounds between evaluations on the test set; the last round is always evaluated.
        num_classes: C.
    """

    rounds: int
    cohort_size: int
    batch_size: int
    learning_rate: float
    evaluate_every: int
    num_classes: int

    def is_evaluated(self, round_number: int) -> bool:
        """True if the test set is evaluated after this round, counted from 1."""
        return round_number == self.rounds or round_number % self.evaluate_every == 0


@dataclass(frozen=True)
class Task:
    """The experiment.

    Attributes:
        settings: see there.
        images: uint8 [n, H, W, c].
        labels: int64 [n].
        clients: int64 [M, N], the images of each client.
        test_images: uint8 [n', H, W, c].
        test_labels: int64 [n'].
        mean: float32 [c], of the clients' pixels over 255.
        deviation: float32 [c].
        start: the network's initial weights, float32; `hidden.0.kernel` [in, out], `units.0.linear.kernel`
            [h, w, in, out] and so on (`layers`). They define the network: 3 x 3 convolutions with a bias,
            ReLU and max-pool 2, dense layers with ReLU, the head.
    """

    settings: Settings
    images: np.ndarray
    labels: np.ndarray
    clients: np.ndarray
    test_images: np.ndarray
    test_labels: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    start: dict[str, np.ndarray]

    @cached_property
    def x(self) -> np.ndarray:
        """float32 [n, H, W, c], normalized."""
        return self._normalized(self.images)

    @cached_property
    def x_test(self) -> np.ndarray:
        """float32 [n', H, W, c], normalized."""
        return self._normalized(self.test_images)

    def _normalized(self, images: np.ndarray) -> np.ndarray:
        scale = 1 / (255 * self.deviation)
        return images * scale.astype(np.float32) - self.mean / self.deviation

    def save(self, folder: Path) -> None:
        """Save the task for `load`."""
        (folder / _SETTINGS).write_text(json.dumps(asdict(self.settings)))
        arrays: dict[str, Any] = {name: getattr(self, name) for name in _array_names()}
        arrays |= {_START + name: value for name, value in self.start.items()}
        np.savez(folder / _ARRAYS, **arrays)


def load(folder: Path) -> Task:
    """Load a saved task."""
    with np.load(folder / _ARRAYS) as file:
        arrays: dict[str, Any] = dict(file)
    start = {
        name.removeprefix(_START): arrays.pop(name) for name in [*arrays] if name.startswith(_START)
    }
    settings = Settings(**json.loads((folder / _SETTINGS).read_text()))
    return Task(settings, start=start, **arrays)


def layers(parameters: Iterable[str]) -> list[str]:
    """Names of layers in order, from parameter names as in `Task.start`; the head is last."""
    names = {name.rpartition(".")[0] for name in parameters}
    return sorted(names, key=lambda name: (name == "head", name == "dense", name))


def _array_names() -> list[str]:
    return [name for name in Task.__annotations__ if name not in ("settings", "start")]
