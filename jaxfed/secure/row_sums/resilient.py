"""SecureRowSums that survives dropouts without another upload: double masks and secret sharing.

After Bonawitz et al. (CCS 2017), on rows instead of one vector; `double_masks` has the steps. The holders of
a client's secrets are all p participants, itself included:

    start      server -> each    round, participants, threshold          12 + 4 p bytes
    mask_key   each -> server    c_j G                                   32 bytes
    mask_keys  server -> each    all of them                             32 p bytes
    secrets    each -> each      shares of b_j and c_j for it alone      132 bytes
    upload     each -> server    masked rows of the others               8 (n' - n_j) C bytes
    survivors  server -> each    clients whose upload arrived            8 + 4 s bytes
    shares     each -> server    of b_j for survivors, c_j for others    66 p bytes
    sums       server -> each    hat Z[R_j]                              8 n_j C bytes

The server reconstructs b_j of the survivors and c_d of the dropped clients, and removes their masks from the
sums. A client answers one list of survivors per round, and
t > p / 2.

Plain double masking is not enough here: on the rows R_d of a dropped client all masks would be removed, and
the server would read the others' sum, which was meant for d. Hence the streams for the owners of rows.

If fewer than t clients stay until they have sent shares, nothing can be unmasked. The round is aborted, its
uploads stay masked for ever, and the clients that are present start another one, as in `masked`, with a
threshold of their own.

A server that sends different false lists of survivors to the clients, and colludes with k of them, can read
more than any true list would give it: the contribution of a single client if t <= (p + k) / 2, since it then
gets both secrets of that client, and sums over fewer than t clients. Or it claims that all but two clients
have left, and gets a round of these two.

With `signed`, clients check before they give shares that all were shown the same lists (`signed_survivors`),
and that c_k G is client k's. Then t is more than two thirds of the participants, and these are more than two
thirds of all clients. With k < p / 3 nothing but sums over t clients or more can then be opened. If fewer are
left, no client gets sums.

    secrets    each -> each      keys of signatures and masks, too       64 bytes more
    signature  each -> server    of participants and survivors           64 bytes
    signatures server -> each    all of them                             68 s bytes

Cost: a client expands 2 p - 1 streams (p - 1 of them over the rows of one client alone), and one more for
each dropped and each surviving owner to finish; the server s + s d streams for d dropouts. A client
shares its secrets with 2 p t multiplications of 521 bits (0.3 us each), agrees on p - 1 seeds (35 us
each) and, with `signed`, checks s signatures (0.1 ms each).
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from absl import logging

from jaxfed.errors import ProtocolError, UsageError
from jaxfed.secure.primitives import shamir
from jaxfed.secure.row_sums import masked, signed_survivors
from jaxfed.secure.row_sums.double_masks import DoubleMaskClient, DoubleMaskServer
from jaxfed.secure.row_sums.masked import RowSums
from jaxfed.secure.row_sums.participants import (
    ENTRY_BYTES,
    ParticipatingRows,
    RowsOf,
    num_clients,
)
from jaxfed.secure.row_sums.participants import least_participants as least_for_sums
from jaxfed.secure.session.endpoint import SERVER, Endpoint
from jaxfed.secure.session.key_agreement import KEY_BYTES, RandomBytes
from jaxfed.secure.session.phases import Parties


class Client(DoubleMaskClient):
    """One client; arguments as `DoubleMaskClient`.

    Args:
        signed: give shares only for a list of survivors that t clients have signed, and take part only
            in rounds of more than two thirds of all clients.
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
        super().__init__(endpoint, values, rows, random_bytes=random_bytes)
        self._is_signed = signed

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
        self._begin(number, threshold, participants, participants, num_participants)
        self._participants = participants
        self._others = [client for client in participants if client != self._own]
        self._signer = signed_survivors.Signer(self._random_bytes) if self._is_signed else None
        self._endpoint.send(SERVER, "mask_key", self._mask_keys.public)

    def share_secrets(self) -> None:
        """Send every participant its share of b_j and c_j, and the own public keys if lists are signed."""
        keys = parsed_keys(self._endpoint.receive(SERVER, "mask_keys"), self._participants)
        shares = self._shared(keys)
        self._mask_public_keys, self._held = keys, {self._own: shares[self._own]}
        for partner in self._others:
            message = b"".join(shares[partner]) + self._own_keys()
            self._endpoint.send(partner, f"secrets/{self._number}", message)

    def collect_secrets(self) -> None:
        """Receive the shares of all others, and their public keys if lists are signed.

        Raises:
            ProtocolError: a mask key that differs from the one that the server sent.
        """
        own_keys = self._own_keys()
        self._verification_keys = {self._own: own_keys[: signed_survivors.KEY_BYTES]}
        for partner in self._others:
            keys = self._receive_shares(partner, len(own_keys))
            self._verification_keys[partner] = keys[: signed_survivors.KEY_BYTES]
            mask_key = keys[signed_survivors.KEY_BYTES :]
            if self._signer and mask_key != self._mask_public_keys[partner]:
                raise ProtocolError(f"a mask key in the name of {partner} that is not its own")

    def upload(self) -> None:
        """Send the rows of the others under pairwise masks, the own mask, and masks for their owners."""
        self._send_upload(self._others, self._others)

    def hear_survivors(self) -> None:
        """Receive the list of survivors, and sign it if lists are signed.

        Raises:
            ProtocolError: survivors that are invalid or too few, or a second list in this round.
        """
        survivors = self._received_list("survivors", self._participants)
        if self._own not in survivors:
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
        self._send_shares(self._participants)

    def _own_keys(self) -> bytes:
        """Public keys that a client that signs sends to the others over their sealed links."""
        return self._signer.public + self._mask_keys.public if self._signer else b""


