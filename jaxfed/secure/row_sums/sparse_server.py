"""The server of `sparse`, whose docstring defines the protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping

import numpy as np

from jaxfed.errors import ProtocolError
from jaxfed.secure.primitives import shamir
from jaxfed.secure.primitives.prg import SEED_BYTES
from jaxfed.secure.row_sums import masked
from jaxfed.secure.row_sums.participants import ParticipatingRows, RowsOf
from jaxfed.secure.row_sums.resilient_round import agreed_seed, key_pair
from jaxfed.secure.row_sums.sparse_client import packed_keys, start_message
from jaxfed.secure.row_sums.summing_server import SummingServer
from jaxfed.secure.session.endpoint import Endpoint
from jaxfed.secure.session.key_agreement import KEY_BYTES
from jaxfed.secure.session.neighborhoods import Graph, is_connected


class GivenUp(Exception):
    """The server abandons the round: a secret could not be opened, or a sum over some survivors could be."""


class Server(SummingServer):
    """The server.

    Args:
        endpoint: its end of the session.
        rows: rows R_k of each of the graph's clients.
        num_classes: C.
        graph: the neighbors of every client, and t.
        parts: its shares of the contributions of clients whose values are shares, uint64 [n, C].

    Attributes:
        threshold: t.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        rows: RowsOf,
        num_classes: int,
        graph: Graph,
        *,
        parts: Mapping[int, np.ndarray] | None = None,
    ) -> None:
        super().__init__(endpoint, parts)
        self._graph, self.threshold = graph, graph.threshold
        self._rows = ParticipatingRows(rows, graph.neighbors, num_classes)
        self._probe = key_pair(bytes(range(KEY_BYTES)))  # no secret of anybody

    def start(self, number: int) -> None:
        """Begin a round."""
        self._begin(number, self._rows)
        self._keys: dict[int, bytes] = {}
        self._partners: dict[int, list[int]] = {}  # of the clients that have sent shares
        self._survivors: list[int] = []
        self._shares: dict[
            int, dict[int, bytes]
        ] = {}  # by client that sent them, and whose they are

    def invite(self, client: int) -> None:
        """Send the round's start to one client."""
        neighbors = self._graph.neighbors
        message = start_message(self._number, len(neighbors), self.threshold, neighbors[client])
        self._endpoint.send(client, "start", message)

    def receive_key(self, client: int) -> None:
        """Receive one client's public key."""
        key = self._endpoint.receive(client, "mask_key")
        self._probe.agreed(key)  # refuses an invalid key, before others see it
        self._keys[client] = key

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

    def receive_upload(self, client: int) -> None:
        """Add one client's upload, which makes it a survivor."""
        self._add_upload(client)
        self._survivors.append(client)

    def check_survivors(self) -> list[int]:
        """Return the survivors; raise `GivenUp` as `check_keys` does, or if they are not connected."""
        self._check_neighborhoods(self._survivors)
        if not is_connected(self._graph.neighbors, self._survivors):
            raise GivenUp("the clients that stay are not connected in the graph")
        return list(self._survivors)

    def ask(self, client: int) -> None:
        """Send one survivor the list of its surviving partners."""
        there = set(self._survivors)
        survivors = [j for j in self._partners[client] if j in there]
        message = masked.start_message(self._number, survivors)
        self._endpoint.send(client, f"survivors/{self._number}", message)

    def receive_shares(self, client: int) -> None:
        """Receive one survivor's shares of the secrets of all its partners."""
        message, size = self._endpoint.receive(client, f"shares/{self._number}"), shamir.SHARE_BYTES
        partners = self._partners[client]
        if len(message) != size * len(partners):
            raise ProtocolError(
                f"{len(partners)} shares have {size * len(partners)} bytes, got {len(message)}"
            )
        shares = {j: message[size * at : size * (at + 1)] for at, j in enumerate(partners)}
        for share in shares.values():
            shamir.check_share(share)
        self._shares[client] = shares

    def unmask(self) -> list[int]:
        """Remove from the sums the masks of survivors' own seeds, and masks shared with partners that left.

        Returns:
            The clients whose shares are inconsistent with those of t others.

        Raises:
            GivenUp: fewer than t neighbors of a client sent shares.
            ProtocolError: inconsistent shares.
        """
        survivors, refused = set(self._survivors), set[int]()
        needed = {j for client in survivors for j in self._partners[client]} | survivors
        secrets = {client: self._secret(client, client in survivors, refused) for client in needed}
        dropped = {client: key_pair(secrets[client]) for client in needed - survivors}
        for survivor in self._survivors:
            pair_seeds = {
                j: agreed_seed(dropped[j], self._keys[survivor], self._number)
                for j in self._partners[survivor]
                if j in dropped
            }
            self._remove_masks(survivor, secrets[survivor], pair_seeds)
        return sorted(refused)

    @property
    def summed(self) -> list[int]:
        """The clients whose contributions are summed, the survivors."""
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

    def _secret(self, client: int, is_survivor: bool, refused: set[int]) -> bytes:
        """Reconstruct b_j of a survivor or c_j of another; add clients with inconsistent shares to `refused`.

        With a wrong share the result has 521 bits, more than any secret. If more than t neighbors sent
        shares, the secret can be reconstructed without the wrong one.
        """
        places = {j: place for place, j in enumerate(self._graph.neighbors[client], 1)}
        held = {
            j: self._shares[j][client]
            for j in places
            if j not in refused and client in self._shares.get(j, ())
        }
        if len(held) < self.threshold:
            raise GivenUp(f"{len(held)} shares of client {client}, {self.threshold} are needed")
        num_bytes = SEED_BYTES if is_survivor else KEY_BYTES

        def opened(*without: int) -> bytes:
            shares = {places[j]: share for j, share in held.items() if j not in without}
            return shamir.reconstruct(shares, self.threshold, num_bytes)

        with contextlib.suppress(ProtocolError):
            return opened()
        for liar in held:
            with contextlib.suppress(ProtocolError):
                secret = opened(liar)
                refused.add(liar)
                return secret
        raise ProtocolError(f"the shares of client {client} do not belong to one secret")
