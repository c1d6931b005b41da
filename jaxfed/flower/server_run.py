"""The server's side of a run: an experiment whose rounds ask clients over a network.

    run(grid, config, workdir, held=folder)

The loop, the workdir, evaluation, checkpoints and resumption are the simulation's (`jaxfed.experiment.run.loop`).
Only the algorithm is another: its round asks the nodes (`FederatedAlgorithm.sides`). A server that is killed and
started again continues from its checkpoint, and the clients from their states of that time.

    stages.jsonl    beside metrics.jsonl: one line when a stage begins, one when it ends (who replied, who is
                    lost and why, seconds, bytes), one at the end of a round with the step of each client's state
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
from absl import logging
from ml_collections import ConfigDict

from jaxfed.config.build.assembly import make_algorithm
from jaxfed.config.deployment import Deployment, deployment_of
from jaxfed.errors import UsageError
from jaxfed.experiment.run import environment
from jaxfed.experiment.run.loop import Experiment
from jaxfed.experiment.run.progress import RunProgress
from jaxfed.experiment.store import compilation_cache
from jaxfed.experiment.store.workdir import open_workdir
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.census import census_of
from jaxfed.federation.clients import Federation
from jaxfed.flower import admission, hello, pytrees, records, server_data, setup
from jaxfed.flower.admission import Admitted, Expected
from jaxfed.flower.client_run import MESSAGE, REPLY, SECONDS, SETUP
from jaxfed.flower.exchange import Answers, Exchange
from jaxfed.flower.network import Network
from jaxfed.flower.records import Record
from jaxfed.flower.server_data import ServerData
from jaxfed.flower.setup import Setup
from jaxfed.host.checkpoint import Checkpoints
from jaxfed.host.interruption import Interruption

if TYPE_CHECKING:
    from flwr.serverapp import Grid

STAGES = "stages.jsonl"
_CONTINUES = "the run stops; the same command continues it"


def run(grid: Grid, config: ConfigDict, place: Path, *, held: Path | None) -> None:
    """Play a config's rounds with the clients of a Flower grid.

    Args:
        grid: reaches the nodes.
        config: resolved and checked.
        place: the workdir.
        held: folder of what the server holds (`jaxfed.flower.dealing`).

    Raises:
        UsageError: the method does not run on a network; data are missing; the workdir is another run's.
        TooFewClients: fewer clients replied than the quorum asks for.
    """
    from jaxfed.flower.grid_messages import GridNetwork

    if held is None:
        raise UsageError("--held is missing: the folder of what the server holds (shared.json, test.npz)")
    serve(GridNetwork(grid), config, place, server_data.read(held))


def serve(
    network: Network,
    config: ConfigDict,
    place: Path,
    data: ServerData,
    **clock: Any,
) -> dict[str, Any]:
    """Play a config's rounds over a network: the summary. `clock` and `sleep` are as in `Exchange`."""
    compilation_cache.enable(config.execution.compilation_cache)
    limits = deployment_of(config)
    number = limits.num_nodes(config.federation.num_clients)
    clients = _Clients.admitted(network, config, limits, data, number, clock)
    experiment_data = _Data(data, clients.federation)
    with (
        open_workdir(place, config.to_dict()) as directory,
        RunProgress(config.to_dict()) as progress,
    ):
        clients.open(place)

        def make(seen: ConfigDict, name: str, *arguments: Any, **options: Any) -> FederatedAlgorithm:
            del arguments, options
            return clients.algorithm(make_algorithm(seen, name, clients.federation))

        experiment = Experiment(config, experiment_data, directory, progress, Interruption())  # type: ignore[arg-type]
        results = _replaced(experiment, make).run()
        summary = {**results, "environment": environment.describe()}
        directory.finish(summary)
    return summary


def _replaced(experiment: Experiment, make: Any) -> Experiment:
    from dataclasses import replace

    return replace(experiment, make=make)


@dataclass
class _Data:
    """Takes the place of a `Simulation`."""

    held: ServerData
    seen: Federation

    @property
    def numbers(self) -> Any:
        return self.held.numbers

    def federation(self, *_: Any) -> Federation:
        return self.seen

    def data_checksums(self) -> dict[str, str]:
        return self.held.checksums()

    def class_counts(self, federation: Federation) -> dict[str, Any]:
        del federation
        return {"class_names": self.held.class_names}
