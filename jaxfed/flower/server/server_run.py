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
from jaxfed.config.sections import section_of
from jaxfed.errors import UsageError
from jaxfed.experiment.run import environment
from jaxfed.experiment.run.loop import Experiment
from jaxfed.experiment.run.progress import RunProgress
from jaxfed.experiment.store import compilation_cache
from jaxfed.experiment.store.data_form import DataForm
from jaxfed.experiment.store.workdir import open_workdir
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clients import Federation
from jaxfed.flower.messages.network import Network
from jaxfed.flower.messages.steps import one_line
from jaxfed.flower.server import client_calls, server_data
from jaxfed.flower.server.server_data import ServerData
from jaxfed.flower.server.stages import sites
from jaxfed.host.interruption import Interruption

if TYPE_CHECKING:
    from flwr.serverapp import Grid


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
        few = few_rows(len(calls.federation.test), len(calls.federation.validation))
        for line in few:
            progress.note(line)
        census = calls.federation.census
        assert census is not None
        form = data.class_names, data.dtype.name, data.example, data.encoding
        DataForm(*form, census).write(place)

        def make(seen: ConfigDict, name: str, *_: Any, **__: Any) -> FederatedAlgorithm:
            return calls.algorithm(make_algorithm(seen, name, calls.federation), name)

        held = _InPlaceOfSimulation(data, calls.federation)
        experiment = Experiment(config, held, directory, progress, Interruption(), make=make)
        names = [one_line(said.name) for _, said in sorted(calls.clients.hellos.items())]
        summary = {
            **experiment.run(),
            "environment": environment.describe(),
            "sites": sites(place, names, census),
        }
        directory.finish(summary)
    return summary


def check(config: ConfigDict, data: ServerData) -> None:
    """Check that the config's method runs on a network, before anybody is asked."""
    for key, only in (("num_repeats", 1), ("baselines", ())):
        if config[key] != only:
            raise UsageError(
                "a network plays one run of one method",
                key=f"config.{key}",
                value=config[key],
                allowed=f"use {only}",
            )
    if methods.algorithm_of(config, config.algorithm) in ALGORITHMS.from_outside():
        raise UsageError(
            "nodes have the methods of jaxfed, and a server sends no code",
            key="config.algorithm",
            value=config.algorithm,
            allowed="use launch.run for a method of your own",
        )
    name, number = (
        config.algorithm,
        section_of(config, "deployment").num_nodes(config.federation.num_clients),
    )
    federation = data.federation(client_calls.no_census(data), number)
    algorithm = make_algorithm(config, name, federation)
    if algorithm.sides is None:
        raise UsageError(
            "this method runs in one process alone, not on a network",
            key="config.algorithm",
            value=name,
            allowed="use launch.run",
        )
    if section_of(config, "clock").is_on:
        raise UsageError(
            "a network has times of its own",
            key="config.clock.seconds_per_example",
            value=config.clock.seconds_per_example,
            allowed="use 0",
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
        return {"classes": list(self.held.class_names), "features": []}

    def federation(self, *_: Any) -> Federation:
        return self.seen

    def data_checksums(self) -> dict[str, str]:
        return self.held.checksums()

    def class_counts(self, federation: Federation) -> dict[str, Any]:
        """No counts of classes: a server does not know the clients'."""
        del federation
        return {"class_names": self.held.class_names}
