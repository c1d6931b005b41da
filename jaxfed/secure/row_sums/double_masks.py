"""Double masks: the parties' steps that `resilient` and `sparse` have in common.

For one round client j draws b_j and c_j. Pairwise masks from (c_j, c_j G), and G(b_j), cover its rows. Both
secrets are shared among holders, of whom any t can reconstruct one. On the rows of client m there is another
stream, from a seed that only j and m have: m removes it, and if m has left, the sum on its rows stays hidden.
(There is one seed per direction: the same stream on R_m by j and on R_j by m would be a one-time pad used
twice.) Survivors reveal shares of b_j for each other, and of c_d for a client d that left after others had
added masks shared with it. The server never gets both secrets of one client: it could then open its upload.
"""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np

from jaxfed.errors import ProtocolError
from jaxfed.secure.primitives import shamir
from jaxfed.secure.primitives.fixed_point import FixedPoint
from jaxfed.secure.primitives.prg import SEED_BYTES, derived_seed
from jaxfed.secure.row_sums import masked
from jaxfed.secure.row_sums.mask_streams import add_masks, masked_rows, pair_masks, removed
from jaxfed.secure.row_sums.participants import ParticipatingRows, RowsOf, parsed_rows
from jaxfed.secure.row_sums.summing_server import SummingServer
from jaxfed.secure.session.endpoint import SERVER, Endpoint
from jaxfed.secure.session.key_agreement import KEY_BYTES, KeyPair, RandomBytes

Shares = tuple[bytes, bytes]  # of b_j and of c_j


class GivenUp(ProtocolError):
    """The server abandons the round: a secret could not be opened, or a sum over some survivors could be."""


def key_pair(secret: bytes) -> KeyPair:
    """(c, c G) on Curve25519."""
    return KeyPair(lambda _: secret)


def agreed_seed(own: KeyPair, public: bytes, number: int) -> bytes:
    """The seed that the owners of two mask keys agree on for a round.

    Raises:
        ProtocolError: the public key is invalid, or a point of small order.
    """
    return derived_seed(own.agreed(public), f"row sums/{number}/pair mask")


def owner_label(number: int, contributor: int, owner: int) -> str:
    """Label of the seed of the mask on `contributor`'s part of `owner`'s rows in a round."""
    return f"row sums/{number}/rows of {owner} by {contributor}"


class DoubleMaskClient:
    """One client; arguments as `masked.Client`.

    Args:
        random_bytes: source of b_j, c_j and the shares; the operating system's unless a test replays it.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        values: np.ndarray,
        rows: RowsOf,
        *,
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> None:
        self._endpoint, self._values, self._rows = endpoint, values, rows
        self._own, self._random_bytes = endpoint.address, random_bytes
        self._number = -1  # no round yet
        self._survivors: Sequence[int] = ()
        # Shares of the secrets of others, and of its own, by client.
        self._held: dict[int, Shares] = {}

    def abandon(self) -> None:
        """Abort the round: discard its shares that have not been read."""
        self._endpoint.discard(f"secrets/{self._number}")

    def finish(self) -> np.ndarray:
        """Z[R_j], float64 [n_j, C], from the server's sums."""
        message = self._endpoint.receive(SERVER, f"sums/{self._number}")
        own = self._masked_own + parsed_rows(message, self._masked_own.shape, "a message of sums")
        first = self._layout[self._own].start * own.shape[1]
        dropped = {j: self._pair_seeds[j] for j in self._partners if j not in self._survivors}
        add_masks(own, removed(pair_masks(self._own, dropped)), first=first)
        for contributor in self._survivors if own.size else ():
            if contributor != self._own:
                add_masks(own, [(self._owner_seed(contributor, self._own), -1)])
        return self._encoding.decode(own)

    def _begin(
        self,
        number: int,
        threshold: int,
        holders: Sequence[int],
        owners: Iterable[int],
        num_terms: int,
    ) -> None:
        """Begin a round among owners of rows and `num_terms` clients; draw its secrets."""
        self._endpoint.claim(f"row sums/{number}")
        self._number, self._threshold, self._holders = number, threshold, holders
        self._encoding = FixedPoint(num_terms)
        self._layout = ParticipatingRows(self._rows, owners, self._values.shape[1])
        self._mask_secret = self._random_bytes(KEY_BYTES)
        self._mask_keys = key_pair(self._mask_secret)
        self._self_seed = self._random_bytes(SEED_BYTES)

    def _shared(self, keys: Mapping[int, bytes]) -> dict[int, Shares]:
        """Agree on a seed with each owner of a mask key; return each holder's shares of b_j and c_j."""
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
        return dict(zip(self._holders, zip(of_seed, of_key, strict=True), strict=True))

    def _receive_shares(self, partner: int, more: int = 0) -> bytes:
        """Receive a partner's shares; return the `more` bytes that follow them."""
        message = self._endpoint.receive(partner, f"secrets/{self._number}")
        size = shamir.SHARE_BYTES
        if len(message) != 2 * size + more:
            expected = 2 * size + more
            raise ProtocolError(f"a message of secrets has {expected} bytes, got {len(message)}")
        self._held[partner] = message[:size], message[size : 2 * size]
        return message[2 * size :]

    def _send_upload(self, partners: Sequence[int], owners: Iterable[int]) -> None:
        """Send the others' rows under masks shared with the partners, the own one, and those of owners."""
        self._partners, layout = partners, self._layout
        masks = pair_masks(self._own, {j: self._pair_seeds[j] for j in partners})
        masked = masked_rows(layout.gathered(self._values), self._encoding, masks)
        self._masked_own = masked[layout[self._own]].copy()
        add_masks(masked, [(self._self_seed, 1)])
        for owner in owners:
            add_masks(masked[layout[owner]], [(self._owner_seed(self._own, owner), 1)])
        self._endpoint.send(SERVER, f"upload/{self._number}", layout.upload(masked, self._own))

    def _received_list(self, kind: str, known: Collection[int]) -> list[int]:
        """Receive a list of clients among `known` in this round."""
        message = self._endpoint.receive(SERVER, f"{kind}/{self._number}")
        number, clients = masked.parsed_start(message)
        self._check_among(clients, known, kind, is_of_round=number == self._number)
        return clients

    def _check_among(
        self, clients: Sequence[int], known: Collection[int], what: str, *, is_of_round: bool = True
    ) -> None:
        """Refuse a list of another round, with clients outside `known`, or of fewer than t clients."""
        if not is_of_round or not set(clients) <= set(known) or len(clients) < self._threshold:
            raise ProtocolError(f"{what} {clients}: not of this round, or too few")

    def _send_shares(self, clients: Iterable[int]) -> None:
        """Reveal shares of b_j for survivors among these clients, and of c_j for the others, once a round."""
        self._endpoint.claim(f"row sums/{self._number}/shares")
        shares = [self._held[j][0 if j in self._survivors else 1] for j in clients]
        self._endpoint.send(SERVER, f"shares/{self._number}", b"".join(shares))

    def _owner_seed(self, contributor: int, owner: int) -> bytes:
        """Seed of the mask on `contributor`'s part of `owner`'s rows, known only to these two."""
        partner = owner if contributor == self._own else contributor
        return self._endpoint.pair_seed(partner, owner_label(self._number, contributor, owner))


