"""A trained model as a function of raw rows, and as a program for servers without this package.

predict = result.predictor("fedavg")
predict({"age": 41, "job": "nurse"})     # probabilities, float32 [1, C], of predict.classes
predict.save_exported("model.program")   # `jax.export` reads it, without jaxfed

Rows are encoded on the host. The steps after that, features and the model, are computed by a device. A step
that is a network is a function of arrays and can be exported. Models of single clients (trees, say) are
objects of the host and cannot.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from ml_collections import ConfigDict

from jaxfed.config.data.preprocessing import BATCH, pretrained_settings
from jaxfed.config.data.simulation import Simulation
from jaxfed.data.encoding import RowEncoding
from jaxfed.data.features import extraction
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import Predict, ServerState
from jaxfed.host import storage
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.host.location import file_to_write
from jaxfed.kernels.devices import in_batches, rows_at_once
from jaxfed.training.round.evaluation import ModelPredict

PLATFORMS = ("cpu", "cuda")
_ALL_PLATFORMS = (*PLATFORMS, "rocm", "tpu")


@dataclass(frozen=True, eq=False)
class Stage:
    """A network's step: examples [n, ...] -> float32 [n, ...], in batches of one size.

    Attributes:
        state: arrays of the network.
        function: these arrays, a batch -> its result; can be traced.
        rows: size of a batch.
    """

    state: Any
    function: Callable[[Any, Any], jax.Array]
    rows: int

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Compute the step on the host's examples."""
        return np.asarray(in_batches(self._of_batch, x, self.rows))

    def traced(self, x: jax.Array) -> jax.Array:
        """Compute the step in a program for any number of examples, from 1 on; the last one fills a batch."""
        batches = -(-x.shape[0] // self.rows)
        places = jnp.minimum(jnp.arange(batches * self.rows), x.shape[0] - 1)
        x_in_batches = x[places].reshape(batches, self.rows, *x.shape[1:])
        found = jax.lax.map(partial(self.function, self.state), x_in_batches)
        return found.reshape(batches * self.rows, *found.shape[2:])[jnp.arange(x.shape[0])]

    @cached_property
    def _of_batch(self) -> Callable[[Any], jax.Array]:
        return partial(jax.jit(self.function), jax.tree.map(jnp.asarray, self.state))


def stage_of(predict: Predict, state: ServerState) -> Stage | Callable[[np.ndarray], np.ndarray]:
    """Return the step of a method's model; models of single clients have one that cannot be exported."""
    if not isinstance(predict, ModelPredict):
        return partial(predict, state)
    return Stage(predict.needed(state), predict.probabilities, rows_at_once())


def feature_stages(
    config: ConfigDict, simulation: Simulation, repeat: int, folder: Path
) -> tuple[Stage, ...]:
    """Return the step that computes the run's features; none if clients hold examples as they are.

    Args:
        config: of the run.
        simulation: its data.
        repeat: number of the repeat.
        folder: of the repeat's model of 'federated_features'.
    """
    kind = config.preprocessing.kind
    if kind == "pretrained":
        network = Stage(*extraction(**pretrained_settings(config)))
        projected = simulation.projection(config.seed + repeat)
        if projected is None:
            return (network,)
        return network, Stage(projected, lambda project, x: project(x), rows_at_once())
    if kind == "federated_features":
        training = simulation.feature_training(config.seed + repeat)
        return (Stage(training.trained(Checkpoints(folder)), training.model.features, BATCH),)
    return ()


@dataclass(frozen=True, eq=False, repr=False)
class Predictor:
    """Probabilities of the classes of raw rows.

    Attributes:
        method: its name in the run.
        classes: their names, in the order of the probabilities.
        encoding: from rows to examples, as in the run.
        stages: from examples to probabilities.
    """

    method: str
    classes: tuple[str, ...]
    encoding: RowEncoding
    stages: tuple[Stage | Callable[[np.ndarray], np.ndarray], ...]

    def __call__(self, rows: Any) -> np.ndarray:
        """Return probabilities, float32 [n, C], of one row or several.

        Args:
            rows: as the data set's publisher or owner has them (`accepts`).

        Raises:
            UsageError: rows of another kind, a missing column, a text that the training data do not have.
        """
        x = self.encoding(rows)
        for stage in self.stages:
            x = stage(x)
        return x

    def __repr__(self) -> str:
        """One line: the method, its classes, the rows that it takes."""
        return f"Predictor({self.method}: {len(self.classes)} classes; takes {self.accepts})"

    @property
    def accepts(self) -> str:
        """The kinds of rows that it takes, in words."""
        return self.encoding.encoder.accepts

    @property
    def inputs(self) -> tuple[str, ...]:
        """Names of the numbers of a row that the exported program takes; () for arrays and images."""
        return self.encoding.encoder.names

    def encode(self, rows: Any) -> np.ndarray:
        """Return rows as the exported program takes them, [n, ...].

        Raises:
            UsageError: as for a call.
        """
        x = self.encoding.encoder(rows)
        self.encoding.prepared(x)  # which refuses gaps that the run never had
        is_narrow = self.encoding.scaling is None and x.dtype == np.float64
        return x.astype(np.float32) if is_narrow else x

    def export(self, *, platforms: tuple[str, ...] = PLATFORMS) -> bytes:
        """Return the numeric part as a program that runs without jaxfed.

            program = jax.export.deserialize(bytearray(content))
            program.call(x)        # x [n, ...] with any n from 1 on -> probabilities, float32 [n, C]

        x is what `encode` gives for rows, before scaling and features: uint8 images, or float32 numbers,
        NaN where one is missing; float64 under `jax.enable_x64()` if a column needs it (`Column.is_wide`).
        `inputs` names the numbers of a table, where a text is a number of its own (0 or 1). Weights are
        constants of the program. JAX promises that its later versions read it for six months.

        Args:
            platforms: devices that it can be used on: "cpu", "cuda", "tpu", "rocm".

        Raises:
            UsageError: a model of each client; a network that cannot be compiled for a platform; flatbuffers
                is missing.
        """
        if unknown := [each for each in platforms if each not in _ALL_PLATFORMS]:
            allowed = f"choose out of {', '.join(map(repr, _ALL_PLATFORMS))}"
            raise UsageError(
                f"{unknown[0]!r} is none", key="platforms", value=platforms, allowed=allowed
            )
        stages = []
        for stage in self.stages:
            if not isinstance(stage, Stage):
                raise UsageError(
                    f"export: {self.method!r} has a model of each client; only a single network can be "
                    "exported"
                )
            stages.append(stage)
        encoding = self.encoding
        given = encoding.encoder.blank()
        prepared = encoding.prepared(given)

        def networks(x: jax.Array) -> jax.Array:
            for stage in stages:
                x = stage.traced(x)
            return x

        try:
            program = export.export(jax.jit(networks), platforms=platforms)(_any_number(prepared))

            def whole(x: jax.Array) -> jax.Array:
                return program.call(_prepared(encoding, x, prepared.shape[1:]))

            # Scaling is computed in float64, as in the run; networks are traced already.
            with jax.enable_x64(encoding.scaling is not None):
                all_steps = export.export(jax.jit(whole), platforms=platforms)(_any_number(given))
            return bytes(all_steps.serialize())
        except ImportError as error:
            raise UsageError(
                "flatbuffers is missing; pip install -r requirements-serving.txt"
            ) from error
        except Exception as error:  # of a network's operations, as JAX raises them
            text = " ".join(str(error).split())[:200]
            raise UsageError(
                f"the network cannot be exported for platforms={platforms} ({type(error).__name__}: {text})"
            ) from error

    def save_exported(
        self, file: str | os.PathLike[str], *, platforms: tuple[str, ...] = PLATFORMS
    ) -> Path:
        """Write `export` to a file, whose folders are created; return its path.

        Raises:
            UsageError: as for `export`; a file that cannot be written.
        """
        path = file_to_write(file, "file")
        content = self.export(platforms=platforms)
        path.parent.mkdir(parents=True, exist_ok=True)
        with storage.whole_file(path, "wb") as stream:
            stream.write(content)
        return path


def _prepared(encoding: RowEncoding, x: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """`RowEncoding.prepared` in a program."""
    if encoding.gaps is not None and encoding.gaps.columns:
        columns = jnp.asarray(encoding.gaps.columns, jnp.int32)
        is_gap = jnp.isnan(x[:, columns])
        medians = jnp.asarray(encoding.gaps.medians, jnp.float32)
        filled = jnp.where(is_gap, medians[None], x[:, columns])
        x = jnp.concatenate([x.at[:, columns].set(filled), is_gap.astype(jnp.float32)], axis=1)
    if encoding.scaling is not None:
        mean, scale = (jnp.asarray(each, jnp.float64)[None] for each in encoding.scaling)
        x = ((x.astype(jnp.float64) - mean) * scale).astype(jnp.float32)
    return x.reshape(x.shape[0], *shape).astype(jnp.float32) if encoding.is_flat else x


def _any_number(examples: np.ndarray) -> jax.ShapeDtypeStruct:
    """Shape and type of any number of such examples [n, ...]."""
    shape = export.symbolic_shape(", ".join(["n", *map(str, examples.shape[1:])]))
    return jax.ShapeDtypeStruct(shape, examples.dtype)
