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

import secrets
import struct
from collections.abc import Iterable, Sequence

import numpy as np
from absl import logging

from jaxfed.errors import ProtocolError, UsageError
from jaxfed.secure.primitives import shamir
from jaxfed.secure.row_sums import masked
from jaxfed.secure.row_sums.double_masks import DoubleMaskClient, DoubleMaskServer, GivenUp
from jaxfed.secure.row_sums.masked import RowSums
from jaxfed.secure.row_sums.participants import ENTRY_BYTES, ParticipatingRows, RowsOf
from jaxfed.secure.session.endpoint import SERVER, Endpoint
from jaxfed.secure.session.key_agreement import KEY_BYTES, RandomBytes
from jaxfed.secure.session.neighborhoods import (
    PROMISE,
    Graph,
    Promise,
    check_partners,
    drawn_graph,
    enough_partners,
    is_connected,
    neighborhood,
)
from jaxfed.secure.session.parties import Session
from jaxfed.secure.session.phases import Parties

_START = struct.Struct("<QII")
_KEY = struct.Struct(f"<I{KEY_BYTES}s")


class Client(DoubleMaskClient):
    """One client; arguments as `DoubleMaskClient`.

    Args:
        promise: what its neighborhood must withstand; rounds of fewer neighbors or a lower threshold are
            refused.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        values: np.ndarray,
        rows: RowsOf,
        *,
        promise: Promise = PROMISE,
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> None:
        super().__init__(endpoint, values, rows, random_bytes=random_bytes)
        self._promise = Promise(*promise)

    def announce(self) -> None:
        """Receive the round's start; draw the client's secrets and send the public key of its masks.

        Raises:
            ProtocolError: a repeated round, invalid neighbors, or fewer neighbors or a lower threshold than
                the promise needs.
        """
        message = self._endpoint.receive(SERVER, "start")
        number, num_clients, threshold, neighbors = parsed_start(message)
        if self._own in neighbors:
            raise ProtocolError(f"client {self._own} as a neighbor of itself")
        try:
            least = neighborhood(num_clients, len(neighbors), self._promise).threshold
        except UsageError as error:
            raise ProtocolError(f"neighbors of client {self._own}: {error}") from None
        if not least <= threshold <= len(neighbors):
            raise ProtocolError(f"threshold {threshold} of {len(neighbors)} neighbors")
        self._begin(number, threshold, neighbors, self._rows.keys() - {SERVER}, num_clients)
        self._endpoint.send(SERVER, "mask_key", self._mask_keys.public)

    def share_secrets(self) -> None:
        """Send every remaining neighbor its share of b_j and c_j."""
        keys = parsed_keys(self._endpoint.receive(SERVER, "mask_keys"))
        self._check_among(list(keys), self._holders, "neighbors with keys")
        shares = self._shared(keys)
        for partner in keys:
            self._endpoint.send(partner, f"secrets/{self._number}", b"".join(shares[partner]))

    def upload(self) -> None:
        """Receive the partners' shares; send the others' rows under all partners' masks and the client's own.

        Raises:
            ProtocolError: partners without keys, too few partners, or shares of the wrong length.
        """
        partners = self._received_list("partners", self._pair_seeds)
        self._endpoint.claim(f"row sums/{self._number}/partners")
        self._held = {}
        for partner in partners:
            self._receive_shares(partner)
        self._send_upload(partners, [owner for owner in self._holders if owner in self._rows])

    def reveal(self) -> None:
        """Send the server shares of b_j for surviving partners, and of c_j for the others.

        Raises:
            ProtocolError: survivors that are not partners, too few survivors, or a second list in this round.
        """
        self._survivors = self._received_list("survivors", self._held)
        self._send_shares(self._held)


class Server(DoubleMaskServer):
    """The server.

    Args:
        endpoint: its end of the session.
        rows: rows R_k of each of the graph's clients.
        num_classes: C.
        graph: the neighbors of every client, and t.

    Attributes:
        threshold: t.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        rows: RowsOf,
        num_classes: int,
        graph: Graph,
    ) -> None:
        super().__init__(endpoint)
        self._graph, self.threshold = graph, graph.threshold
        self._rows = ParticipatingRows(rows, graph.neighbors, num_classes)

    def start(self, number: int) -> None:
        """Begin a round."""
        self._begin(number, self._rows)
        self._partners: dict[int, list[int]] = {}  # of the clients that have sent shares

    def invite(self, client: int) -> None:
        """Send the round's start to one client."""
        neighbors = self._graph.neighbors
        message = start_message(self._number, len(neighbors), self.threshold, neighbors[client])
        self._endpoint.send(client, "start", message)

    def check_keys(self) -> None:
        """Raise `GivenUp` unless every client with a key has t neighbors with one."""
        self._check_neighborhoods(self._keys)

    def send_keys(self, client: int) -> None:
        """Send one client its neighbors' public keys."""
        keys = [(j, self._keys[j]) for j in self._graph.neighbors[client] if j in self._keys]
        self._endpoint.send(client, "mask_keys", packed_keys(keys))

    def partners_are(self, clients: Iterable[int]) -> list[int]:
        """Register the clients whose shares were sent; raise `GivenUp` as `check_keys` does."""
        present = set(clients)
        self._check_neighborhoods(present)
        self._partners = {
            client: [j for j in self._graph.neighbors[client] if j in present]
            for client in sorted(present)
        }
        return list(self._partners)

    def send_partners(self, client: int) -> None:
        """Send one client the list of neighbors whose shares it has."""
        message = masked.start_message(self._number, self._partners[client])
        self._endpoint.send(client, f"partners/{self._number}", message)

    def check_survivors(self) -> list[int]:
        """Return the survivors; raise `GivenUp` as `check_keys` does, or if they are not connected."""
        self._check_neighborhoods(self._survivors)
        if not is_connected(self._graph.neighbors, self._survivors):
            raise GivenUp("the clients that stay are not connected in the graph")
        return list(self._survivors)

    def _check_neighborhoods(self, clients: Iterable[int]) -> None:
        there = set(clients)
        for client in there:
            count = len(there.intersection(self._graph.neighbors[client]))
            if count < self.threshold:
                raise GivenUp(
                    f"client {client} has {count} neighbors left of the {self.threshold} it needs"
                )
        if not there:
            raise GivenUp("nobody is left")

    def _holders(self, client: int) -> Sequence[int]:
        return self._graph.neighbors[client]

    def _shown(self, client: int) -> Sequence[int]:
        return self._partners[client]


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


