"""The client of `sparse`, whose docstring defines the protocol."""

from __future__ import annotations

import secrets
import struct
from collections.abc import Sequence

import numpy as np

from jaxfed.errors import ProtocolError, UsageError
from jaxfed.secure.primitives import shamir
from jaxfed.secure.primitives.fixed_point import FixedPoint
from jaxfed.secure.primitives.prg import SEED_BYTES
from jaxfed.secure.row_sums import masked as masked_row_sums
from jaxfed.secure.row_sums.mask_streams import add_masks, masked_rows, pair_masks, removed
from jaxfed.secure.row_sums.participants import ParticipatingRows, RowsOf, parsed_rows
from jaxfed.secure.row_sums.resilient_round import agreed_seed, key_pair, owner_label
from jaxfed.secure.session.endpoint import SERVER, Endpoint
from jaxfed.secure.session.key_agreement import KEY_BYTES, RandomBytes
from jaxfed.secure.session.neighborhoods import PROMISE, Promise, neighborhood

_START = struct.Struct("<QII")
_KEY = struct.Struct(f"<I{KEY_BYTES}s")


class Client:
    """One client; arguments as `masked.Client`.

    Args:
        promise: what its neighborhood must withstand; rounds of fewer neighbors or a lower threshold are
            refused.
        random_bytes: source of b_j, c_j and the shares: the operating system, or a test's replay.
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
        self._endpoint, self._values, self._rows = endpoint, values, rows
        self._own, self._promise = endpoint.address, Promise(*promise)
        self._random_bytes = random_bytes
        self._number = -1  # no round yet

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
        self._endpoint.claim(f"row sums/{number}")
        self._number, self._threshold, self._neighbors = number, threshold, neighbors
        self._encoding = FixedPoint(num_clients)
        owners = self._rows.keys() - {SERVER}
        self._layout = ParticipatingRows(self._rows, owners, self._values.shape[1])
        self._mask_secret = self._random_bytes(KEY_BYTES)
        self._mask_keys = key_pair(self._mask_secret)
        self._self_seed = self._random_bytes(SEED_BYTES)
        self._endpoint.send(SERVER, "mask_key", self._mask_keys.public)

    def share_secrets(self) -> None:
        """Send every remaining neighbor its share of b_j and c_j."""
        keys = parsed_keys(self._endpoint.receive(SERVER, "mask_keys"))
        self._check_among(list(keys), self._neighbors, "neighbors with keys")
        self._pair_seeds = {
            partner: agreed_seed(self._mask_keys, public, self._number)
            for partner, public in keys.items()
        }
        shares = [
            shamir.split(
                secret, len(self._neighbors), self._threshold, random_bytes=self._random_bytes
            )
            for secret in (self._self_seed, self._mask_secret)
        ]
        for partner, *pair in zip(self._neighbors, *shares, strict=True):
            if partner in keys:
                self._endpoint.send(partner, f"secrets/{self._number}", b"".join(pair))

    def upload(self) -> None:
        """Receive the partners' shares; send the others' rows under all partners' masks and the client's own.

        Raises:
            ProtocolError: partners without keys, too few partners, or shares of the wrong length.
        """
        number, partners = masked_row_sums.parsed_start(
            self._endpoint.receive(SERVER, f"partners/{self._number}")
        )
        self._check_among(partners, list(self._pair_seeds), "partners", number)
        self._endpoint.claim(f"row sums/{self._number}/partners")
        size = shamir.SHARE_BYTES
        self._held: dict[int, tuple[bytes, bytes]] = {}
        for partner in partners:
            message = self._endpoint.receive(partner, f"secrets/{self._number}")
            if len(message) != 2 * size:
                raise ProtocolError(
                    f"a message of secrets has {2 * size} bytes, got {len(message)}"
                )
            self._held[partner] = message[:size], message[size:]
        layout = self._layout
        masks = pair_masks(self._own, {j: self._pair_seeds[j] for j in partners})
        masked = masked_rows(layout.gathered(self._values), self._encoding, masks)
        self._masked_own = masked[layout[self._own]].copy()
        add_masks(masked, [(self._self_seed, 1)])
        for owner in self._neighbors:
            if owner in self._rows:
                add_masks(masked[layout[owner]], [(self._owner_seed(self._own, owner), 1)])
        self._endpoint.send(SERVER, f"upload/{self._number}", layout.upload(masked, self._own))

    def reveal(self) -> None:
        """Send the server shares of b_j for surviving partners, and of c_j for the others.

        Raises:
            ProtocolError: survivors that are not partners, too few survivors, or a second list in this round.
        """
        number, survivors = masked_row_sums.parsed_start(
            self._endpoint.receive(SERVER, f"survivors/{self._number}")
        )
        self._check_among(survivors, list(self._held), "survivors", number)
        self._endpoint.claim(f"row sums/{self._number}/shares")
        self._survivors = survivors
        shares = [pair[0 if j in survivors else 1] for j, pair in self._held.items()]
        self._endpoint.send(SERVER, f"shares/{self._number}", b"".join(shares))

    def finish(self) -> np.ndarray:
        """Z[R_j], float64 [n_j, C], from the server's sums."""
        message = self._endpoint.receive(SERVER, f"sums/{self._number}")
        own = self._masked_own + parsed_rows(message, self._masked_own.shape, "a message of sums")
        first = self._layout[self._own].start * own.shape[1]
        dropped = {j: self._pair_seeds[j] for j in self._held if j not in self._survivors}
        add_masks(own, removed(pair_masks(self._own, dropped)), first=first)
        for contributor in self._survivors if own.size else ():
            add_masks(own, [(self._owner_seed(contributor, self._own), -1)])
        return self._encoding.decode(own)

    def abandon(self) -> None:
        """Abandon the round: discard shares that have not been read."""
        self._endpoint.discard(f"secrets/{self._number}")

    def _check_among(
        self, clients: Sequence[int], known: Sequence[int], what: str, number: int | None = None
    ) -> None:
        """Refuse a list of another round, with clients outside `known`, or of fewer than t clients."""
        if (
            number not in (None, self._number)
            or not set(clients) <= set(known)
            or len(clients) < self._threshold
        ):
            raise ProtocolError(f"{what} {clients}: not of this round, or too few")

    def _owner_seed(self, contributor: int, owner: int) -> bytes:
        """Seed of the mask on `contributor`'s part of `owner`'s rows, known only to these two."""
        partner = owner if contributor == self._own else contributor
        return self._endpoint.pair_seed(partner, owner_label(self._number, contributor, owner))


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