class DoubleMaskServer(SummingServer):
    """The server.

    Args:
        endpoint: its end of the session.

    Attributes:
        threshold: t of the round.
    """

    threshold: int

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint)
        self._probe = key_pair(bytes(range(KEY_BYTES)))  # no secret of anybody

    def receive_key(self, client: int) -> None:
        """Receive one client's public key."""
        key = self._endpoint.receive(client, "mask_key")
        self._probe.agreed(key)  # refuses an invalid key, before others see it
        self._keys[client] = key

    def receive_upload(self, client: int) -> None:
        """Add one client's upload, which makes it a survivor."""
        self._add_upload(client)
        self._survivors.append(client)

    def ask(self, client: int) -> None:
        """Send one survivor the list of those survivors whose shares it has."""
        shown = set(self._shown(client))
        survivors = [j for j in self._survivors if j in shown]
        message = masked.start_message(self._number, sorted(survivors))
        self._endpoint.send(client, f"survivors/{self._number}", message)

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

    def unmask(self) -> list[int]:
        """Remove from the sums the masks of survivors' own seeds, and masks shared with clients that left.

        Returns:
            The clients whose shares are inconsistent with those of t others.

        Raises:
            GivenUp: fewer than t holders of a secret sent shares.
            ProtocolError: inconsistent shares.
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
            self._remove_masks(survivor, opened[survivor], pair_seeds)
        return sorted(refused)

    @property
    def summed(self) -> list[int]:
        """The clients whose contributions are summed, the survivors."""
        return list(self._survivors)

    def _holders(self, client: int) -> Sequence[int]:
        """The clients that hold shares of one client's secrets, in the order of the shares."""
        raise NotImplementedError

    def _shown(self, client: int) -> Sequence[int]:
        """The clients whose shares one client holds, in the order in which it reveals them."""
        raise NotImplementedError

    def _begin(self, number: int, layout: ParticipatingRows) -> None:
        super()._begin(number, layout)
        self._keys: dict[int, bytes] = {}
        self._survivors: list[int] = []
        self._shares: dict[
            int, dict[int, bytes]
        ] = {}  # by client that sent them, and whose they are

    def _secret(self, client: int, is_survivor: bool, refused: set[int]) -> bytes:
        """Reconstruct b_j of a survivor or c_j of another; add clients with inconsistent shares to `refused`.

        With a wrong share the result has 521 bits, more than any secret. If more than t holders sent shares,
        the secret can be reconstructed without the wrong one.
        """
        places = {j: place for place, j in enumerate(self._holders(client), 1)}
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
