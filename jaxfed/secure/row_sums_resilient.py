"""SecureRowSums that survives dropouts without another upload: double masks and shared secrets.

After Bonawitz et al. (CCS 2017), for parties that follow the protocol, on rows instead of one vector.
Beside the pairwise masks, from keys (c_j, c_j G) made for this run, client j adds G(b_j) with a seed of
its own. Both secrets are shared, any t of the p clients can give them back:

    start      server -> each    round, participants, threshold          12 + 4 p bytes
    mask_key   each -> server    c_j G                                   32 bytes
    mask_keys  server -> each    all of them                             32 p bytes
    secrets    each -> each      shares of b_j and c_j for it alone      132 bytes
    upload     each -> server    masked rows of the others               8 (n' - n_j) C bytes
    survivors  server -> each    whose upload arrived                    8 + 4 s bytes
    shares     each -> server    of b_j for survivors, c_j for others    66 p bytes
    sums       server -> each    hat Z[R_j]                              8 n_j C bytes

The server rebuilds b_j of the survivors and c_d of the dropped, takes the masks G(b_j) and those shared
with the dropped out of the sums, and never gets both secrets of one client: with c_j and b_j it could
open j's upload, which may only be late. A client answers one survivors message a round.

One thing plain double masking does not give here: on the rows R_d of a dropped client every mask would
be gone and the server would read the others' sum, which was meant for d. So client j covers R_m, for
every m, with another stream, of a seed that only j and m have; m takes it off, and if m is gone nobody
can. (The seed is one of a direction: the same stream on R_m by j and on R_j by m would be a pad used
twice.)

Cost: every client shares and expands p + 1 streams; the server s + s d streams for d dropouts.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from jaxfed.errors import UsageError
from jaxfed.secure import row_sums, shamir
from jaxfed.secure.endpoint import SERVER, DroppedOut, Endpoint
from jaxfed.secure.errors import ProtocolError
from jaxfed.secure.fixed_point import FixedPoint
from jaxfed.secure.key_agreement import KEY_BYTES, KeyPair, RandomBytes
from jaxfed.secure.masked_rows import (
    Masks,
    add_masks,
    masked_rows,
    pair_masks,
    removed,
    stream_starts,
)
from jaxfed.secure.prg import SEED_BYTES, derived_seed
from jaxfed.secure.row_sums import Rows


class Client:
    """One client; arguments as `row_sums.Client`.

    Args:
        random_bytes: source of b_j, c_j and the shares; the operating system's unless a test replays it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        values: np.ndarray,
        rows: Rows,
        *,
        fraction_bits: int = 40,
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> None:
        self._endpoint, self._values, self._rows = endpoint, values, rows
        self._own, self._fraction_bits = endpoint.address, fraction_bits
        self._random_bytes = random_bytes
        self._number = -1  # no round yet

    def announce(self) -> None:
        """Take the round's start and send the public key of its masks.

        Raises:
            ProtocolError: a round that was there before, participants that are none, or a threshold
                that is not more than half of them.
        """
        number, threshold, participants = parsed_start(self._endpoint.receive(SERVER, "start"))
        if self._own not in participants or not set(participants) <= self._rows.keys():
            raise ProtocolError(f"row sums among clients {participants}: not what was agreed")
        if not is_majority(threshold, len(participants)):
            raise ProtocolError(f"threshold {threshold} of {len(participants)} participants")
        self._endpoint.claim(f"row sums/{number}")
        self._number, self._threshold, self._participants = number, threshold, participants
        self._encoding = FixedPoint(len(self._participants), self._fraction_bits)
        self._starts = stream_starts(
            row_sums.num_entries(self._rows, self._participants, self._values.shape[1])
        )
        self._mask_key = self._random_bytes(KEY_BYTES)
        self._self_seed = self._random_bytes(SEED_BYTES)
        self._endpoint.send(SERVER, "mask_key", public_key(self._mask_key))

    def share_secrets(self) -> None:
        """Send every participant its share of b_j and c_j."""
        keys = parsed_keys(self._endpoint.receive(SERVER, "mask_keys"), self._participants)
        self._pair_seeds = {
            partner: agreed_seed(self._mask_key, key, self._number)
            for partner, key in keys.items()
            if partner != self._own
        }
        shares = [
            shamir.split(
                secret, len(self._participants), self._threshold, random_bytes=self._random_bytes
            )
            for secret in (self._self_seed, self._mask_key)
        ]
        self._held: dict[int, tuple[bytes, bytes]] = {}
        for partner, *pair in zip(self._participants, *shares, strict=True):
            if partner == self._own:
                self._held[partner] = pair[0], pair[1]
            else:
                self._endpoint.send(partner, f"secrets/{self._number}", b"".join(pair))

    def collect_secrets(self) -> None:
        """Take the shares of all others."""
        held = dict(self._held)
        for partner in self._participants:
            if partner != self._own:
                message = self._endpoint.receive(partner, f"secrets/{self._number}")
                if len(message) != 2 * shamir.SHARE_BYTES:
                    raise ProtocolError(
                        f"two shares have {2 * shamir.SHARE_BYTES} bytes, got {len(message)}"
                    )
                held[partner] = message[: shamir.SHARE_BYTES], message[shamir.SHARE_BYTES :]
        self._held = held

    def abandon(self) -> None:
        """Give the round up before any upload: shares on their way are worth nothing."""
        self._endpoint.discard(f"secrets/{self._number}")

    def upload(self) -> None:
        """Send the rows of the others under pairwise masks, the own one, and their owners' ones."""
        uploaded = []
        for owner in self._participants:
            if owner == self._own:
                continue
            start = self._starts[owner]
            masks = [*pair_masks(self._own, self._pair_seeds), (self._self_seed, 1)]
            values = masked_rows(
                self._values[self._rows[owner]], self._encoding, masks, start=start
            )
            add_masks(values, [(self._owner_seed(self._own, owner), 1)])
            uploaded.append(values.tobytes())
        self._endpoint.send(SERVER, f"upload/{self._number}", b"".join(uploaded))

    def reveal(self) -> None:
        """Send the shares that the server needs: b_j of survivors, c_j of the others.

        Raises:
            ProtocolError: survivors that are none, too few of them, or a second request in this round.
        """
        number, survivors = row_sums.parsed_start(
            self._endpoint.receive(SERVER, f"survivors/{self._number}")
        )
        if (
            number != self._number
            or self._own not in survivors
            or not set(survivors) <= set(self._participants)
            or len(survivors) < self._threshold
        ):
            raise ProtocolError(f"survivors {survivors}: not of this round, or too few")
        self._endpoint.claim(f"row sums/{self._number}/shares")
        self._survivors = survivors
        shares = [
            self._held[client][0 if client in self._survivors else 1]
            for client in self._participants
        ]
        self._endpoint.send(SERVER, f"shares/{self._number}", b"".join(shares))

    def finish(self) -> np.ndarray:
        """Z[R_j], float64 [n_j, C], from the server's sums."""
        message = self._endpoint.receive(SERVER, f"sums/{self._number}")
        others = [client for client in self._survivors if client != self._own]
        masks = pair_masks(self._own, {client: self._pair_seeds[client] for client in others})
        own = masked_rows(
            self._values[self._rows[self._own]],
            self._encoding,
            masks,
            start=self._starts[self._own],
        )
        own += row_sums.parsed_rows(message, own.shape)
        add_masks(own, removed([(self._owner_seed(client, self._own), 1) for client in others]))
        return self._encoding.decode(own)

    def _owner_seed(self, contributor: int, owner: int) -> bytes:
        """The seed of what covers `contributor`'s part of `owner`'s rows, known to these two."""
        partner = owner if contributor == self._own else contributor
        label = f"row sums/{self._number}/rows of {owner} by {contributor}"
        return self._endpoint.pair_seed(partner, label)


