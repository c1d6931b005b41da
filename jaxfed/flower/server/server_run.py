"""The server's side of a run: an experiment whose rounds ask clients over a network.

    run(grid, config, workdir, held=folder)

The loop, the workdir, evaluation, checkpoints and resumption are the simulation's
(`jaxfed.experiment.run.loop`). Only the algorithm is another one: its round asks the clients
(`jaxfed.flower.server.client_calls`). A server that is killed and started again continues from its
checkpoint, and the clients from their states of that time.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from ml_collections import ConfigDict

from jaxfed.algorithms import ALGORITHMS
from jaxfed.config import methods
from jaxfed.config.assembly import make_algorithm
from jaxfed.config.data.simulation import few_rows
from jaxfed.config.keys import flatten
from jaxfed.config.sections import section_of
from jaxfed.errors import UsageError
from jaxfed.experiment.run import environment
from jaxfed.experiment.run.loop import Experiment
from jaxfed.experiment.run.progress import RunProgress
from jaxfed.experiment.store import compilation_cache
from jaxfed.experiment.store.data_form import DataForm
from jaxfed.experiment.store.workdir import open_workdir
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.census import Census, FeatureSums
from jaxfed.federation.clients import Federation
from jaxfed.flower.messages.network import Network
from jaxfed.flower.messages.records import one_line
from jaxfed.flower.server import client_calls, server_data
from jaxfed.flower.server.client_calls import UnusableModel
from jaxfed.flower.server.exchange import TooFewClients
from jaxfed.flower.server.server_data import ServerData
from jaxfed.flower.server.stages import sites
from jaxfed.host.interruption import Interruption

if TYPE_CHECKING:
    from flwr.serverapp import Grid

STOPS = TooFewClients, UnusableModel  # the same command continues the run


def run(grid: Grid, config: ConfigDict, place: Path, *, held: Path) -> None:
    """Play a config's rounds with the clients of a Flower grid.

    Args:
        grid: reaches the nodes.
        config: resolved and checked.
        place: the workdir.
        held: folder of what the server holds (`jaxfed.flower.deployment.dealing`).

    Raises:
        UsageError: the method does not run on a network; data are missing; the workdir is another run's.
        TooFewClients: fewer clients replied than the quorum asks for.
    """
    from jaxfed.flower.messages.grid_messages import GridNetwork

    serve(GridNetwork(grid), config, place, server_data.read(held))


def serve(
    network: Network, config: ConfigDict, place: Path, data: ServerData, **clock: Any
) -> dict[str, Any]:
    """Play a config's rounds over a network; returns the summary. `clock` and `sleep` are for tests."""
    compilation_cache.enable(config.execution.compilation_cache)
    check(config, data)
    with (
        RunProgress(config.to_dict()) as progress,
        open_workdir(place, config.to_dict()) as directory,
    ):
        progress.working_on("waiting for clients")
        limits = section_of(config, "deployment")
        calls = client_calls.connect(
            network, config, limits, data, place, tell=progress.say, **clock
        )
        for line in few_rows(len(calls.federation.test), len(calls.federation.validation)):
            progress.note(line)
        census = calls.federation.census
        assert census is not None
        dtype, *shape = data.shared.example
        names = tuple(data.shared.class_names)
        DataForm(names, dtype, tuple(shape), data.encoding, census).write(place)

        def make(seen: ConfigDict, name: str, *_: Any, **__: Any) -> FederatedAlgorithm:
            return calls.algorithm(make_algorithm(seen, name, calls.federation), name)

        held = _InPlaceOfSimulation(data, calls.federation)
        experiment = Experiment(config, held, directory, progress, Interruption(), make=make)
        summary = {
            **experiment.run(),
            "environment": environment.describe(),
            "sites": sites(place, [one_line(said.name) for said in calls.hellos], census),
        }
        directory.finish(summary)
    return summary


def check(config: ConfigDict, data: ServerData) -> None:
    """Check that the config's method runs on a network, before anybody is asked."""
    name, one_run = config.algorithm, "a network plays one run of one method"
    no_code = "nodes have the methods of jaxfed, and a server sends no code"
    is_foreign = methods.algorithm_of(config, name) in ALGORITHMS.from_outside()
    has_clock, own_times = section_of(config, "clock").is_on, "a network has times of its own"
    for is_wrong, key, wrong, allowed in (
        (config.num_repeats != 1, "num_repeats", one_run, "use 1"),
        (config.baselines != (), "baselines", one_run, "use ()"),
        (is_foreign, "algorithm", no_code, "use launch.run for a method of your own"),
        (has_clock, "clock.seconds_per_example", own_times, "use 0"),
    ):
        if is_wrong:
            value = flatten(config.to_dict())
            raise UsageError(wrong, key=f"config.{key}", value=dict(value)[key], allowed=allowed)
    nothing = np.zeros(data.shared.example[-1])
    census = Census(1, 1, FeatureSums(nothing, nothing, 1))  # of clients who have not been asked
    number = section_of(config, "deployment").num_nodes(config.federation.num_clients)
    federation = data.federation(census, number)
    algorithm = make_algorithm(config, name, federation)
    if algorithm.sides is None:
        raise UsageError(
            "this method runs in one process alone, not on a network",
            key="config.algorithm",
            value=name,
            allowed="use launch.run",
        )
    algorithm.sides().server(lambda *_, **__: {}, federation)


@dataclass
class _InPlaceOfSimulation:
    """Clients of an experiment as the server knows them."""

    held: ServerData
    seen: Federation

    @property
    def numbers(self) -> np.ndarray:
        return self.held.numbers

    @property
    def names(self) -> dict[str, list[str]]:
        return {"classes": list(self.held.shared.class_names), "features": []}

    def federation(self, *_: Any) -> Federation:
        return self.seen

    def data_checksums(self) -> dict[str, str]:
        return self.held.checksums()

    def class_counts(self, federation: Federation) -> dict[str, Any]:
        """No counts of classes: a server does not know the clients'."""
        del federation
        return {"class_names": self.held.shared.class_names}
