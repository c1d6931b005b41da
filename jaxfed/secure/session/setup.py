"""Setup of a session: the parties agree on keys, and each gets an endpoint (`endpoint.Endpoint`).

Messages of the setup; keys are made for this session and deleted with it:

    invite     server -> each    the session's number alone, in the header, in the clear
    hello      each -> server    the client's public key                     32 bytes, in the clear
    roster     server -> each    the server's and all clients' public keys   32 + 36 p, in the clear
    group      lowest -> each    the group secret                            32 bytes, sealed

Every two parties then share X25519(own, partner). A message from a to b is sealed with AES-256-GCM under a
key of this direction, HKDF(shared; session, "channel", a, b, hash of the roster), the nonce is its sequence
number and the header its associated data. So parties with different rosters share no key. A message cannot be
opened if it is changed, cut, repeated, left out, or from another session, sender or receiver. The server,
which carries everything, learns only the headers of messages between clients. The group secret comes from one
client's operating system. The server never has it, and no party has another party's private key.

Public keys are assumed to arrive as they were sent: the server follows the protocol, or clients verify each
other's keys by other means (a certificate, a comparison of `roster_hash`). A server that put its own keys
into the roster would be a man in the middle.

In a sparse session (`neighborhoods`) the server draws a graph over the clients that have joined. A client's
roster has the server, itself and its k neighbors, 32 + 36 (k + 1) bytes; it shares keys with these alone, and
keys of a pair derive from the hash of what both rosters have, the server's key and the pair's. There is no
group secret, and a client that leaves later is left to the protocol.
"""

from __future__ import annotations

import secrets
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from jaxfed.errors import DroppedOut, ProtocolError
from jaxfed.secure.session import framing
from jaxfed.secure.session.channel import Channel
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.framing import SESSION_BYTES, Header, check_route
from jaxfed.secure.session.key_agreement import (
    KEY_BYTES,
    Agreements,
    KeyPair,
    RandomBytes,
    check_public,
)
from jaxfed.secure.session.neighborhoods import (
    PROMISE,
    Graph,
    Promise,
    drawn_graph,
    enough_partners,
)
from jaxfed.secure.session.party_endpoint import PartyEndpoint
from jaxfed.secure.session.phases import InProcess, Parties

_ENTRY = struct.Struct(f">i{KEY_BYTES}s")


class ClientSetup:
    """A client during setup."""

    def __init__(
        self, address: int, channel: Channel, *, random_bytes: RandomBytes = secrets.token_bytes
    ) -> None:
        self._address, self._channel = address, channel
        self._random_bytes = random_bytes

    def join(self) -> None:
        """Receive the invitation and send a fresh public key."""
        header, _ = _taken(self._channel, SERVER, self._address, "invite")
        self._session = header.session
        self._keys = KeyPair(self._random_bytes)
        _sent(self._channel, self._session, self._address, SERVER, "hello", self._keys.public)

    def agree(self, *, among_neighbors: bool = False) -> PartyEndpoint:
        """Receive the roster of the parties that messages go to or come from; agree on keys with these."""
        header, message = _taken(self._channel, SERVER, self._address, "roster")
        check_route(header, self._session, SERVER, self._address, is_sealed=False)
        roster = parsed_roster(message)
        if roster.get(self._address) != self._keys.public:
            raise ProtocolError(f"a roster without client {self._address}'s key")
        others = {party: public for party, public in roster.items() if party != self._address}
        shared = Agreements(self._keys, others)
        self._clients = sorted(roster.keys() - {SERVER})
        self._endpoint = PartyEndpoint(
            self._address,
            self._channel,
            self._session,
            message,
            shared,
            _pair_rosters(roster, self._address) if among_neighbors else None,
        )
        return self._endpoint

    def agree_with_neighbors(self) -> PartyEndpoint:
        """The same in a sparse session, where the roster has neighbors alone."""
        return self.agree(among_neighbors=True)

    def give_group_secret(self) -> None:
        """Draw the group secret and send it to the others, if this client has the lowest address."""
        leader, *others = self._clients
        if self._address == leader:
            secret = self._random_bytes(KEY_BYTES)
            for partner in others:
                self._endpoint.send(partner, "group", secret)
            self._endpoint.join_group(secret)

    def finished(self) -> PartyEndpoint:
        """Receive the group secret from the client that draws it; return the endpoint."""
        leader = self._clients[0]
        if self._address != leader:
            self._endpoint.join_group(self._endpoint.receive(leader, "group"))
        return self._endpoint


