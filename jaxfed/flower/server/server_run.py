"""The server's side of a run: an experiment whose rounds ask clients over a network.

The loop, the workdir, evaluation, checkpoints and resumption are the simulation's
(`jaxfed.experiment.run.loop`). Only the algorithm is another one: its round asks the clients
(`jaxfed.flower.server.client_calls`). A server that is killed and started again continues from its
checkpoint, and the clients from their states of that time.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
from ml_collections import ConfigDict

from jaxfed.config.assembly import make_algorithm
from jaxfed.config.keys import refused
from jaxfed.config.sections import section_of
from jaxfed.data.encoding import encoding_of_arrays
from jaxfed.experiment.run import environment
from jaxfed.experiment.run.loop import Experiment
from jaxfed.experiment.run.progress import RunProgress
from jaxfed.experiment.store import compilation_cache
from jaxfed.experiment.store.data_form import DataForm
from jaxfed.experiment.store.workdir import open_workdir
from jaxfed.federation.algorithm import FederatedAlgorithm, on_network
from jaxfed.federation.census import Census, FeatureSums
from jaxfed.flower.messages.steps import Network
from jaxfed.flower.server import client_calls
from jaxfed.flower.server.client_calls import UnusableModel
from jaxfed.flower.server.exchange import TooFewClients
from jaxfed.flower.server.server_data import ServerData
from jaxfed.host.interruption import Interruption

STOPS = TooFewClients, UnusableModel  # the same command continues the run


def serve(
    network: Network, config: ConfigDict, workdir: Path, data: ServerData, **clock: Any
) -> dict[str, Any]:
    """Play a config's rounds over a network, in a workdir; returns the summary.

    `config` is resolved and checked; `clock` and `sleep` are for tests.

    Raises:
        UsageError: the method does not run on a network; the workdir is another run's.
        TooFewClients: fewer clients replied than the quorum asks for.
        UnusableModel: a round's mean is no model.
    """
    compilation_cache.enable(config.execution.compilation_cache)
    check(config, data)
    with (
        RunProgress(config.to_dict()) as progress,
        open_workdir(workdir, config.to_dict()) as directory,
    ):
        progress.working_on("waiting for clients")
        limits = section_of(config, "deployment")
        calls = client_calls.connect(
            network, config, limits, data, workdir, tell=progress.say, **clock
        )
        seen, (dtype, *shape) = calls.federation, data.shared.example
        assert seen.census is not None
        encoding = encoding_of_arrays(tuple(shape), dtype, tuple(data.shared.columns))
        names = data.shared.class_names
        DataForm(tuple(names), dtype, tuple(shape), encoding, seen.census).write(workdir)

        def make(config: ConfigDict, name: str, *_: Any, **__: Any) -> FederatedAlgorithm:
            return calls.algorithm(make_algorithm(config, name, seen), name)

        held: Any = SimpleNamespace(  # in place of a simulation
            numbers=np.full(len(seen.y), -1),
            names={"classes": list(names), "features": []},
            federation=lambda *_: seen,
            data_checksums=data.checksums,
            class_counts=lambda federation: {"class_names": list(names)},  # it knows no counts
        )
        experiment = Experiment(config, held, directory, progress, Interruption(), make=make)
        summary = {**experiment.run(), "environment": environment.describe()}
        directory.finish(summary)
    return summary


def check(config: ConfigDict, data: ServerData) -> None:
    """Check that the config's method runs on a network, before anybody is asked."""
    number = config.federation.num_clients
    if not number:
        wrong = "the server of a network does not see how many clients the data have"
        raise refused(config, "federation.num_clients", wrong, "use their number")
    if section_of(config, "clock").is_on:
        wrong = "a network has times of its own"
        raise refused(config, "clock.seconds_per_example", wrong, "use 0")
    nothing = np.zeros(data.shared.example[-1])
    census = Census(1, 1, FeatureSums(nothing, nothing, 1))  # of clients who have not been asked
    federation = data.federation(census, number)
    parties = on_network(make_algorithm(config, config.algorithm, federation))
    if parties is None:
        wrong = "this method runs in one process alone, not on a network"
        raise refused(config, "algorithm", wrong, "use launch.run")
    parties.server(lambda *_, **__: {}, federation)