class Server:
    """The server.

    Args:
        endpoint: its end of the session.
        rows: R_k of every client.
        num_classes: C.
        threshold: t, how many shares give a secret back; None: just more than half of each round's
            participants.
    """

    def __init__(
        self, endpoint: Endpoint, rows: Rows, num_classes: int, threshold: int | None = None
    ) -> None:
        self._endpoint, self._rows, self._num_classes = endpoint, rows, num_classes
        self._wanted_threshold = threshold

    def start(self, number: int, participants: Sequence[int]) -> None:
        """Begin a round; whatever came in an earlier one is forgotten."""
        majority = len(participants) // 2 + 1
        self._threshold = self._wanted_threshold or majority
        check_threshold(self._threshold, len(participants))
        self._number, self._participants = number, sorted(participants)
        self._entries = row_sums.num_entries(self._rows, self._participants, self._num_classes)
        self._keys: dict[int, bytes] = {}
        self._sums = row_sums.zero_sums(self._rows, self._participants, self._num_classes)
        self._survivors: list[int] = []
        self._shares: dict[int, list[bytes]] = {}  # who gave which

    def invite(self, client: int) -> None:
        """Tell one client of the round."""
        message = row_sums.start_message(self._number, self._participants)
        self._endpoint.send(client, "start", message + struct.pack("<I", self._threshold))

    def receive_key(self, client: int) -> None:
        """Take one client's public key."""
        key = self._endpoint.receive(client, "mask_key")
        if len(key) != KEY_BYTES:
            raise ProtocolError(f"a mask key has {KEY_BYTES} bytes, got {len(key)}")
        self._keys[client] = key

    def send_keys(self, client: int) -> None:
        """Give one client all public keys."""
        keys = b"".join(self._keys[participant] for participant in self._participants)
        self._endpoint.send(client, "mask_keys", keys)

    def receive_upload(self, client: int) -> None:
        """Add one client's upload; from here on it is a survivor."""
        message = self._endpoint.receive(client, f"upload/{self._number}")
        row_sums.add_upload(self._sums, message, client)
        self._survivors.append(client)

    def ask(self, client: int) -> None:
        """Tell a survivor who the survivors are."""
        if len(self._survivors) < self._threshold:
            raise ProtocolError(f"{len(self._survivors)} uploads, {self._threshold} are needed")
        message = row_sums.start_message(self._number, self._survivors)
        self._endpoint.send(client, f"survivors/{self._number}", message)

    def receive_shares(self, client: int) -> None:
        """Take one survivor's shares."""
        message = self._endpoint.receive(client, f"shares/{self._number}")
        size = shamir.SHARE_BYTES
        if len(message) != size * len(self._participants):
            raise ProtocolError(
                f"{len(self._participants)} shares have {size * len(self._participants)} bytes, "
                f"got {len(message)}"
            )
        self._shares[client] = [message[at : at + size] for at in range(0, len(message), size)]

    def unmask(self) -> None:
        """Take out of the sums what nobody else will: own masks, and masks shared with the dropped.

        Raises:
            ProtocolError: fewer than t clients gave shares.
        """
        dropped = [client for client in self._participants if client not in self._survivors]
        mask_keys = {client: self._secret(client, KEY_BYTES) for client in dropped}
        starts = stream_starts(self._entries)
        for survivor in self._survivors:
            pair_seeds = {
                client: agreed_seed(key, self._keys[survivor], self._number)
                for client, key in mask_keys.items()
            }
            masks: Masks = [
                (self._secret(survivor, SEED_BYTES), 1),
                *pair_masks(survivor, pair_seeds),
            ]
            for owner in self._survivors:
                if owner != survivor:
                    add_masks(self._sums[owner], removed(masks), start=starts[owner])

    def send_sums(self, client: int) -> None:
        """Give one survivor the sums of its rows."""
        self._endpoint.send(client, f"sums/{self._number}", self._sums[client].tobytes())

    @property
    def survivors(self) -> list[int]:
        """Clients whose upload arrived."""
        return list(self._survivors)

    def _secret(self, client: int, num_bytes: int) -> bytes:
        position = self._participants.index(client)
        held = {
            self._participants.index(holder) + 1: shares[position]
            for holder, shares in self._shares.items()
        }
        return shamir.reconstruct(held, self._threshold, num_bytes)


