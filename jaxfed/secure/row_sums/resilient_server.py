"""The server of `resilient`, whose docstring defines the protocol."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence

import numpy as np

from jaxfed.errors import ProtocolError, UsageError
from jaxfed.secure.primitives import shamir
from jaxfed.secure.primitives.prg import SEED_BYTES
from jaxfed.secure.row_sums import masked, signed_survivors
from jaxfed.secure.row_sums.participants import ParticipatingRows, RowsOf, num_clients
from jaxfed.secure.row_sums.resilient_round import (
    agreed_seed,
    key_pair,
    least_participants,
    least_threshold,
    start_message,
)
from jaxfed.secure.row_sums.summing_server import SummingServer
from jaxfed.secure.session.endpoint import Endpoint
from jaxfed.secure.session.key_agreement import KEY_BYTES


class Server(SummingServer):
    """The server.

    Args:
        endpoint: its end of the session.
        rows: R_k of every client.
        num_classes: C.
        threshold: t, the number of shares that reconstruct a secret; None: the smallest t that each round's
            participants allow. A round of fewer than t clients needs all of them.
        signed: have clients sign the list of survivors.
        parts: its shares of the contributions of clients whose values are shares, uint64 [n, C].

    Attributes:
        least_participants: smallest number of clients in a round.
        threshold: t of the round.
        is_signed: clients sign the list of survivors.

    Raises:
        UsageError: a threshold below the least for all clients, or above their number.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        rows: RowsOf,
        num_classes: int,
        threshold: int | None = None,
        *,
        signed: bool = False,
        parts: Mapping[int, np.ndarray] | None = None,
    ) -> None:
        number = num_clients(rows)
        least = least_threshold(number, signed=signed)
        if threshold is not None and not least <= threshold <= number:
            raise UsageError(f"threshold={threshold}: use {least} to {number} clients")
        super().__init__(endpoint, parts)
        self._rows, self._num_classes = rows, num_classes
        self._wanted_threshold, self.is_signed = threshold, signed
        self.least_participants = least_participants(rows, signed=signed)
        self._probe = key_pair(bytes(range(KEY_BYTES)))  # no secret of anybody

    def start(self, number: int, participants: Sequence[int]) -> None:
        """Begin a round; messages of earlier ones are discarded."""
        count = len(participants)
        wanted = self._wanted_threshold or least_threshold(count, signed=self.is_signed)
        self.threshold = min(wanted, count)
        self._participants = sorted(participants)
        self._begin(number, ParticipatingRows(self._rows, participants, self._num_classes))
        self._keys: dict[int, bytes] = {}
        self._survivors: list[int] = []
        self._signatures: dict[int, bytes] = {}
        self._shares: dict[int, list[bytes]] = {}  # by client that sent them

    def invite(self, client: int) -> None:
        """Send the round's start to one client."""
        message = start_message(self._number, self._participants, self.threshold)
        self._endpoint.send(client, "start", message)

    def receive_key(self, client: int) -> None:
        """Receive one client's public key."""
        key = self._endpoint.receive(client, "mask_key")
        if len(key) != KEY_BYTES:
            raise ProtocolError(f"a mask key has {KEY_BYTES} bytes, got {len(key)}")
        self._probe.agreed(key)  # refuses an invalid key, before others see it
        self._keys[client] = key

    def send_keys(self, client: int) -> None:
        """Send all public keys to one client."""
        keys = b"".join(self._keys[participant] for participant in self._participants)
        self._endpoint.send(client, "mask_keys", keys)

    def receive_upload(self, client: int) -> None:
        """Add one client's upload; from here on it is a survivor."""
        self._add_upload(client)
        self._survivors.append(client)

    def ask(self, client: int) -> None:
        """Send the list of survivors to one of them."""
        message = masked.start_message(self._number, self._survivors)
        self._endpoint.send(client, f"survivors/{self._number}", message)

    def receive_signature(self, client: int) -> None:
        """Receive one survivor's signature of the list, if lists are signed."""
        if not self.is_signed:
            return
        signature = self._endpoint.receive(client, f"signature/{self._number}")
        if len(signature) != signed_survivors.SIGNATURE_BYTES:
            raise ProtocolError(
                f"a signature has {signed_survivors.SIGNATURE_BYTES} bytes, got {len(signature)}"
            )
        self._signatures[client] = signature

    def send_signatures(self, client: int) -> None:
        """Send all signatures to one survivor, if lists are signed."""
        if self.is_signed:
            message = signed_survivors.packed_signatures(self._signatures)
            self._endpoint.send(client, f"signatures/{self._number}", message)

    def receive_shares(self, client: int) -> None:
        """Receive one survivor's shares."""
        message = self._endpoint.receive(client, f"shares/{self._number}")
        size = shamir.SHARE_BYTES
        if len(message) != size * len(self._participants):
            raise ProtocolError(
                f"{len(self._participants)} shares have {size * len(self._participants)} bytes, "
                f"got {len(message)}"
            )
        shares = [message[at : at + size] for at in range(0, len(message), size)]
        for share in shares:
            shamir.check_share(share)
        self._shares[client] = shares

    @property
    def can_unmask(self) -> bool:
        """True if t clients have sent their shares."""
        return len(self._shares) >= self.threshold

    def unmask(self) -> list[int]:
        """Remove from the sums the masks of survivors' own seeds, and those shared with dropped clients.

        Returns:
            The client whose shares do not fit those of t others, if there is one.

        Raises:
            ProtocolError: fewer than t clients gave shares, or shares that do not fit together.
        """
        secrets, refused = self._opened()
        dropped = {
            client: key_pair(secrets[client])
            for client in self._participants
            if client not in self._survivors
        }
        for survivor in self._survivors:
            pair_seeds = {
                client: agreed_seed(keys, self._keys[survivor], self._number)
                for client, keys in dropped.items()
            }
            self._remove_masks(survivor, secrets[survivor], pair_seeds)
        return refused

    @property
    def summed(self) -> list[int]:
        """The clients whose contributions are summed, the survivors."""
        return list(self._survivors)

    def _opened(self) -> tuple[dict[int, bytes], list[int]]:
        """Return the secrets that the shares open, by client, and the client whose shares were discarded.

        A wrong share makes a secret of 521 bits, longer than any. If more than t clients gave shares, the
        secrets fit again without the client that lies.
        """
        try:
            return self._secrets(self._shares), []
        except ProtocolError:
            if len(self._shares) > self.threshold:
                for holder in self._shares:
                    rest = {other: own for other, own in self._shares.items() if other != holder}
                    with contextlib.suppress(ProtocolError):
                        return self._secrets(rest), [holder]
            raise

    def _secrets(self, shares: Mapping[int, Sequence[bytes]]) -> dict[int, bytes]:
        """Reconstruct b_j of survivors and c_d of dropped clients."""
        secrets = {}
        for position, client in enumerate(self._participants):
            held = {
                self._participants.index(holder) + 1: own[position]
                for holder, own in shares.items()
            }
            num_bytes = SEED_BYTES if client in self._survivors else KEY_BYTES
            secrets[client] = shamir.reconstruct(held, self.threshold, num_bytes)
        return secrets
