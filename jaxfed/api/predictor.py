"""A trained model as a function of raw rows.

predict = result.predictor("fedavg")
predict({"age": 41, "job": "nurse"})     # probabilities, float32 [1, C], of predict.classes

Rows are encoded on the host, as in the run. The steps after that, features and the model, are computed by a
device. A workdir is the stored form of a predictor: `jaxfed.open(workdir).predictor()`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from jaxfed.config.data.preprocessing import BATCH, pretrained_settings
from jaxfed.config.data.simulation import Simulation
from jaxfed.data.encoding import RowEncoding
from jaxfed.data.features import extraction
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.kernels.devices import in_batches, rows_at_once

Step = Callable[[np.ndarray], np.ndarray]  # [n, ...] -> float32 [n, ...]


def _network(function: Callable[[Any, Any], jax.Array], state: Any, rows: int) -> Step:
    """Return the step of a network on the host's examples, in batches of `rows`."""
    of_batch = partial(jax.jit(function), jax.tree.map(jnp.asarray, state))
    return lambda x: np.asarray(in_batches(of_batch, x, rows))


def feature_steps(
    config: ConfigDict, simulation: Simulation, repeat: int, folder: Path
) -> tuple[Step, ...]:
    """Return the steps that compute the run's features; none if clients hold examples as they are."""
    kind = config.preprocessing.kind
    if kind == "pretrained":
        state, features, rows = extraction(**pretrained_settings(config))
        network = _network(features, state, rows)
        projected = simulation.projection(config.seed + repeat)
        if projected is None:
            return (network,)
        return network, _network(lambda project, x: project(x), projected, rows_at_once())
    if kind == "federated_features":
        training = simulation.feature_training(config.seed + repeat)
        return (_network(training.model.features, training.trained(Checkpoints(folder)), BATCH),)
    return ()


@dataclass(frozen=True, eq=False, repr=False)
class Predictor:
    """Probabilities of the classes of raw rows.

    Attributes:
        method: its name in the run.
        classes: their names, in the order of the probabilities.
        encoding: from rows to examples, as in the run.
        steps: from examples to probabilities.
    """

    method: str
    classes: tuple[str, ...]
    encoding: RowEncoding
    steps: tuple[Step, ...]

    def __call__(self, rows: Any) -> np.ndarray:
        """Return probabilities, float32 [n, C], of one row or several.

        Args:
            rows: as the data set's publisher or owner has them (`accepts`).

        Raises:
            UsageError: rows of another kind, a missing column, a text that the training data do not have.
        """
        x = self.encoding(rows)
        for step in self.steps:
            x = step(x)
        return x

    def __repr__(self) -> str:
        """One line: the method, its classes, the rows that it takes."""
        return f"Predictor({self.method}: {len(self.classes)} classes; takes {self.accepts})"

    @property
    def accepts(self) -> str:
        """The kinds of rows that it takes, in words."""
        return self.encoding.encoder.accepts