class Server(DoubleMaskServer):
    """The server.

    Args:
        endpoint: its end of the session.
        rows: R_k of every client.
        num_classes: C.
        threshold: t, the number of shares that reconstruct a secret; None: the smallest t that each round's
            participants allow. A round of fewer than t clients needs all of them.
        signed: have clients sign the list of survivors.

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
    ) -> None:
        number = num_clients(rows)
        least = least_threshold(number, signed=signed)
        if threshold is not None and not least <= threshold <= number:
            raise UsageError(f"threshold={threshold}: use {least} to {number} clients")
        super().__init__(endpoint)
        self._rows, self._num_classes = rows, num_classes
        self._wanted_threshold, self.is_signed = threshold, signed
        self.least_participants = least_participants(rows, signed=signed)

    def start(self, number: int, participants: Sequence[int]) -> None:
        """Begin a round; messages of earlier ones are discarded."""
        count = len(participants)
        wanted = self._wanted_threshold or least_threshold(count, signed=self.is_signed)
        self.threshold = min(wanted, count)
        self._participants = sorted(participants)
        self._begin(number, ParticipatingRows(self._rows, participants, self._num_classes))
        self._signatures: dict[int, bytes] = {}

    def invite(self, client: int) -> None:
        """Send the round's start to one client."""
        message = start_message(self._number, self._participants, self.threshold)
        self._endpoint.send(client, "start", message)

    def send_keys(self, client: int) -> None:
        """Send all public keys to one client."""
        keys = b"".join(self._keys[participant] for participant in self._participants)
        self._endpoint.send(client, "mask_keys", keys)

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

    @property
    def can_unmask(self) -> bool:
        """True if t clients have sent their shares."""
        return len(self._shares) >= self.threshold

    def _holders(self, client: int) -> Sequence[int]:
        return self._participants

    def _shown(self, client: int) -> Sequence[int]:
        return self._participants


def run(
    parties: Parties,
    server: Server,
    members: Iterable[int] | None = None,
    *,
    first_round: int = 0,
    progress: masked.UploadsDone | None = None,
) -> RowSums:
    """Sums for all clients that stay; contributions of all that uploaded in the last round.

    A dropout before any upload starts another round without the client, which costs no upload. Dropouts that
    leave fewer clients than the threshold start another round, too, which costs one upload.

    Args:
        parties: the clients, `Client`s; one that leaves, or whose message is refused, is left out from then
            on.
        server: the server.
        members: those of the clients that take part; all if left out.
        first_round: number of the first round, above all used in the session.
        progress: receives the number of uploads at the server after each one, and the total; a round that is
            started again begins at 1.

    Returns:
        Z[R_j] of every client that stayed to the end, float64 [n_j, C], None for one in another process;
        empty if all have left, or too few are left to sign.

    Raises:
        ProtocolError: an unexpected message at a client, or secrets that do not fit together; no client gets
            sums then.
    """
    participants = sorted(parties.clients if members is None else members)
    number = first_round
    while participants and len(participants) >= server.least_participants:
        server.start(number, participants)
        present = _with_secrets(parties, server, participants)
        if len(present) == len(participants):
            present = _sum(parties, server, participants, progress)
            if server.can_unmask:
                for liar in server.unmask():
                    logging.warning("client %d is lost, its shares do not fit the others'", liar)
                    parties.presence.lose(liar)
                present = parties.presence.staying(present)
                return parties("finish", present, tell=server.send_sums, quiet=True)
        parties("abandon", present, quiet=True)
        participants, number = present, number + 1
    return {}