def run(
    clients: Mapping[int, Client],
    server: Server,
    *,
    first_round: int = 0,
    progress: row_sums.Progress | None = None,
) -> dict[int, np.ndarray]:
    """Sums for all clients that stay; contributions of all that uploaded.

    A dropout before any upload starts another round without the client, which costs no upload.

    Args:
        clients: by address; one whose endpoint raises `DroppedOut` is left out from then on.
        server: the server.
        first_round: number of the first round, above all used in the session.
        progress: told after every upload how many the server has, of how many.

    Returns:
        Z[R_j] of every client that stayed to the end, float64 [n_j, C].

    Raises:
        ProtocolError: a message that does not belong where it arrives, or fewer uploads than the
            threshold; nobody gets sums then.
        UsageError: the threshold is none for the clients that are there before any upload.
    """
    participants, number = sorted(clients), first_round
    while participants:
        try:
            _set_up(clients, server, participants, number)
            break
        except DroppedOut as dropout:
            participants = [client for client in participants if client != dropout.client]
            for client in participants:
                clients[client].abandon()
            number += 1
    if not participants:
        return {}

    def upload(client: int) -> None:
        clients[client].upload()
        server.receive_upload(client)
        if progress:
            progress(participants.index(client) + 1, len(participants))

    def reveal(client: int) -> None:
        server.ask(client)
        clients[client].reveal()
        server.receive_shares(client)

    _each(participants, upload)
    revealing = _each(server.survivors, reveal)
    server.unmask()
    return row_sums.finished(clients, server, revealing)