class ServerSetup:
    """The server during setup; arguments as `ClientSetup`.

    Attributes:
        graph: of a sparse session, to be set before rosters are sent.
    """

    def __init__(
        self, channel: Channel, *, random_bytes: RandomBytes = secrets.token_bytes
    ) -> None:
        self._channel = channel
        self._session = random_bytes(SESSION_BYTES)
        self._keys = KeyPair(random_bytes)
        self._roster = {SERVER: self._keys.public}
        self.graph: Graph | None = None

    def invite(self, client: int) -> None:
        """Send the invitation to one client."""
        _sent(self._channel, self._session, SERVER, client, "invite", b"")

    def accept(self, client: int) -> None:
        """Receive one client's public key."""
        header, public = _taken(self._channel, client, SERVER, "hello")
        check_route(header, self._session, client, SERVER, is_sealed=False)
        if client in self._roster:
            raise ProtocolError(f"client {client} is there twice")
        if public in self._roster.values():
            raise ProtocolError(f"client {client} has a public key that another party has")
        check_public(public)  # before others see it
        self._roster[client] = public

    def send_roster(self, client: int) -> None:
        """Send all public keys to one client, in a sparse session those of its neighbors."""
        publics = self._roster
        if self.graph:
            publics = {
                party: publics[party] for party in (SERVER, client, *self.graph.neighbors[client])
            }
        roster = packed_roster(publics)
        _sent(self._channel, self._session, SERVER, client, "roster", roster)

    def finished(self) -> PartyEndpoint:
        """The server's endpoint."""
        clients = {party: public for party, public in self._roster.items() if party != SERVER}
        shared = Agreements(self._keys, clients)
        return PartyEndpoint(
            SERVER,
            self._channel,
            self._session,
            packed_roster(self._roster),
            shared,
            _pair_rosters(self._roster, SERVER) if self.graph else None,
        )


def agree(
    clients: Sequence[int],
    channel: Channel,
    random_bytes: RandomBytes = secrets.token_bytes,
    parties: Parties | None = None,
    *,
    mask_partners: int = 0,
    promise: Promise = PROMISE,
) -> tuple[dict[int, PartyEndpoint], Graph | None]:
    """Endpoints of the server and the given clients, after setup, and the graph of a sparse session.

    Of a sparse session, `mask_partners` above 0, clients that leave before they have sent a key are no part;
    others stay neighbors that never answer.

    Returns:
        Endpoints by address, of clients those in this process and None for others; and the graph.

    Raises:
        DroppedOut: a client has left a session that is not sparse.
    """
    server = ServerSetup(channel, random_bytes=random_bytes)
    play = parties or InProcess(
        {j: ClientSetup(j, channel, random_bytes=random_bytes) for j in clients}, channel.presence
    )

    def everybody(step: str, **exchange: Any) -> dict[int, PartyEndpoint]:
        answers = play(step, clients, needs_all=not mask_partners, **exchange)
        left = [*play.presence.gone.intersection(clients), *(set(clients) - answers.keys())]
        if left and not mask_partners:
            raise DroppedOut(left[0])
        return answers

    clients = sorted(everybody("join", tell=server.invite, take=server.accept))
    if mask_partners:
        size = enough_partners(len(clients), mask_partners, promise)
        server.graph = drawn_graph(clients, size, random_bytes, promise)
        ends = everybody("agree_with_neighbors", tell=server.send_roster, quiet=True)
        return {SERVER: server.finished(), **ends}, server.graph
    everybody("agree", tell=server.send_roster, quiet=True)
    everybody("give_group_secret")
    endpoint = server.finished()
    return {SERVER: endpoint, **everybody("finished", quiet=True)}, None


def packed_roster(roster: Mapping[int, bytes]) -> bytes:
    """The server's key, then address and key of every client in ascending order."""
    clients = sorted(roster.keys() - {SERVER})
    return roster[SERVER] + b"".join(_ENTRY.pack(client, roster[client]) for client in clients)


def _pair_rosters(roster: Mapping[int, bytes], client: int) -> dict[int, bytes]:
    """By partner, the roster of the server, this party and the partner alone."""
    return {
        partner: packed_roster({party: roster[party] for party in (SERVER, client, partner)})
        for partner in roster
        if partner != client
    }


def parsed_roster(message: bytes) -> dict[int, bytes]:
    """Parse the message of `packed_roster`."""
    count, rest = divmod(len(message) - KEY_BYTES, _ENTRY.size)
    if count < 1 or rest:
        raise ProtocolError(f"a roster of {len(message)} bytes; its length must be 32 + 36 p")
    entries = list(_ENTRY.iter_unpack(message[KEY_BYTES:]))
    addresses = [address for address, _ in entries]
    if addresses[0] < 0 or addresses != sorted(set(addresses)):
        raise ProtocolError(f"a roster of clients {addresses}: not in ascending order")
    roster = {SERVER: message[:KEY_BYTES], **dict(entries)}
    if len(set(roster.values())) != len(roster):
        raise ProtocolError("a roster in which two parties have the same key")
    return roster


def _sent(
    channel: Channel, session: bytes, sender: int, receiver: int, kind: str, payload: bytes
) -> None:
    """Send a message of setup, in the clear. Each kind comes once, so messages need no numbers."""
    channel.presence.act(sender, "send", kind)
    header = Header(session, sender, receiver, kind, 0, len(payload), False)
    channel.send(header.packed() + payload)


def _taken(channel: Channel, sender: int, receiver: int, kind: str) -> tuple[Header, bytes]:
    """Receive a message of setup."""
    channel.presence.act(receiver, "receive", kind)
    message = channel.receive(sender, receiver)
    if message is None:
        raise ProtocolError(f"no message from {sender} where {kind!r} was due")
    frame = framing.parsed(message)
    check_route(frame.header, frame.header.session, sender, receiver, is_sealed=False)
    if (frame.header.kind, frame.header.sequence) != (kind, 0):
        raise ProtocolError(f"{frame.header.kind!r} from {sender} where {kind!r} was due")
    return frame.header, bytes(frame.body)