def start_message(number: int, num_clients: int, threshold: int, neighbors: Sequence[int]) -> bytes:
    """Message with the round's number, the number of clients, the threshold, and one client's neighbors."""
    head = _START.pack(number, num_clients, threshold)
    return head + struct.pack(f"<{len(neighbors)}I", *neighbors)


def parsed_start(message: bytes) -> tuple[int, int, int, list[int]]:
    """Parse the message of `start_message`.

    Raises:
        ProtocolError: an invalid message, or neighbors not in ascending order.
    """
    count, rest = divmod(len(message) - _START.size, 4)
    if count < 1 or rest:
        raise ProtocolError(f"a start has 16 + 4 k bytes, got {len(message)}")
    number, num_clients, threshold = _START.unpack_from(message)
    neighbors = list(struct.unpack_from(f"<{count}I", message, _START.size))
    if neighbors != sorted(set(neighbors)):
        raise ProtocolError(f"neighbors {neighbors}: not in ascending order")
    return number, num_clients, threshold, neighbors


def packed_keys(keys: Sequence[tuple[int, bytes]]) -> bytes:
    """Message with public keys and the addresses of their clients."""
    return b"".join(_KEY.pack(*entry) for entry in keys)


def parsed_keys(message: bytes) -> dict[int, bytes]:
    """Parse the message of `packed_keys`.

    Raises:
        ProtocolError: wrong length, or clients not in ascending order.
    """
    if len(message) % _KEY.size:
        raise ProtocolError(f"mask keys take {_KEY.size} bytes each, got {len(message)}")
    entries = list(_KEY.iter_unpack(message))
    clients = [client for client, _ in entries]
    if clients != sorted(set(clients)):
        raise ProtocolError(f"mask keys of clients {clients}: not in ascending order")
    return dict(entries)