def _with_secrets(parties: Parties, server: Server, participants: Sequence[int]) -> list[int]:
    """Exchange keys and shares of one round; return the participants that stay, all if it succeeded."""
    steps: list[tuple[str, dict[str, Any]]] = [
        ("announce", {"tell": server.invite, "take": server.receive_key}),
        ("share_secrets", {"tell": server.send_keys}),
        ("collect_secrets", {"quiet": True}),
    ]
    for step, exchange in steps:
        if len(parties(step, participants, needs_all=True, **exchange)) < len(participants):
            break
    return parties.presence.staying(participants)


def _sum(
    parties: Parties,
    server: Server,
    participants: Sequence[int],
    progress: masked.UploadsDone | None,
) -> list[int]:
    """Exchange uploads and shares of one round while t clients are left; return these clients."""
    upload = masked.counting(server.receive_upload, len(participants), progress)
    answers_survivors = server.receive_signature if server.is_signed else None
    steps: list[tuple[str, dict[str, Any]]] = [
        ("upload", {"take": upload}),
        (
            "hear_survivors",
            {
                "tell": server.ask,
                "take": answers_survivors,
                "quiet": answers_survivors is None,
            },
        ),
        ("reveal", {"tell": server.send_signatures, "take": server.receive_shares}),
    ]
    present = list(participants)
    for step, exchange in steps:
        present = list(parties(step, present, **exchange))
        if len(present) < server.threshold:
            break
    return present


def message_bytes(
    num_rows: Sequence[int], num_classes: int, survivors: Sequence[int], *, signed: bool = False
) -> dict[str, int]:
    """Payload bytes by kind of one round in which the clients numbered `survivors` stay to the end."""
    p, s, total = len(num_rows), len(survivors), sum(num_rows)
    entry = ENTRY_BYTES * num_classes
    secrets = 2 * shamir.SHARE_BYTES + signed * (signed_survivors.KEY_BYTES + KEY_BYTES)
    signatures = {
        "signature": s * signed_survivors.SIGNATURE_BYTES,
        "signatures": s * s * signed_survivors.ENTRY_BYTES,
    }
    return {
        "start": p * (12 + 4 * p),
        "mask_key": p * KEY_BYTES,
        "mask_keys": p * p * KEY_BYTES,
        "secrets": p * (p - 1) * secrets,
        "upload": entry * sum(total - num_rows[client] for client in survivors),
        "survivors": s * (8 + 4 * s),
        **(signatures if signed else {}),
        "shares": s * p * shamir.SHARE_BYTES,
        "sums": entry * sum(num_rows[client] for client in survivors),
    }


def least_threshold(num_participants: int, *, signed: bool) -> int:
    """The smallest t allowed among p participants.

    It is more than half: then two lists of survivors cannot both get answers from t clients. It is more than
    two thirds if lists are signed: then 2 t > p + k, and two lists cannot both have t signatures, even if k <
    p / 3 clients sign any list.
    """
    return (2 * num_participants // 3 if signed else num_participants // 2) + 1


def least_participants(rows: RowsOf, *, signed: bool) -> int:
    """Smallest number of clients in a round.

    A round of few clients reveals their sums, and a server could ask for one by claiming that all others have
    left. So clients that sign take part only if as many clients as must sign at first are in the round.
    """
    least = least_threshold(num_clients(rows), signed=True) if signed else 1
    return max(least, least_for_sums(rows))


def start_message(number: int, participants: Sequence[int], threshold: int) -> bytes:
    """Message with a round's number, participants and threshold."""
    return masked.start_message(number, participants) + struct.pack("<I", threshold)


def parsed_start(message: bytes) -> tuple[int, list[int], int]:
    """Parse the message of `start_message`."""
    if len(message) < 4:
        raise ProtocolError(f"a start has 12 + 4 p bytes, got {len(message)}")
    number, participants = masked.parsed_start(message[:-4])
    return number, participants, struct.unpack("<I", message[-4:])[0]


def parsed_keys(message: bytes, participants: Sequence[int]) -> dict[int, bytes]:
    """Public keys by participant, from the server's list."""
    if len(message) != KEY_BYTES * len(participants):
        raise ProtocolError(
            f"{len(participants)} mask keys have {KEY_BYTES * len(participants)} bytes, "
            f"got {len(message)}"
        )
    return {
        client: message[KEY_BYTES * position : KEY_BYTES * (position + 1)]
        for position, client in enumerate(participants)
    }
