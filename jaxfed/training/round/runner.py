"""Execution of a round's program in one process: devices, tables of clients' states, the memory limit.

a cohort is sorted, and padded to a multiple of the devices                                       (`placed`)
of large tables, the cohort's rows are the program's arguments, and are written back
if memory is too small for all clients at once, the program takes some at a time
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax

from jaxfed.federation.cohort import Array, Cohort, arranged
from jaxfed.federation.execution.client_map import MapClients, is_one_cpu, jitted, on_first_device
from jaxfed.federation.ragged import on_device
from jaxfed.training.client_execution import ClientExecution
from jaxfed.training.pseudo_labels.pseudo_label import PseudoLabel, PseudoLabels
from jaxfed.training.round.parts import Parts
from jaxfed.training.server.aggregate import check_weights
from jaxfed.training.server.client_rows import of_cohort, written_back
from jaxfed.training.server.server_state import ServerState


class Stage(NamedTuple):
    """One of a run's two stages, in this process or on a network.

    Fields:
        source: name of the source of labels.
        first_round: number of rounds before it.
        label: the labeling by this source.
        run: `jaxfed.training.round.round.trained`, a function of the state, the cohort, its labels, and the
            further arguments from `received` on.
    """

    source: str
    first_round: int
    label: PseudoLabel
    run: Callable[..., Outcome]


class Outcome(NamedTuple):
    """Result of the training in a round.

    Fields:
        state: the state after the server's step.
        metrics: of the clients, and of a server that trained beside them.
        sent: {kind of message: int32 [K]}, `ClientUpdate.sent`.
        uploads: `ClientUpdate.upload`, [K, ...].
        client_id: int32 [K], the clients whose updates these are; on a network some may have left.
        weights: the clients' weights by a user's own weighting, to be checked (`check_weights`); else ().
    """

    state: ServerState
    metrics: dict[str, jax.Array]
    sent: Any
    uploads: Any
    client_id: Array
    weights: Any = ()


def placed(cohort: Cohort, execution: ClientExecution) -> Cohort:
    """Return the cohort sorted and padded, with its examples on the device, once for all of a round."""
    cohort = arranged(cohort, execution.clients_multiple)
    return cohort._replace(x=on_device(cohort.x))


def simulated(parts: Parts, trained: Callable[..., Outcome]) -> tuple[Stage, Stage]:
    """Return the two stages of a run in this process; without pseudo-labels both are the first one.

    Args:
        parts: the method.
        trained: `jaxfed.training.round.round.trained`.
    """
    first = _stage(parts, trained, 1)
    return first, first if parts.pseudo_label == "none" else _stage(parts, trained, 2)


def _stage(parts: Parts, trained: Callable[..., Outcome], stage: int) -> Stage:
    execution, source = parts.training.execution, parts.source(stage)
    label = parts.training.pseudo_labels[source]
    if parts.server is not None:
        label = parts.server.label(source, label)

    def program_of(map_clients: MapClients) -> Callable[..., Outcome]:
        clients = parts.clients(stage, map_clients)

        def whole(
            state: ServerState, cohort: Cohort, labels: PseudoLabels, *others: Any
        ) -> Outcome:
            return trained(parts, stage, clients.of(cohort, labels), state, *others)

        return jitted(whole)

    program = execution.host.limit.fitted(
        "training in a round",
        program_of,
        execution.map_clients,
        lambda state, cohort, *others: len(cohort.client_id),
    )

    def run(state: ServerState, cohort: Cohort, *others: Any) -> Outcome:
        found = program(of_cohort(state, cohort.client_id), cohort, *others)
        if execution.clients_multiple > 1 and is_one_cpu():
            found = jax.tree.map(on_first_device, found)
        check_weights(found.weights, found.client_id)
        return found._replace(state=written_back(state, found.state, cohort.client_id))

    return Stage(source, parts.first_round(stage), label, run)
