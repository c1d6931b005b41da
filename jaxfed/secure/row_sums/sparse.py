"""SecureRowSums on a sparse graph of clients: `resilient` for many clients.

After Bell et al. (CCS 2020, semi-honest). Each client has k neighbors and a threshold t
(`jaxfed.secure.session.neighborhoods`). It has pairwise masks only with its neighbors, and only they get
shares of its secrets b_j and c_j, t of k. Except for rows, the messages of a client grow with the number n of
clients only through k:

    start      server -> each      round, n, t, neighbors                   16 + 4 k bytes
    mask_key   each -> server      c_j G                                    32 bytes
    mask_keys  server -> each      those of its neighbors                   36 k bytes
    secrets    each -> neighbors   shares of b_j and c_j                    132 bytes
    partners   server -> each      neighbors whose shares were sent         8 + 4 k bytes
    upload     each -> server      masked rows of the others                8 (n' - n_j) C bytes
    survivors  server -> each      partners whose upload arrived            8 + 4 k bytes
    shares     each -> server      of b_j for these, c_j for other partners 66 k bytes
    sums       server -> each      hat Z[R_j]                               8 n_j C bytes

If a client leaves, at any point, its neighbors go on without it; no round starts again. Before each step the
server checks that every remaining client keeps t neighbors. Before it requests shares it also checks that the
survivors are connected in the graph. If a check fails, the sum is abandoned with a warning, and uploads stay
masked for ever. A client checks k and t against the promise that it was built with, and that it keeps t
neighbors. It reveals shares of its partners only, and once.

As in `resilient`, clients own rows, and the sum on R_m must stay hidden if m leaves. Here only m's neighbors
cover R_m with a stream that m removes: at least t of them upload, and fewer than t collude.

The server draws the graph, so this protects only against a server that follows the protocol. A server that
chose a client's neighbors among its accomplices would open that client's secrets (docs/threat-model.md).

Cost: a client expands k + 1 streams over its rows and k short ones, agrees on k seeds twice (35 us each), and
shares two secrets with 2 k t multiplications of 521 bits (0.3 us each). The server expands s streams for s
survivors and one for each pair of a survivor and a partner that left, and reconstructs s + d secrets, d the
number of partners that left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from absl import logging

from jaxfed.secure.primitives import shamir
from jaxfed.secure.row_sums import masked
from jaxfed.secure.row_sums.masked import RowSums
from jaxfed.secure.row_sums.participants import ENTRY_BYTES
from jaxfed.secure.row_sums.sparse_client import Client as Client
from jaxfed.secure.row_sums.sparse_server import GivenUp, Server
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.key_agreement import KEY_BYTES
from jaxfed.secure.session.neighborhoods import (
    PROMISE,
    Graph,
    Promise,
    check_partners,
    drawn_graph,
    enough_partners,
)
from jaxfed.secure.session.parties import Session
from jaxfed.secure.session.phases import Parties


def run(
    parties: Parties,
    server: Server,
    members: Iterable[int] | None = None,
    *,
    first_round: int = 0,
    progress: masked.UploadsDone | None = None,
) -> RowSums:
    """Sums over all clients whose upload arrived, for all that stay; arguments as for `resilient.run`.

    Returns:
        Z[R_j] of every client that stayed to the end, float64 [n_j, C], None for one in another process;
        empty if fewer stayed than the threshold needs, or if they are not connected.

    Raises:
        ProtocolError: an unexpected message at a client, or inconsistent secrets.
    """
    present = sorted(parties.clients if members is None else members)
    server.start(first_round)
    try:
        keyed = parties("announce", present, tell=server.invite, take=server.receive_key)
        server.check_keys()
        present = server.partners_are(
            parties("share_secrets", keyed, tell=server.send_keys),
        )
        upload = masked.counting(server.receive_upload, len(present), progress)
        parties("upload", present, tell=server.send_partners, take=upload)
        present = server.check_survivors()
        parties("reveal", present, tell=server.ask, take=server.receive_shares)
        for liar in server.unmask():
            logging.warning("client %d is lost, its shares do not fit the others'", liar)
            parties.presence.lose(liar)
    except GivenUp as reason:
        logging.warning("a sum of round %d is given up: %s", first_round, reason)
        parties("abandon", parties.presence.staying(present), quiet=True)
        return {}
    present = parties.presence.staying(present)
    return parties("finish", present, tell=server.send_sums, quiet=True)


def graph_of(
    session: Session, clients: Sequence[int], mask_partners: int, promise: Promise | None
) -> Graph | None:
    """A graph of these clients for a session between all pairs; None if it is complete.

    Raises:
        UsageError: too few partners for the promise among all invited clients of the session.
    """
    promise = promise or PROMISE
    check_partners(session.num_clients, mask_partners, promise)
    if mask_partners >= len(clients) - 1:
        return None
    size = enough_partners(len(clients), mask_partners, promise)
    return drawn_graph(clients, size, session.source(SERVER), promise)


def client_bytes(
    size: int, num_rows: int = 0, others_rows: int = 1, num_classes: int = 1
) -> dict[str, int]:
    """Payload bytes, by message, that one client sends and receives in a round in which no client leaves.

    Args:
        size: k.
        num_rows: n_j, 0 if the server owns all rows.
        others_rows: n' - n_j.
        num_classes: C.
    """
    list_bytes = 8 + 4 * size
    return {
        "start": 16 + 4 * size,
        "mask_key": KEY_BYTES,
        "mask_keys": (4 + KEY_BYTES) * size,
        "secrets": 2 * 2 * shamir.SHARE_BYTES * size,  # to each neighbor and from it
        "partners": list_bytes,
        "upload": ENTRY_BYTES * others_rows * num_classes,
        "survivors": list_bytes,
        "shares": shamir.SHARE_BYTES * size,
        "sums": ENTRY_BYTES * num_rows * num_classes,
    }
