"""A party's endpoint in a session with agreed keys: the implementation of `endpoint.Endpoint`."""

from __future__ import annotations

import contextlib
import hashlib
import struct
from collections import defaultdict, deque
from collections.abc import Callable, Mapping

from jaxfed.errors import DroppedOut, ProtocolError
from jaxfed.secure.session.channel import Channel
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.framing import Link
from jaxfed.secure.session.key_agreement import KEY_BYTES, derived_key


class PartyEndpoint:
    """One party's end of a session; `endpoint.Endpoint` defines its methods.

    Errors are `ProtocolError`s and do not change the state: an invalid message is dropped, and a message of
    an unexpected kind stays the next one.
    """

    def __init__(
        self,
        address: int,
        channel: Channel,
        session: bytes,
        roster: bytes,
        shared: Mapping[int, bytes],
        pair_rosters: Mapping[int, bytes] | None = None,
    ) -> None:
        self.address = address
        self.roster_hash = hashlib.sha256(roster).digest()
        self._pair_hashes = {
            partner: hashlib.sha256(common).digest()
            for partner, common in (pair_rosters or {}).items()
        }
        self._channel, self._session, self._shared = channel, session, shared
        self._group_secret = b""
        self._claimed: set[str] = set()
        self._outgoing = _Links(lambda partner: self._link(partner, True))
        self._incoming = _Links(lambda partner: self._link(partner, False))
        self._waiting = defaultdict[int, deque[tuple[str, bytes]]](deque)

    @property
    def clients(self) -> list[int]:
        """All clients of the session, those that have left among them."""
        return sorted({self.address, *self._shared} - {SERVER})

    def join_group(self, secret: bytes) -> None:
        """Set the group secret of this party, a client."""
        if len(secret) != KEY_BYTES:
            raise ProtocolError(f"a group secret has {KEY_BYTES} bytes, got {len(secret)}")
        self._group_secret = secret

    def send(self, receiver: int, kind: str, payload: bytes) -> None:
        """Send a message that only `receiver` can read."""
        self._channel.presence.act(self.address, "send", kind)
        self._check_partner(receiver)
        self._channel.send(self._outgoing[receiver].sealed(kind, payload))

    def receive(self, sender: int, kind: str) -> bytes:
        """The next message from `sender`."""
        self._channel.presence.act(self.address, "receive", kind)
        self._check_partner(sender)
        waiting = self._waiting[sender]
        if not waiting and not self._fetch(sender):
            if sender in self._channel.presence.gone:
                raise DroppedOut(sender)
            raise ProtocolError(f"no message from {sender} where {kind!r} was due")
        if waiting[0][0] != kind:
            raise ProtocolError(f"{waiting[0][0]!r} from {sender} where {kind!r} was due")
        return waiting.popleft()[1]

    def discard(self, kind: str) -> None:
        """Discard unread messages of this kind from all senders that are present."""
        for sender in self._channel.presence.staying(self._shared):
            waiting = self._waiting[sender]
            with contextlib.suppress(ProtocolError):  # the next `receive` refuses it
                while self._fetch(sender):
                    pass
            kept = [message for message in waiting if message[0] != kind]
            waiting.clear()
            waiting.extend(kept)

    def group_seed(self, label: str) -> bytes:
        """32 bytes that all clients derive for this label."""
        if not self._group_secret:
            raise ProtocolError(f"{self.address} has no group secret")
        return derived_key(self._group_secret, self._session, "group seed", label.encode())

    def pair_seed(self, partner: int, label: str) -> bytes:
        """32 bytes that this client and `partner` derive for this label."""
        self._check_partner(partner)
        if SERVER in (self.address, partner):
            raise ProtocolError("pair seeds are between clients")
        return derived_key(
            self._shared[partner],
            self._session,
            "pair seed",
            self._pair_hashes.get(partner, self.roster_hash),
            label.encode(),
        )

    def claim(self, label: str) -> None:
        """Use up a label."""
        if label in self._claimed:
            raise ProtocolError(f"{label!r} was used before in this session")
        self._claimed.add(label)

    def _fetch(self, sender: int) -> bool:
        """Open the next message from a party; false if it has not arrived."""
        message = self._channel.receive(sender, self.address)
        if message is None:
            return False
        self._waiting[sender].append(self._incoming[sender].opened(message))
        return True

    def _link(self, partner: int, is_outgoing: bool) -> Link:
        sender, receiver = (self.address, partner) if is_outgoing else (partner, self.address)
        route = struct.pack(">ii", sender, receiver)
        common = self._pair_hashes.get(partner, self.roster_hash)
        key = derived_key(self._shared[partner], self._session, "channel", route, common)
        return Link(key, self._session, sender, receiver)

    def _check_partner(self, partner: int) -> None:
        if partner not in self._shared:
            raise ProtocolError(f"{partner} is no partner of {self.address} in this session")


class _Links(dict[int, Link]):
    """Links by partner, made when they are first used."""

    def __init__(self, make: Callable[[int], Link]) -> None:
        super().__init__()
        self._make = make

    def __missing__(self, partner: int) -> Link:
        self[partner] = link = self._make(partner)
        return link
