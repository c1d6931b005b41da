"""Both sides of FedCT on a network."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from jaxfed.algorithms.fedct.client_turn import ClientWork
from jaxfed.algorithms.fedct.network.client_side import co_training_client
from jaxfed.algorithms.fedct.network.server_side import CoTrainingServer, check_network
from jaxfed.algorithms.fedct.server_turn import Election
from jaxfed.federation.algorithm import Init, Round, Sides
from jaxfed.federation.clients import Federation
from jaxfed.federation.departures import Departure
from jaxfed.federation.sides import Ask
from jaxfed.learners.evaluation import consensus_quality
from jaxfed.training.consensus.client_sums import ConsensusSums


def co_training_sides(
    work: ClientWork,
    election: Election,
    sums: ConsensusSums,
    mask_partners: int,
    departures: Sequence[Departure],
    first: Callable[[Federation], Any],
) -> Sides:
    """Return both sides.

    Args:
        work: the clients' settings.
        election: the server's.
        sums: how answers are added.
        mask_partners: of each client, under masks; 0: all.
        departures: planned ones, which a network does not have.
        first: federation -> the server's state before the first round.
    """

    def server(ask: Ask, federation: Federation) -> tuple[Init, Round]:
        check_network(work, departures)

        def init(key: jax.Array, federation: Federation) -> Any:
            del key
            return first(federation)

        return init, CoTrainingServer(work, election, sums, mask_partners, ask).round

    client = co_training_client(work, election.consensus, sums, mask_partners)
    return Sides(server, client, consensus_quality)