def _set_up(
    clients: Mapping[int, Client], server: Server, participants: Sequence[int], number: int
) -> None:
    """Keys and shares of one round: all participants, or `DroppedOut`."""
    server.start(number, participants)
    for client in participants:
        server.invite(client)
        clients[client].announce()
        server.receive_key(client)
    for client in participants:
        server.send_keys(client)
        clients[client].share_secrets()
    for client in participants:
        clients[client].collect_secrets()


def _each(clients: Sequence[int], step: Callable[[int], None]) -> list[int]:
    """Take the step with every client; who is still there."""
    present = []
    for client in clients:
        try:
            step(client)
            present.append(client)
        except DroppedOut:
            continue
    return present


def check_threshold(threshold: int, num_participants: int) -> None:
    """More than half must be needed, so that no two sets of survivors get an answer each.

    Raises:
        UsageError: p / 2 < t <= p does not hold.
    """
    if not is_majority(threshold, num_participants):
        raise UsageError(
            f"threshold={threshold}: allowed are more than half of {num_participants} participants, "
            "and at most all"
        )


def is_majority(threshold: int, num_participants: int) -> bool:
    """Whether p / 2 < t <= p."""
    return num_participants / 2 < threshold <= num_participants


def parsed_start(message: bytes) -> tuple[int, int, list[int]]:
    """(round, threshold, participants) of a start message."""
    if len(message) < 4:
        raise ProtocolError(f"a start has 12 + 4 p bytes, got {len(message)}")
    number, participants = row_sums.parsed_start(message[:-4])
    return number, struct.unpack("<I", message[-4:])[0], participants


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


def public_key(secret: bytes) -> bytes:
    """c G on Curve25519."""
    return KeyPair(lambda _: secret).public


def agreed_seed(secret: bytes, public: bytes, number: int) -> bytes:
    """The seed that the owners of two mask keys agree on for a round.

    Raises:
        ProtocolError: the public key is none, or a point of small order.
    """
    shared = KeyPair(lambda _: secret).agreed(public)
    return derived_seed(shared, f"row sums/{number}/pair mask")


def message_bytes(
    num_rows: Sequence[int], num_classes: int, survivors: Sequence[int]
) -> dict[str, int]:
    """Payload bytes by kind of one round in which the clients numbered `survivors` stay to the end."""
    p, s, total = len(num_rows), len(survivors), sum(num_rows)
    entry = row_sums.ENTRY_BYTES * num_classes
    return {
        "start": p * (12 + 4 * p),
        "mask_key": p * KEY_BYTES,
        "mask_keys": p * p * KEY_BYTES,
        "secrets": p * (p - 1) * 2 * shamir.SHARE_BYTES,
        "upload": entry * sum(total - num_rows[client] for client in survivors),
        "survivors": s * (8 + 4 * s),
        "shares": s * p * shamir.SHARE_BYTES,
        "sums": entry * sum(num_rows[client] for client in survivors),
    }
