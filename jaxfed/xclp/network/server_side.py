"""The server's side of Algorithm 1 on a network: its own steps, and exchanges of letters with the clients.

Steps are those of a simulation with protocols. In place of the clients' codes and labels there are zeros of
their shapes, which the server's parts of the protocols do not read.

    exchange            clients send                                    the server sends before it
    join                public keys, number of points                   the session, the seed of Pi
    give_group_secret   the group secret, sealed for each other         all public keys
    send_own            distances among own points; hidden points and   the group secret
                        shares of distances
    send_positions      which points have labels                        -
    upload              masked contributions                            columns of S
    end                 nothing                                         masked sums

That is six exchanges with `row_sums="masked"`; double masks take three or four more, and
`relative_confidence` one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from jaxfed.data.dataset import UNLABELED
from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.federation.communication import Communication
from jaxfed.federation.execution.settings import Execution
from jaxfed.federation.sides import Unusable
from jaxfed.secure import cross_steps, largest_value
from jaxfed.secure.hamming import masked, matrix
from jaxfed.secure.session.network.exchanges import END
from jaxfed.secure.session.network.remote_session import Carry, RemoteSession
from jaxfed.xclp.network.roles import CODES, COLUMNS, LARGEST, OWN, SUMS
from jaxfed.xclp.selection.federated_selection import largest_settings
from jaxfed.xclp.settings.parameters import Parameters
from jaxfed.xclp.steps.contributions import ColumnsClient, contributions_by_columns
from jaxfed.xclp.steps.knn_graph import KnnGraphs
from jaxfed.xclp.steps.propagation_matrix import SolverAccuracy, warn_of_cut_short
from jaxfed.xclp.steps.row_sums import class_counts

_ROLES: dict[Callable[..., Any], str] = {
    matrix.OwnDistances: OWN,
    masked.client: CODES,
    ColumnsClient: COLUMNS,
    cross_steps.client_with_totals: SUMS,
    largest_value.Client: LARGEST,
}
_NEEDED = {  # setting -> what runs on a network, and what to write
    "hamming": (("masked",), "use 'masked'"),
    "row_sums": (
        ("masked", "masked_resilient", "masked_resilient_signed"),
        "use 'masked', 'masked_resilient' or 'masked_resilient_signed'",
    ),
    "compared_clients": ((0,), "use 0: clients are told of all pairs beforehand"),
    "mask_partners": ((0,), "use 0: all clients of a session share masks"),
    "influence": (("columns",), "use 'columns'"),
    "select": (((),), "give the settings themselves, alpha too: ()"),
    "confidence": (("entropy",), "use 'entropy'"),
    "bit_epsilon": ((0,), "use 0"),
    "label_epsilon": ((0,), "use 0"),
    "presence": (((),), "use (): clients of a network leave by themselves"),
}


class NetworkLabeling(NamedTuple):
    """Outcome of a labeling at the server.

    Fields:
        clients: addresses of those that have answered to the end.
        accuracy: of the linear systems.
        communication: every message of the session.
    """

    clients: list[int]
    accuracy: SolverAccuracy
    communication: Communication


def check_points(federation: Federation, client: int, reply: Mapping[str, Any]) -> None:
    """Check the number of points that a client joins a session with.

    Raises:
        Unusable: it is below 0, or above the number of examples of the client's hello.
    """
    assert federation.census is not None
    if not 0 <= reply["points"] <= federation.census.examples[client]:
        most = federation.census.examples[client]
        raise Unusable(f"{reply['points']} points; by the client's hello it has {most} examples")


def check_network(p: Parameters) -> None:
    """Check that a labeling with these settings runs on a network.

    Raises:
        UsageError: it does not; names each such setting and what to write.
    """
    wrong = [
        UsageError(key=key, owner="xclp", value=value, allowed=allowed)
        for key, (values, allowed) in _NEEDED.items()
        if (tuple(value) if isinstance(value := getattr(p, key), list) else value) not in values
    ]
    if wrong:
        first, *others = wrong
        first.wrong = "does not run on a network"
        first.allowed = "; ".join([first.allowed, *map(str, others)])
        raise first


def labeled_by_clients(
    num_clients: int, carry: Carry, sizes: Mapping[int, int], p: Parameters, execution: Execution
) -> NetworkLabeling:
    """Run the server's side of one labeling.

    Args:
        num_clients: number of clients that are invited.
        carry: exchanges letters for frames.
        sizes: numbers of points, which `carry` fills in with the first answers, by address.
        p: the settings.
        execution: execution settings.
    """
    accuracy = SolverAccuracy()
    session = RemoteSession(num_clients, carry, _ROLES)
    known = [sizes[j] if j in session.clients else 0 for j in range(num_clients)]
    if sum(known):
        accuracy = _exchanged(session, known, p, execution)
    clients = session.clients
    if clients:
        session.later_all(clients)
        clients = session.flush(END)
    return NetworkLabeling(clients, accuracy, session.communication())


def _exchanged(
    session: RemoteSession, sizes: list[int], p: Parameters, execution: Execution
) -> SolverAccuracy:
    """Lines 5 to 16, with the clients of a session; the last quiet steps are not sent."""
    largest = largest_settings(p, sum(sizes))
    codes = [np.zeros((size, p.num_bits // 32), np.uint32) for size in sizes]
    labels = [np.full(size, UNLABELED, np.int32) for size in sizes]
    graphs = KnnGraphs(codes, labels, largest, session, execution)
    points = graphs.points(p.num_bits)
    p = replace(p, num_neighbors=largest.num_neighbors)
    if not len(points.indices):
        return SolverAccuracy()
    contributions = contributions_by_columns(
        graphs.matrix(p), points.labels, points.rows, session, is_secure=True
    )
    counts = class_counts(np.zeros((0, p.num_classes), np.float32), are_needed=p.needs_class_counts)
    sums = cross_steps.undivided_sums(
        session,
        contributions.values,
        dict.fromkeys(points.rows, counts),
        points.rows,
        resilient=p.row_sums != "masked",
        signed=p.row_sums == "masked_resilient_signed",
        progress=execution.counting("uploads for row sums"),
    )
    if p.relative_confidence and sums:
        largest_value.run(session, dict.fromkeys(sums, np.float32(0)))
    warn_of_cut_short(contributions.accuracy, SolverAccuracy(), p.tolerance)
    return contributions.accuracy
