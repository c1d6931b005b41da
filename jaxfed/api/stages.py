"""Steps of a prediction that a device computes: features, then the model.

A step that is a network is a function of arrays and can be exported (`jax.export`): its program then runs
without this package. Models of single clients (trees, say) are objects of the host and cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
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
from jaxfed.data.features import extraction
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import Predict, ServerState
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.kernels.devices import in_batches, rows_at_once
from jaxfed.training.round.evaluation import ModelPredict

PLATFORMS = ("cpu", "cuda")
_ALL_PLATFORMS = (*PLATFORMS, "rocm", "tpu")
_BYTECODE = b"ML\xefR"
_HOST_OPERATIONS = (b"custom_call", b"infeed_v", b"outfeed_v", b"send_v", b"recv_v")


@dataclass(frozen=True, eq=False)
class Stage:
    """A network's step: examples [n, ...] -> float32 [n, ...], in batches of one size.

    Attributes:
        leaves: arrays of the network by name, in the order that `function` takes.
        function: list of these arrays, a batch -> its result; can be traced.
        rows: size of a batch.
        program: `function` for batches of `rows`, as `jax.export` writes it; b"": not exported yet.
        origin: file that the program was read from, for errors; "": none.
    """

    leaves: Mapping[str, np.ndarray]
    function: Callable[[list[Any], Any], jax.Array]
    rows: int
    program: bytes = b""
    origin: str = ""

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Compute the step on the host's examples.

        Raises:
            UsageError: a program of a file does not run here.
        """
        try:
            return np.asarray(in_batches(self._of_batch, x, self.rows))
        except Exception as error:
            if not self.origin:
                raise
            text = " ".join(f"{type(error).__name__}: {error}".split())[:200]
            raise UsageError(f"{self.origin}: its network does not run here ({text})") from error

    def traced(self, x: jax.Array) -> jax.Array:
        """Compute the step in a program for any number of examples, from 1 on; the last one fills a batch."""
        batches = -(-x.shape[0] // self.rows)
        places = jnp.minimum(jnp.arange(batches * self.rows), x.shape[0] - 1)
        x_in_batches = x[places].reshape(batches, self.rows, *x.shape[1:])
        arrays = list(self.leaves.values())
        found = jax.lax.map(partial(self.function, arrays), x_in_batches)
        return found.reshape(batches * self.rows, *found.shape[2:])[jnp.arange(x.shape[0])]

    def exported(self, example: jax.ShapeDtypeStruct, platforms: tuple[str, ...]) -> Stage:
        """Return the step with its program for batches of such examples [...]."""
        if self.program:
            return self
        shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in self.leaves.values()]
        batch = jax.ShapeDtypeStruct((self.rows, *example.shape), example.dtype)
        with naming_lowering(platforms):
            program = export.export(jax.jit(self.function), platforms=platforms)(shapes, batch)
            check_program(program)
            return replace(self, program=bytes(program.serialize()))

    def result(self, example: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """Return the shape and type of the step's result for an example [...]."""
        batch = jax.ShapeDtypeStruct((self.rows, *example.shape), example.dtype)
        found = jax.eval_shape(self.function, list(self.leaves.values()), batch)
        return jax.ShapeDtypeStruct(found.shape[1:], found.dtype)

    @cached_property
    def _of_batch(self) -> Callable[[Any], jax.Array]:
        arrays = [jnp.asarray(leaf) for leaf in self.leaves.values()]
        return partial(jax.jit(self.function), arrays)


@dataclass(frozen=True, eq=False)
class HostStage:
    """Step of models that cannot be exported.

    Attributes:
        function: examples [n, ...] -> float32 [n, C].
        reason: why, in words.
    """

    function: Callable[[np.ndarray], np.ndarray]
    reason: str

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Compute the step."""
        return self.function(x)


def check_program(program: export.Exported) -> None:
    """Refuse a program that calls functions of the host, or talks to it or to other devices.

    Such a call names a function in this process, of whatever library, and passes it any bytes. Bytecode of
    MLIR has the names of its operations as plain bytes, so nothing needs to be parsed.

    Raises:
        UsageError: the program has such an operation, or is not MLIR bytecode.
    """
    code = program.mlir_module_serialized
    if not code.startswith(_BYTECODE):
        raise UsageError("its program is not in the form that jax.export writes")
    if found := [name.decode() for name in _HOST_OPERATIONS if name in code]:
        raise UsageError(f"its program has the operation {found[0]}, which is refused in files")


def without_flatbuffers() -> UsageError:
    """Error for a missing package that `jax.export` reads and writes programs with."""
    return UsageError("flatbuffers is missing; pip install -r requirements-serving.txt")


@contextmanager
def naming_lowering(platforms: tuple[str, ...]) -> Iterator[None]:
    """Turn errors of an export into one line.

    Raises:
        UsageError: flatbuffers is missing; a network that cannot be compiled for all of these platforms, or a
            platform that does not exist.
    """
    if unknown := [platform for platform in platforms if platform not in _ALL_PLATFORMS]:
        raise UsageError(
            f"{unknown[0]!r} is none",
            key="platforms",
            value=platforms,
            allowed=f"choose out of {', '.join(map(repr, _ALL_PLATFORMS))}",
        )
    try:
        yield
    except ImportError as error:
        raise without_flatbuffers() from error
    except UsageError:
        raise
    except Exception as error:  # of a network's operations, as JAX raises them
        text = " ".join(str(error).split())[:200]
        raise UsageError(
            f"the network cannot be exported for platforms={platforms} ({type(error).__name__}: {text})"
        ) from error


def stage_of(predict: Predict, state: ServerState, reason: str) -> Stage | HostStage:
    """Return the step of a method's model; `reason`: why it has none that can be exported."""
    if not isinstance(predict, ModelPredict):
        return HostStage(partial(predict, state), reason)
    return _network_stage(predict.needed(state), predict.probabilities, rows_at_once())


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
        network = _network_stage(*extraction(**pretrained_settings(config)))
        projected = simulation.projection(config.seed + repeat)
        if projected is None:
            return (network,)
        return network, _network_stage(projected, lambda project, x: project(x), rows_at_once())
    if kind == "federated_features":
        training = simulation.feature_training(config.seed + repeat)
        return (
            _network_stage(training.trained(Checkpoints(folder)), training.model.features, BATCH),
        )
    return ()


def _network_stage(state: Any, function: Callable[[Any, Any], jax.Array], rows: int) -> Stage:
    paths, structure = jax.tree_util.tree_flatten_with_path(state)
    leaves = {
        jax.tree_util.keystr(path, simple=True, separator="."): np.asarray(leaf)
        for path, leaf in paths
    }

    def of_leaves(arrays: list[Any], x: Any) -> jax.Array:
        return function(jax.tree.unflatten(structure, arrays), x)

    return Stage(leaves, of_leaves, rows)
