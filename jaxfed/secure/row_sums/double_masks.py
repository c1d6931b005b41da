"""SecureRowSums that survives dropouts without another upload: double masks over a graph of clients.

After Bonawitz et al. (CCS 2017), on rows instead of one vector. For one round client j draws b_j and c_j.
It masks its rows by G(b_j), and by a stream for each partner from (c_j, c_j G). Both secrets are shared
among holders, of whom any t can reconstruct one. Survivors reveal shares of b_j for each other, and of c_d
for a client d that left after others had added masks shared with it. The server removes these masks from
the sums. It never gets both secrets of one client: it could then open its upload.

That is not enough here: on the rows R_d of a dropped client all masks would be removed, and the server
would read the others' sum, which was meant for d. So on the rows of client m there is another stream, from
a seed that only j and m have: m removes it, and if m has left, the sum on its rows stays hidden. (There is
one seed per direction: the same stream on R_m by j and on R_j by m would be a one-time pad used twice.)

On the complete graph all p participants, itself included, hold a client's secrets, and t > p / 2:

    start      server -> each    round, participants, threshold          12 + 4 p bytes
    mask_key   each -> server    c_j G                                   32 bytes
    mask_keys  server -> each    all of them                             32 p bytes
    secrets    each -> each      shares of b_j and c_j for it alone      132 bytes
    upload     each -> server    masked rows of the others               8 (n' - n_j) C bytes
    survivors  server -> each    clients whose upload arrived            8 + 4 s bytes
    shares     each -> server    of b_j for survivors, c_j for others    66 p bytes
    sums       server -> each    hat Z[R_j]                              8 n_j C bytes

If fewer than t clients stay until they have sent shares, nothing can be unmasked. The round is aborted, its
uploads stay masked for ever, and the clients that are present start another one, as in `masked`, with a
threshold of their own.

A server that sends different false lists of survivors to the clients, and colludes with k of them, can read
more than any true list would give it: the contribution of a single client if t <= (p + k) / 2, since it
then gets both secrets of that client, and sums over fewer than t clients. Or it claims that all but two
clients have left, and gets a round of these two. With `signed`, clients check before they give shares that
all were shown the same lists (`signed_survivors`), and that c_k G is client k's. Then t is more than two
thirds of the participants, and these are more than two thirds of all clients. With k < p / 3 nothing but
sums over t clients or more can then be opened. If fewer are left, no client gets sums.

    secrets    each -> each      keys of signatures and masks, too       64 bytes more
    signature  each -> server    of participants and survivors           64 bytes
    signatures server -> each    all of them                             68 s bytes

On a sparse graph (Bell et al., CCS 2020, semi-honest; `jaxfed.secure.session.neighborhoods`) only the k
neighbors of a client have masks with it and hold its secrets, t of k. Except for rows, a client's messages
grow with the number n of clients only through k. Those that differ:

    start      server -> each    round, n, t, neighbors                  16 + 4 k bytes
    mask_keys  server -> each    those of its neighbors                  36 k bytes
    partners   server -> each    neighbors whose shares were sent        8 + 4 k bytes
    survivors  server -> each    partners whose upload arrived           8 + 4 k bytes
    shares     each -> server    of b_j for these, c_j for others        66 k bytes

If a client leaves, at any point, its neighbors go on without it; no round starts again. After each step the
server checks that every remaining client keeps t neighbors, and before it requests shares that the
survivors are connected. If a check fails, the sum is abandoned with a warning. A client checks k and t
against the promise that it was built with, and that it keeps t neighbors. The server draws the graph, so this
protects only against a server that follows the protocol: one that chose a client's neighbors among its
accomplices would open that client's secrets (docs/threat-model.md).

Cost, k = p - 1 on the complete graph: a client expands k + 1 streams over its rows and k short ones, agrees
on k seeds twice (35 us each), and shares two secrets with 2 k t multiplications of 521 bits (0.3 us each);
with `signed` it checks s signatures (0.1 ms each). The server expands s streams for s survivors and one for
each pair of a survivor and a partner that left, and reconstructs s + d secrets, d the number of partners
that left.
"""

from __future__ import annotations

import contextlib
import secrets
import struct
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import numpy as np
from absl import logging

