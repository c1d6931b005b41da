"""A trained model as a function of raw rows.

predict = result.predictor("fedavg")
predict({"age": 41, "job": "nurse"})     # probabilities, float32 [1, C], of predict.classes

Rows are encoded on the host, as in the run. The steps after that, features and the model, are computed by a
device. A workdir is the stored form of a predictor: `jaxfed.open(workdir).predictor()`.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors.numpy
from ml_collections import ConfigDict

from jaxfed.config.assembly import make_algorithm
from jaxfed.config.check import check
from jaxfed.config.data.preprocessing import BATCH, pretrained_settings
from jaxfed.config.data.simulation import Simulation
from jaxfed.config.methods import clients_for
from jaxfed.config.stored import restored, without_gone
from jaxfed.data.features import extraction
from jaxfed.errors import UsageError
from jaxfed.experiment.store.data_form import DataForm, form_from
from jaxfed.experiment.store.workdir import write_json
from jaxfed.federation.algorithm import FederatedAlgorithm, ServerState, on_network
from jaxfed.federation.clients import Federation
from jaxfed.federation.evaluate import evaluated_by
from jaxfed.host import safe_files, storage
from jaxfed.host.checkpoint import Checkpoints, current_name, named_arrays, with_arrays
from jaxfed.host.location import folder_to_write, location
from jaxfed.kernels.devices import in_batches, rows_at_once

Step = Callable[[np.ndarray], np.ndarray]  # [n, ...] -> float32 [n, ...]
_DESCRIBED, _ARRAYS = "predictor.json", "state.safetensors"


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


def method_and_form(
    config: ConfigDict, name: str, repeat: int, federation: Federation, *, last: bool = False
) -> tuple[FederatedAlgorithm, ServerState]:
    """Return a method for the clients of a run, and a state of the form that the run has saved.

    Raises:
        UsageError: it trains no model, or cannot be made for these clients.
    """
    federation = clients_for(config, name, federation)
    algorithm = make_algorithm(config, name, federation, repeat)
    if algorithm.predict is None:
        raise UsageError("it labels its clients' points and trains no model")
    init = algorithm.init
    parties = None if federation.census is None else on_network(algorithm)
    if parties is not None:
        if parties.evaluate is not None:
            raise UsageError("its models and labels stay at the clients of the network")
        # Without rows of clients' states.
        init, _ = parties.server(lambda *_, **__: {}, federation)
    state = init(jax.random.fold_in(jax.random.key(config.seed + repeat), 0), federation)
    is_selected = algorithm.validate and not last
    return algorithm, evaluated_by(algorithm)(state) if is_selected else state


def step_of(algorithm: FederatedAlgorithm, state: ServerState) -> Step:
    """Return the step of a trained method."""
    assert algorithm.predict is not None
    return partial(algorithm.predict, state)


@dataclass(frozen=True, eq=False, repr=False)
class Predictor:
    """Probabilities of the classes of raw rows.

    Attributes:
        config, method, repeat: of the run.
        form: classes, and the encoding of rows to examples as in the run.
        state: the trained state.
        steps: functions from examples to probabilities.
    """

    config: ConfigDict
    method: str
    repeat: int
    form: DataForm
    state: ServerState
    steps: tuple[Step, ...]

    def __call__(self, rows: Any) -> np.ndarray:
        """Return probabilities, float32 [n, C], of one row or several, as the data set's owner has them.

        Raises:
            UsageError: rows of another kind, a missing column, a text that the training data do not have.
        """
        x = self.form.encoding(rows)
        for step in self.steps:
            x = step(x)
        return x

    def __repr__(self) -> str:
        """One line: the method, its classes, the rows that it takes."""
        return f"Predictor({self.method}: {len(self.classes)} classes; takes {self.accepts})"

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, in the order of the probabilities."""
        return self.form.class_names

    @property
    def accepts(self) -> str:
        """The kinds of rows that it takes, in words."""
        return self.form.encoding.encoder.accepts

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> Predictor:
        """Read a saved predictor. A method or network of your own needs the import that registers it first.

        Raises:
            UsageError: no saved predictor, one that has changed since it was saved, or of a method that has
                another state in this version of jaxfed.
        """
        path = location(folder, "folder")
        file = path / _DESCRIBED
        described = safe_files.json_object(safe_files.content_of(file), file)
        content = safe_files.content_of(path / _ARRAYS)
        with safe_files.guarded(path):
            config, form = restored(without_gone(described["config"])), form_from(described["form"])
            method, repeat = str(described["method"]), int(described["repeat"])
            if described["sha256"] != hashlib.sha256(content).hexdigest():
                wrong = f"{path / _ARRAYS} has changed since it was saved; restore it"
                raise safe_files.Damaged(wrong)
            stored = safetensors.numpy.load(content)
            arrays = {current_name(name): value for name, value in stored.items()}
        check(config)
        federation = form.federation()
        algorithm, alike = method_and_form(config, method, repeat, federation)
        if _forms(named_arrays(alike)) != _forms(arrays):
            raise UsageError(f"{path}: {method!r} has another state in this version of jaxfed")
        state = with_arrays(alike, arrays)
        return cls(config, method, repeat, form, state, (step_of(algorithm, state),))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the predictor into a new folder, for `load`, and return the folder.

        Raises:
            UsageError: the folder is not empty; a network computes the features of the rows; the method
                cannot be made without the data of its run.
        """
        path = folder_to_write(folder, "folder")
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UsageError(
                "is not empty", key="folder", value=str(path), allowed="give a new one"
            )
        config, method, form = self.config, self.method, self.form
        arrays, wrong = named_arrays(self.state), f"{self.method!r} needs its workdir: "
        if len(self.steps) > 1:
            raise UsageError(f"{wrong}a network computes the features of its rows")
        try:
            _, alike = method_and_form(config, method, self.repeat, form.federation())
        except UsageError as error:
            raise UsageError(f"{wrong}{error}") from error
        if _forms(named_arrays(alike)) != _forms(arrays):
            raise UsageError(f"{wrong}its state depends on the clients' examples")
        content = safetensors.numpy.save(arrays)
        path.mkdir(parents=True, exist_ok=True)
        with storage.whole_file(path / _ARRAYS, "wb") as stream:
            stream.write(content)
        described = {
            "config": config.to_dict(),
            **{"method": method, "repeat": self.repeat, "form": form.described()},
            "sha256": hashlib.sha256(content).hexdigest(),
        }
        write_json(path / _DESCRIBED, described)
        return path


def _forms(arrays: Mapping[str, np.ndarray]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (array.dtype.name, array.shape) for name, array in arrays.items()}
