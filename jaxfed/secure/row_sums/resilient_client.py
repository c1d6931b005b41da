"""The client of `resilient`, whose docstring defines the protocol."""

from __future__ import annotations

import secrets

import numpy as np

from jaxfed.errors import ProtocolError
from jaxfed.secure.primitives import shamir
from jaxfed.secure.primitives.fixed_point import FixedPoint
from jaxfed.secure.primitives.prg import SEED_BYTES
from jaxfed.secure.row_sums import masked as masked_row_sums
from jaxfed.secure.row_sums import signed_survivors
from jaxfed.secure.row_sums.mask_streams import add_masks, masked_rows, pair_masks, removed
from jaxfed.secure.row_sums.participants import (
    ParticipatingRows,
    RowsOf,
    num_clients,
    parsed_rows,
)
from jaxfed.secure.row_sums.resilient_round import (
    agreed_seed,
    key_pair,
    least_participants,
    least_threshold,
    owner_label,
    parsed_keys,
    parsed_start,
)
from jaxfed.secure.session.endpoint import SERVER, Endpoint
from jaxfed.secure.session.key_agreement import KEY_BYTES, RandomBytes


class Client:
    """One client; arguments as `masked.Client`.

    Args:
        signed: give shares only for a list of survivors that t clients have signed, and take part only
            in rounds of more than two thirds of all clients.
        random_bytes: source of b_j, c_j, the shares and the key of signatures; the operating system's
            unless a test replays it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        values: np.ndarray,
        rows: RowsOf,
        *,
        signed: bool = False,
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> None:
        self._endpoint, self._values, self._rows = endpoint, values, rows
        self._own, self._is_signed = endpoint.address, signed
        self._random_bytes = random_bytes
        self._number = -1  # no round yet

    def announce(self) -> None:
        """Receive the round's start; draw its secrets and send the public key of its masks.

        Raises:
            ProtocolError: a repeated round, participants that are invalid or too few, or a threshold below
                the least or above their number.
        """
        number, participants, threshold = parsed_start(self._endpoint.receive(SERVER, "start"))
        if self._own not in participants or not set(participants) <= self._rows.keys():
            raise ProtocolError(f"row sums among clients {participants}: not what was agreed")
        num_participants = len(participants)
        if num_participants < least_participants(self._rows, signed=self._is_signed):
            what = "too few to sign" if self._is_signed else "too few for a sum"
            raise ProtocolError(f"{num_participants} of {num_clients(self._rows)} clients: {what}")
        least = least_threshold(num_participants, signed=self._is_signed)
        if not least <= threshold <= num_participants:
            raise ProtocolError(f"threshold {threshold} of {num_participants} participants")
        self._endpoint.claim(f"row sums/{number}")
        self._number, self._threshold, self._participants = number, threshold, participants
        self._others = [client for client in participants if client != self._own]
        self._encoding = FixedPoint(num_participants)
        self._layout = ParticipatingRows(self._rows, participants, self._values.shape[1])
        self._mask_secret = self._random_bytes(KEY_BYTES)
        self._mask_keys = key_pair(self._mask_secret)
        self._self_seed = self._random_bytes(SEED_BYTES)
        self._signer = signed_survivors.Signer(self._random_bytes) if self._is_signed else None
        self._endpoint.send(SERVER, "mask_key", self._mask_keys.public)

    def share_secrets(self) -> None:
        """Send every participant its share of b_j and c_j, and the own public keys if lists are signed."""
        keys = parsed_keys(self._endpoint.receive(SERVER, "mask_keys"), self._participants)
        self._pair_seeds = {
            partner: agreed_seed(self._mask_keys, keys[partner], self._number)
            for partner in self._others
        }
        shares = [
            shamir.split(
                secret, len(self._participants), self._threshold, random_bytes=self._random_bytes
            )
            for secret in (self._self_seed, self._mask_secret)
        ]
        self._mask_public_keys = keys
        self._held: dict[int, tuple[bytes, bytes]] = {}
        for partner, *pair in zip(self._participants, *shares, strict=True):
            if partner == self._own:
                self._held[partner] = pair[0], pair[1]
            else:
                message = b"".join(pair) + self._own_keys()
                self._endpoint.send(partner, f"secrets/{self._number}", message)

    def collect_secrets(self) -> None:
        """Receive the shares of all others, and their public keys if lists are signed.

        Raises:
            ProtocolError: a mask key that differs from the one that the server sent.
        """
        size, own_keys = 2 * shamir.SHARE_BYTES, self._own_keys()
        expected = size + len(own_keys)
        held, keys = dict(self._held), {self._own: own_keys[: signed_survivors.KEY_BYTES]}
        for partner in self._others:
            message = self._endpoint.receive(partner, f"secrets/{self._number}")
            if len(message) != expected:
                raise ProtocolError(
                    f"a message of secrets has {expected} bytes, got {len(message)}"
                )
            held[partner] = message[: size // 2], message[size // 2 : size]
            keys[partner], mask_key = (message[size:][at : at + KEY_BYTES] for at in (0, KEY_BYTES))
            if self._signer and mask_key != self._mask_public_keys[partner]:
                raise ProtocolError(f"a mask key in the name of {partner} that is not its own")
        self._held, self._verification_keys = held, keys

    def abandon(self) -> None:
        """Abort the round: discard its shares that have not been read."""
        self._endpoint.discard(f"secrets/{self._number}")

    def upload(self) -> None:
        """Send the rows of the others under pairwise masks, the own mask, and masks for their owners."""
        layout = self._layout
        masks = pair_masks(self._own, self._pair_seeds)
        masked = masked_rows(layout.gathered(self._values), self._encoding, masks)
        self._masked_own = masked[layout[self._own]].copy()
        add_masks(masked, [(self._self_seed, 1)])
        for owner in self._others:
            add_masks(masked[layout[owner]], [(self._owner_seed(self._own, owner), 1)])
        upload = layout.upload(masked, self._own)
        self._endpoint.send(SERVER, f"upload/{self._number}", upload)

    def hear_survivors(self) -> None:
        """Receive the list of survivors, and sign it if lists are signed.

        Raises:
            ProtocolError: survivors that are invalid or too few, or a second list in this round.
        """
        number, survivors = masked_row_sums.parsed_start(
            self._endpoint.receive(SERVER, f"survivors/{self._number}")
        )
        if (
            number != self._number
            or self._own not in survivors
            or not set(survivors) <= set(self._participants)
            or len(survivors) < self._threshold
        ):
            raise ProtocolError(f"survivors {survivors}: not of this round, or too few")
        self._endpoint.claim(f"row sums/{self._number}/survivors")
        self._survivors = survivors
        if self._signer:
            signature = self._signer.signature(self._number, self._participants, survivors)
            self._endpoint.send(SERVER, f"signature/{self._number}", signature)

    def reveal(self) -> None:
        """Send the shares that the server needs: b_j of survivors, c_j of the others.

        Raises:
            ProtocolError: fewer than t signatures of this list, if lists are signed, or shares that were
                given before in this round.
        """
        if self._signer:
            signed_survivors.check_signatures(
                self._endpoint.receive(SERVER, f"signatures/{self._number}"),
                self._verification_keys,
                self._number,
                self._participants,
                self._survivors,
                self._threshold,
            )
        self._endpoint.claim(f"row sums/{self._number}/shares")
        shares = [
            self._held[client][0 if client in self._survivors else 1]
            for client in self._participants
        ]
        self._endpoint.send(SERVER, f"shares/{self._number}", b"".join(shares))

    def finish(self) -> np.ndarray:
        """Z[R_j], float64 [n_j, C], from the server's sums."""
        message = self._endpoint.receive(SERVER, f"sums/{self._number}")
        own = self._masked_own + parsed_rows(message, self._masked_own.shape, "a message of sums")
        first = self._layout[self._own].start * own.shape[1]
        dropped = {
            client: self._pair_seeds[client]
            for client in self._others
            if client not in self._survivors
        }
        add_masks(own, removed(pair_masks(self._own, dropped)), first=first)
        for contributor in self._survivors:
            if contributor != self._own:
                add_masks(own, [(self._owner_seed(contributor, self._own), -1)])
        return self._encoding.decode(own)

    def _own_keys(self) -> bytes:
        """Public keys that a client that signs sends to the others over their sealed links."""
        return self._signer.public + self._mask_keys.public if self._signer else b""

    def _owner_seed(self, contributor: int, owner: int) -> bytes:
        """Seed of the mask on `contributor`'s part of `owner`'s rows, known to these two."""
        partner = owner if contributor == self._own else contributor
        return self._endpoint.pair_seed(partner, owner_label(self._number, contributor, owner))