from jaxfed.errors import ProtocolError, UsageError
from jaxfed.secure.primitives import shamir
from jaxfed.secure.primitives.prg import SEED_BYTES, derived_seed
from jaxfed.secure.primitives.ring import FixedPoint
from jaxfed.secure.row_sums import masked, signed_survivors
from jaxfed.secure.row_sums.masked_rows import (
    ParticipatingRows,
    RowsOf,
    add_masks,
    least_participants,
    masked_rows,
    num_clients,
    pair_masks,
    parsed_rows,
    removed,
)
from jaxfed.secure.session.endpoint import SERVER, Endpoint
from jaxfed.secure.session.key_agreement import KEY_BYTES, KeyPair, RandomBytes
from jaxfed.secure.session.neighborhoods import Graph, Promise, is_connected, neighborhood
from jaxfed.secure.session.phases import Parties

Shares = tuple[bytes, bytes]  # of b_j and of c_j

_SPARSE_START = struct.Struct("<QII")
_KEY = struct.Struct(f"<I{KEY_BYTES}s")


class GivenUp(ProtocolError):
    """The server abandons the round: a secret could not be opened, or a sum over some survivors could be."""


def key_pair(secret: bytes) -> KeyPair:
    """(c, c G) on Curve25519."""
    return KeyPair(lambda _: secret)


def agreed_seed(keys: KeyPair, public: bytes, number: int) -> bytes:
    """The seed that the owners of two mask keys agree on for a round; errors as `KeyPair.agreed`."""
    return derived_seed(keys.agreed(public), f"row sums/{number}/pair mask")


class Client:
    """One client; arguments as `masked.Client`.

    With `signed` it gives shares only for a list of survivors that t clients have signed, and takes part in
    rounds of more than two thirds of all clients only. `promise` is what its sparse neighborhood must
    withstand: rounds of fewer neighbors or a lower threshold are refused; None: the graph is complete.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        values: np.ndarray,
        rows: RowsOf,
        *,
        signed: bool = False,
        promise: Promise | None = None,
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> None:
        self._endpoint, self._values, self._rows = endpoint, values, rows
        self._own, self._random_bytes = endpoint.address, random_bytes
        self._is_signed, self._promise = signed, Promise(*promise) if promise else None
        self._signer: signed_survivors.Signer | None = None
        self._number = -1  # no round yet
        self._pair_seeds: dict[int, bytes] = {}  # by partner
        self._partners: Sequence[int] = ()
        self._survivors: Sequence[int] = ()
        # Shares of the secrets of others, and on the complete graph of its own, by client.
        self._held: dict[int, Shares] = {}

    def announce(self) -> None:
        """Receive the round's start; draw its secrets and send the public key of its masks."""
        message = self._endpoint.receive(SERVER, "start")
        if self._promise:
            number, num_terms, threshold, holders = parsed_sparse_start(message)
            least, what = self._least_of_neighbors(num_terms, holders, self._promise), "neighbors"
            owners: Collection[int] = self._rows.keys() - {SERVER}
        else:
            number, holders, threshold = parsed_start(message)
            least, what = self._least_of_participants(holders), "participants"
            owners, num_terms = holders, len(holders)
        if not least <= threshold <= len(holders):
            raise ProtocolError(f"threshold {threshold} of {len(holders)} {what}")
        self._endpoint.claim(f"row sums/{number}")
        self._number, self._threshold, self._holders = number, threshold, holders
        self._encoding = FixedPoint(num_terms)
        self._layout = ParticipatingRows(self._rows, owners, self._values.shape[1])
        # Nothing of an earlier round serves in this one, in whichever order its steps are asked for.
        self._pair_seeds, self._held, self._partners, self._survivors = {}, {}, (), ()
        self._mask_secret = self._random_bytes(KEY_BYTES)
        self._mask_keys = key_pair(self._mask_secret)
        self._self_seed = self._random_bytes(SEED_BYTES)
        if self._is_signed:
            self._signer = signed_survivors.Signer(self._random_bytes)
        self._endpoint.send(SERVER, "mask_key", self._mask_keys.public)

    def share_secrets(self) -> None:
        """Send every partner its share of b_j and c_j, and the own public keys if lists are signed."""
        message = self._endpoint.receive(SERVER, "mask_keys")
        if self._promise:
            keys = parsed_neighbors_keys(message)
            self._check_among(list(keys), self._holders, "neighbors with keys")
        else:
            keys = parsed_keys(message, self._holders)
        self._endpoint.claim(f"row sums/{self._number}/mask keys")
        self._pair_seeds = {
            partner: agreed_seed(self._mask_keys, public, self._number)
            for partner, public in keys.items()
            if partner != self._own
        }
        of_seed, of_key = (
            shamir.split(
                secret, len(self._holders), self._threshold, random_bytes=self._random_bytes
            )
            for secret in (self._self_seed, self._mask_secret)
        )
        shares = dict(zip(self._holders, zip(of_seed, of_key, strict=True), strict=True))
        self._mask_public_keys = keys
        self._held = {} if self._promise else {self._own: shares[self._own]}
        for partner in self._pair_seeds:
            self._endpoint.send(
                partner, f"secrets/{self._number}", b"".join(shares[partner]) + self._own_keys()
            )

    def collect_secrets(self) -> None:
        """Receive the partners' shares, after the list of partners on a sparse graph."""
        self._partners = list(self._pair_seeds)
        if self._promise:
            self._partners = self._received_list("partners", self._pair_seeds)
        own_keys, size = self._own_keys(), 2 * shamir.SHARE_BYTES
        self._verification_keys = {self._own: own_keys[: signed_survivors.KEY_BYTES]}
        for partner in self._partners:
            message = self._endpoint.receive(partner, f"secrets/{self._number}")
            if len(message) != (expected := size + len(own_keys)):
                raise ProtocolError(
                    f"a message of secrets has {expected} bytes, got {len(message)}"
                )
            self._held[partner] = message[: size // 2], message[size // 2 : size]
            verifying, masking = (
                message[size:][: signed_survivors.KEY_BYTES],
                message[size:][signed_survivors.KEY_BYTES :],
            )
            self._verification_keys[partner] = verifying
            if self._signer and masking != self._mask_public_keys[partner]:
                raise ProtocolError(f"a mask key in the name of {partner} that is not its own")

    def upload(self) -> None:
        """Send the others' rows under masks shared with the partners, the own one, and those of owners."""
        if len(self._partners) + 1 < self._threshold:
            raise ProtocolError("an upload before the partners' secrets")
        layout = self._layout
        masks = pair_masks(self._own, {j: self._pair_seeds[j] for j in self._partners})
        masked = masked_rows(layout.gathered(self._values), self._encoding, masks)
        self._masked_own = masked[layout[self._own]].copy()
        add_masks(masked, [(self._self_seed, 1)])
        for owner in self._holders:
            if owner != self._own and owner in self._rows:
                add_masks(masked[layout[owner]], [(self._owner_seed(self._own, owner), 1)])
        self._endpoint.send(SERVER, f"upload/{self._number}", layout.upload(masked, self._own))

    def hear_survivors(self) -> None:
        """Receive the list of survivors, and sign it if lists are signed."""
        survivors = self._received_list("survivors", self._held)
        if not self._promise and self._own not in survivors:
            raise ProtocolError(f"survivors {survivors}: not of this round, or too few")
        self._survivors = survivors
        if self._signer:
            signature = self._signer.signature(self._number, self._holders, survivors)
            self._endpoint.send(SERVER, f"signature/{self._number}", signature)

    def reveal(self) -> None:
        """Send shares of b_j for survivors, and of c_j for the others whose shares it holds, once a round."""
        if not self._survivors:
            raise ProtocolError("shares before a list of survivors")
        if self._signer:
            signed_survivors.check_signatures(
                self._endpoint.receive(SERVER, f"signatures/{self._number}"),
                self._verification_keys,
                self._number,
                self._holders,
                self._survivors,
                self._threshold,
            )
        self._endpoint.claim(f"row sums/{self._number}/shares")
        shares = [self._held[j][j not in self._survivors] for j in self._holders if j in self._held]
        self._endpoint.send(SERVER, f"shares/{self._number}", b"".join(shares))

    def abandon(self) -> None:
        """Abort the round: discard its shares that have not been read."""
        self._endpoint.discard(f"secrets/{self._number}")

    def finish(self) -> np.ndarray:
        """Z[R_j], float64 [n_j, C], from the server's sums."""
        message = self._endpoint.receive(SERVER, f"sums/{self._number}")
        sums = self._masked_own + parsed_rows(message, self._masked_own.shape, "a message of sums")
        first = self._layout[self._own].start * sums.shape[1]
        dropped = {j: self._pair_seeds[j] for j in self._partners if j not in self._survivors}
        add_masks(sums, removed(pair_masks(self._own, dropped)), first=first)
        for contributor in self._survivors if sums.size else ():
            if contributor != self._own:
                add_masks(sums, [(self._owner_seed(contributor, self._own), -1)])
        return self._encoding.decode(sums)

    def _least_of_neighbors(
        self, num_terms: int, neighbors: Sequence[int], promise: Promise
    ) -> int:
        """The smallest threshold among these neighbors."""
        if self._own in neighbors:
            raise ProtocolError(f"client {self._own} as a neighbor of itself")
        try:
            return neighborhood(num_terms, len(neighbors), promise).threshold
        except UsageError as error:
            raise ProtocolError(f"neighbors of client {self._own}: {error}") from None

    def _least_of_participants(self, participants: Sequence[int]) -> int:
        """The smallest threshold among these participants."""
        if self._own not in participants or not set(participants) <= self._rows.keys():
            raise ProtocolError(f"row sums among clients {participants}: not what was agreed")
        count = len(participants)
        if count < least_in_round(self._rows, signed=self._is_signed):
            what = "too few to sign" if self._is_signed else "too few for a sum"
            raise ProtocolError(f"{count} of {num_clients(self._rows)} clients: {what}")
        return least_threshold(count, signed=self._is_signed)

    def _received_list(self, kind: str, known: Collection[int]) -> list[int]:
        """Receive the one list of clients among `known` in this round."""
        number, clients = masked.parsed_start(
            self._endpoint.receive(SERVER, f"{kind}/{self._number}")
        )
        self._check_among(clients, known, kind, is_of_round=number == self._number)
        self._endpoint.claim(f"row sums/{self._number}/{kind}")
        return clients

    def _check_among(
        self, clients: Sequence[int], known: Collection[int], what: str, *, is_of_round: bool = True
    ) -> None:
        """Refuse a list of another round, with clients outside `known`, or of fewer than t clients."""
        if not is_of_round or not set(clients) <= set(known) or len(clients) < self._threshold:
            raise ProtocolError(f"{what} {clients}: not of this round, or too few")

    def _owner_seed(self, contributor: int, owner: int) -> bytes:
        """Seed of the mask on `contributor`'s part of `owner`'s rows, known only to these two."""
        partner = owner if contributor == self._own else contributor
        label = f"row sums/{self._number}/rows of {owner} by {contributor}"
        return self._endpoint.pair_seed(partner, label)

    def _own_keys(self) -> bytes:
        """Public keys that a client that signs sends to the others over their sealed links."""
        return self._signer.public + self._mask_keys.public if self._signer else b""


class Server(masked.Server):
    """The server; arguments as `masked.Server`.

    Attributes:
        threshold: t of the round.
        is_signed: clients sign the list of survivors.
        graph: the neighbors of every client, and t; None: the graph is complete, and t is the smallest that
            each round's participants allow.
    """

    threshold: int

    def __init__(
        self,
        endpoint: Endpoint,
        rows: RowsOf,
        num_classes: int,
        *,
        signed: bool = False,
        graph: Graph | None = None,
    ) -> None:
        super().__init__(endpoint, rows, num_classes)
        self.is_signed, self.graph = signed, graph
        self.least_participants = 0 if graph else least_in_round(rows, signed=signed)
        self._probe = key_pair(bytes(range(KEY_BYTES)))  # no secret of anybody

    def start(self, number: int, participants: Sequence[int]) -> None:
        """Begin a round; on a sparse graph all of its clients are participants."""
        super().start(number, list(self.graph.neighbors) if self.graph else participants)
        self.threshold = (
            self.graph.threshold
            if self.graph
            else least_threshold(len(participants), signed=self.is_signed)
        )
        self._keys: dict[int, bytes] = {}
        self._partners: dict[int, list[int]] = {}  # neighbors that sent shares, too, by client
        self._survivors: list[int] = []
        self._signatures: dict[int, bytes] = {}
        # By client that sent them, and whose they are.
        self._shares: dict[int, dict[int, bytes]] = {}

    def invite(self, client: int) -> None:
        """Send the round's start to one client."""
        if self.graph:
            neighbors = self.graph.neighbors
            message = sparse_start_message(
                self._number, len(neighbors), self.threshold, neighbors[client]
            )
        else:
            message = start_message(self._number, self._participants, self.threshold)
        self._endpoint.send(client, "start", message)

    def receive_key(self, client: int) -> None:
        """Receive one client's public key."""
        key = self._endpoint.receive(client, "mask_key")
        self._probe.agreed(key)  # refuses an invalid key, before others see it
        self._keys[client] = key

    def send_keys(self, client: int) -> None:
        """Send one client all public keys, on a sparse graph its neighbors'."""
        keys = [(j, self._keys[j]) for j in self._holders(client) if j in self._keys]
        message = packed_neighbors_keys(keys) if self.graph else b"".join(key for _, key in keys)
        self._endpoint.send(client, "mask_keys", message)

    def send_partners(self, client: int) -> None:
        """Send one client of a sparse graph the list of neighbors whose shares it has."""
        if self.graph:
            message = masked.start_message(self._number, self._partners[client])
            self._endpoint.send(client, f"partners/{self._number}", message)

    def receive_upload(self, client: int) -> None:
        """Add one client's upload, which makes it a survivor."""
        super().receive_upload(client)
        self._survivors.append(client)

    def ask(self, client: int) -> None:
        """Send one survivor the list of those survivors whose shares it has."""
        survivors = sorted(set(self._survivors).intersection(self._shown(client)))
        message = masked.start_message(self._number, survivors)
        self._endpoint.send(client, f"survivors/{self._number}", message)

    def receive_signature(self, client: int) -> None:
        """Receive one survivor's signature of the list."""
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
        """Receive one survivor's shares, one for each client whose shares it has."""
        message, size = self._endpoint.receive(client, f"shares/{self._number}"), shamir.SHARE_BYTES
        shown = self._shown(client)
        if len(message) != size * len(shown):
            raise ProtocolError(
                f"{len(shown)} shares have {size * len(shown)} bytes, got {len(message)}"
            )
        shares = {j: message[size * at : size * (at + 1)] for at, j in enumerate(shown)}
        for share in shares.values():
            shamir.check_share(share)
        self._shares[client] = shares

    def check(self, step: str, clients: Sequence[int]) -> None:
        """Raise `GivenUp` if the round cannot go on with the clients that have taken this step."""
        if not self.graph:
            needed = len(self._participants) if step in _BEFORE_UPLOADS else self.threshold
            if len(clients) < needed:
                raise GivenUp(f"{len(clients)} clients are left, {needed} are needed")
            return
        if step == "share_secrets":
            present = set(clients)
            self._partners = {
                client: [j for j in self.graph.neighbors[client] if j in present]
                for client in present
            }
        if step in _BEFORE_SHARES:
            self._check_neighborhoods(clients)
        if step == "upload" and not is_connected(self.graph.neighbors, clients):
            raise GivenUp("the clients that stay are not connected in the graph")

    def unmask(self) -> list[int]:
        """Remove from the sums the masks of survivors' own seeds, and masks shared with clients that left.

        Returns:
            The clients whose shares are inconsistent with those of t others.
        """
        survivors, refused = set(self._survivors), set[int]()
        needed = {j for client in survivors for j in self._shown(client)} | survivors
        opened = {client: self._secret(client, client in survivors, refused) for client in needed}
        dropped = {client: key_pair(opened[client]) for client in needed - survivors}
        for survivor in self._survivors:
            pair_seeds = {
                j: agreed_seed(dropped[j], self._keys[survivor], self._number)
                for j in self._shown(survivor)
                if j in dropped
            }
            rows = self._layout[survivor]
            without_masks = self._sums[rows].copy()  # it uploaded nothing there
            masks = [(opened[survivor], 1), *pair_masks(survivor, pair_seeds)]
            add_masks(self._sums, removed(masks))
            self._sums[rows] = without_masks
        return sorted(refused)

    @property
    def summed(self) -> list[int]:
        """The clients whose contributions are summed, the survivors."""
        return list(self._survivors)

    def _holders(self, client: int) -> Sequence[int]:
        """The clients that hold shares of one client's secrets, in the order of the shares."""
        return self.graph.neighbors[client] if self.graph else self._participants

    def _shown(self, client: int) -> Sequence[int]:
        """The clients whose shares one client holds, in the order in which it reveals them."""
        return self._partners[client] if self.graph else self._participants

    def _check_neighborhoods(self, clients: Iterable[int]) -> None:
        assert self.graph is not None
        present = set(clients)
        for client in present:
            count = len(present.intersection(self.graph.neighbors[client]))
            if count < self.threshold:
                raise GivenUp(
                    f"client {client} has {count} neighbors left of the {self.threshold} it needs"
                )
        if not present:
            raise GivenUp("nobody is left")

    def _secret(self, client: int, is_survivor: bool, refused: set[int]) -> bytes:
        """Reconstruct b_j of a survivor or c_j of another; add clients with inconsistent shares to `refused`.

        With a wrong share the result has 521 bits, more than any secret. If more than t holders sent shares,
        the secret can be reconstructed without the wrong one.
        """
        points = {j: point for point, j in enumerate(self._holders(client), 1)}
        held = {
            j: self._shares[j][client]
            for j in points
            if j not in refused and client in self._shares.get(j, ())
        }
        if len(held) < self.threshold:
            error = GivenUp if self.graph else ProtocolError
            raise error(f"{len(held)} shares of client {client}, {self.threshold} are needed")
        num_bytes = SEED_BYTES if is_survivor else KEY_BYTES

        def opened(*without: int) -> bytes:
            shares = {points[j]: share for j, share in held.items() if j not in without}
            return shamir.reconstruct(shares, self.threshold, num_bytes)

        with contextlib.suppress(ProtocolError):
            return opened()
        for liar in held:
            with contextlib.suppress(ProtocolError):
                secret = opened(liar)
                refused.add(liar)
                return secret
        raise ProtocolError(f"the shares of client {client} do not belong to one secret")


_BEFORE_UPLOADS = ("announce", "share_secrets", "collect_secrets")
_BEFORE_SHARES = ("announce", "share_secrets", "upload")


def run(
    parties: Parties,
    server: Server,
    members: Iterable[int] | None = None,
    *,
    first_round: int = 0,
    progress: masked.UploadsDone | None = None,
) -> masked.RowSums:
    """Sums for all clients that stay; contributions of all that uploaded in the last round.

    On the complete graph a dropout before any upload starts another round without the client, which costs no
    upload. Dropouts that leave fewer clients than the threshold start another round, too, which costs one
    upload.

    Returns:
        Z[R_j] of every client that stayed to the end, float64 [n_j, C], None for one in another process;
        empty if all have left, or too few are left to sign, or for a sparse graph's promise.
    """
    present, number = sorted(parties.clients if members is None else members), first_round
    while server.graph or (present and len(present) >= server.least_participants):
        server.start(number, present)
        try:
            _exchange(parties, server, present, progress)
            liars = server.unmask()
        except GivenUp as reason:
            present = parties.presence.staying(present)
            parties("abandon", present, quiet=True)
            if server.graph:
                logging.warning("a sum of round %d is given up: %s", number, reason)
                return {}
            number += 1
            continue
        for liar in liars:
            logging.warning("client %d is lost, its shares do not fit the others'", liar)
            parties.presence.lose(liar)
        present = parties.presence.staying(server.summed)
        return parties("finish", present, tell=server.send_sums, quiet=True)
    return {}


def _exchange(
    parties: Parties, server: Server, present: list[int], progress: masked.UploadsDone | None
) -> None:
    """Exchange keys, shares, uploads and secrets of one round; raises `GivenUp` as `Server.check`."""
    signing: dict[str, Any] = (
        {"take": server.receive_signature} if server.is_signed else {"quiet": True}
    )
    upload = masked.counting(server.receive_upload, len(present), progress)
    steps: list[tuple[str, dict[str, Any]]] = [
        ("announce", {"tell": server.invite, "take": server.receive_key}),
        ("share_secrets", {"tell": server.send_keys}),
        ("collect_secrets", {"tell": server.send_partners, "quiet": True}),
        ("upload", {"take": upload}),
        ("hear_survivors", {"tell": server.ask, **signing}),
        ("reveal", {"tell": server.send_signatures, "take": server.receive_shares}),
    ]
    for step, exchange in steps:
        needs_all = not server.graph and step in _BEFORE_UPLOADS
        present = list(parties(step, present, needs_all=needs_all, **exchange))
        server.check(step, present)


def least_threshold(num_participants: int, *, signed: bool) -> int:
    """The smallest t allowed among p participants of the complete graph.

    It is more than half: then two lists of survivors cannot both get answers from t clients. It is more than
    two thirds if lists are signed: then 2 t > p + k, and two lists cannot both have t signatures, even if k <
    p / 3 clients sign any list.
    """
    return (2 * num_participants // 3 if signed else num_participants // 2) + 1


def least_in_round(rows: RowsOf, *, signed: bool) -> int:
    """Smallest number of clients in a round.

    A round of few clients reveals their sums, and a server could ask for one by claiming that all others have
    left. So clients that sign take part only if as many clients as must sign at first are in the round.
    """
    least = least_threshold(num_clients(rows), signed=True) if signed else 1
    return max(least, least_participants(rows))


def start_message(number: int, participants: Sequence[int], threshold: int) -> bytes:
    """Message with a round's number, participants and threshold."""
    return masked.start_message(number, participants) + struct.pack("<I", threshold)


def parsed_start(message: bytes) -> tuple[int, list[int], int]:
    """Parse the message of `start_message`."""
    if len(message) < 4:
        raise ProtocolError(f"a start has 12 + 4 p bytes, got {len(message)}")
    number, participants = masked.parsed_start(message[:-4])
    return number, participants, struct.unpack("<I", message[-4:])[0]


def sparse_start_message(
    number: int, num_terms: int, threshold: int, neighbors: Sequence[int]
) -> bytes:
    """Message with a round's number, the number of clients, the threshold, and one client's neighbors."""
    head = _SPARSE_START.pack(number, num_terms, threshold)
    return head + struct.pack(f"<{len(neighbors)}I", *neighbors)


def parsed_sparse_start(message: bytes) -> tuple[int, int, int, list[int]]:
    """Parse the message of `sparse_start_message`."""
    count, rest = divmod(len(message) - _SPARSE_START.size, 4)
    if count < 1 or rest:
        raise ProtocolError(f"a start has 16 + 4 k bytes, got {len(message)}")
    number, num_terms, threshold = _SPARSE_START.unpack_from(message)
    neighbors = list(struct.unpack_from(f"<{count}I", message, _SPARSE_START.size))
    if neighbors != sorted(set(neighbors)):
        raise ProtocolError(f"neighbors {neighbors}: not in ascending order")
    return number, num_terms, threshold, neighbors


def parsed_keys(message: bytes, participants: Sequence[int]) -> dict[int, bytes]:
    """Public keys by participant, from the server's list."""
    expected = KEY_BYTES * len(participants)
    if len(message) != expected:
        raise ProtocolError(
            f"{len(participants)} mask keys have {expected} bytes, got {len(message)}"
        )
    return {
        client: message[KEY_BYTES * index : KEY_BYTES * (index + 1)]
        for index, client in enumerate(participants)
    }


def packed_neighbors_keys(keys: Sequence[tuple[int, bytes]]) -> bytes:
    """Message with public keys and the addresses of their clients."""
    return b"".join(_KEY.pack(*entry) for entry in keys)


def parsed_neighbors_keys(message: bytes) -> dict[int, bytes]:
    """Parse the message of `packed_neighbors_keys`."""
    if len(message) % _KEY.size:
        raise ProtocolError(f"mask keys take {_KEY.size} bytes each, got {len(message)}")
    entries = list(_KEY.iter_unpack(message))
    clients = [client for client, _ in entries]
    if clients != sorted(set(clients)):
        raise ProtocolError(f"mask keys of clients {clients}: not in ascending order")
    return dict(entries)
