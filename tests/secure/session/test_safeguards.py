"""Every safeguard of sessions counts: removed, a check fails.

(what is removed, how, the check that must fail then). A check raises nothing when all is well.
"""

from types import SimpleNamespace

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher
from removed_safeguards import is_needed
from session_parties import (
    KEYS,
    Wire,
    clear,
    established,
    in_another_roster,
    key_pair,
    reheaded,
    walk,
)

from jaxfed.errors import ProtocolError
from jaxfed.secure.session import framing, key_agreement, party_endpoint, sealed_link
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.key_agreement import KeyPair, derived_key
from jaxfed.secure.session.party_endpoint import PartyEndpoint
from jaxfed.secure.session.sealed_link import Link
from jaxfed.secure.session.setup import ServerSetup


def check_replay():
    wire, ends = established()
    ends[0].send(1, "kind", b"once")
    assert ends[1].receive(0, "kind") == b"once"
    wire.forged.append(wire.sent[-1])
    with pytest.raises(ProtocolError):
        ends[1].receive(0, "kind")


def check_order():
    wire, ends = established()
    for payload in (b"first", b"second"):
        ends[0].send(1, "kind", payload)
    wire.forged.append(wire.sent[-1])
    with pytest.raises(ProtocolError):
        ends[1].receive(0, "kind")


def no_sequence_numbers(monkeypatch):
    always_zero = property(lambda self: 0, lambda self, number: None)
    monkeypatch.setattr(Link, "_sequence", always_zero, raising=False)


def in_two_sessions(roster=b"roster"):
    """Clients 0 and 1 with the same key pairs in two sessions, as if keys had been kept."""
    keys = [key_pair(bytes([7 + client]) * 32) for client in (0, 1)]
    for session in (b"session number 1", b"session number 2"):
        wire = Wire()
        yield (
            wire,
            *(
                PartyEndpoint(
                    own, wire, session, roster, {1 - own: keys[own].agreed(keys[1 - own].public)}
                )
                for own in (0, 1)
            ),
        )


def check_sessions():
    (old, sender, _), (wire, _, receiver) = in_two_sessions()
    sender.send(1, "kind", b"of the first session")
    for message in (old.sent[-1], reheaded(old.sent[-1], session=b"session number 2")):
        wire.forged.append(message)
        with pytest.raises(ProtocolError):
            receiver.receive(0, "kind")


def check_masks_of_sessions():
    (_, one, _), (_, other, _) = in_two_sessions()
    for end in (one, other):
        end.join_group(b"g" * 32)
    assert one.pair_seed(1, "masks") != other.pair_seed(1, "masks")
    assert one.group_seed("masks") != other.group_seed("masks")


def no_session_in_keys(monkeypatch):
    def without(secret, session, purpose, *context):
        return derived_key(secret, bytes(16), purpose, *context)

    monkeypatch.setattr(party_endpoint, "derived_key", without)


def no_session_in_routes(monkeypatch):
    check = sealed_link.check_route

    def without(header, session, sender, receiver, *, is_sealed):
        check(header, header.session, sender, receiver, is_sealed=is_sealed)

    monkeypatch.setattr(sealed_link, "check_route", without)


def no_session_anywhere(monkeypatch):
    no_session_in_keys(monkeypatch)
    no_session_in_routes(monkeypatch)


def check_directions():
    """The same payload there and back must not meet the same keystream."""
    wire, ends = established()
    bodies = []
    for sender, receiver in ((1, 2), (2, 1)):
        ends[sender].send(receiver, "kind", b"the same payload")
        bodies.append(bytes(framing.parsed(wire.sent[-1]).body[:16]))
    assert bodies[0] != bodies[1]


def no_direction_in_keys(monkeypatch):
    packed = party_endpoint.struct.pack

    def sorted_route(layout, *route):
        return packed(layout, *sorted(route))

    monkeypatch.setattr(party_endpoint, "struct", SimpleNamespace(pack=sorted_route))


def check_headers():
    wire, ends = established()
    ends[0].send(1, "kind", b"payload")
    wire.forged.append(reheaded(wire.sent[-1], kind="sum"))
    with pytest.raises(ProtocolError):
        ends[1].receive(0, "sum")


def no_associated_data(monkeypatch):
    class Bare:
        def __init__(self, algorithm, mode):
            self._encryptor = Cipher(algorithm, mode).encryptor()
            self.update_into, self.finalize = (
                self._encryptor.update_into,
                self._encryptor.finalize,
            )

        tag = property(lambda self: self._encryptor.tag)

        def encryptor(self):
            return self

        def authenticate_additional_data(self, header):
            pass

    opening = sealed_link.AESGCM

    def bare_opening(key):
        return SimpleNamespace(
            decrypt=lambda nonce, body, header: opening(key).decrypt(nonce, body, None)
        )

    monkeypatch.setattr(sealed_link, "Cipher", Bare)
    monkeypatch.setattr(sealed_link, "AESGCM", bare_opening)


def check_rosters():
    with pytest.raises(ProtocolError):
        in_another_roster(Wire())


def no_roster_hash(monkeypatch):
    nothing = property(lambda self: b"", lambda self, digest: None)
    monkeypatch.setattr(PartyEndpoint, "roster_hash", nothing, raising=False)


def check_small_order():
    """With such a key of the server's in the roster, everybody could read what is sealed for it."""

    def change(number, message):
        header, _, body = framing.parsed(message)
        if header.kind != "roster":
            return message
        return clear(header.session, SERVER, header.receiver, "roster", bytes(32) + body[32:])

    wire = Wire()
    wire.change = change
    with pytest.raises(ProtocolError):
        walk(wire)


def no_check_of_order(monkeypatch):
    agreed = KeyPair.agreed

    def unchecked(self, public):
        return agreed(self, public) if any(public) else bytes(32)

    monkeypatch.setattr(KeyPair, "agreed", unchecked)
    monkeypatch.setattr(key_agreement, "_SMALL_ORDER", set())


def check_second_hello(client, key):
    """After client 0's, with KEYS[0], another hello is refused."""
    wire = Wire()
    server = ServerSetup(wire)
    server.invite(0)
    session = framing.parsed(wire.receive(SERVER, 0)).header.session
    wire.send(clear(session, 0, SERVER, "hello", KEYS[0]))
    server.accept(0)
    wire.send(clear(session, client, SERVER, "hello", key))
    with pytest.raises(ProtocolError):
        server.accept(client)


def check_field():
    """The same key in two ways would pass for two keys."""
    check_second_hello(1, KEYS[0][:31] + bytes([KEYS[0][31] | 128]))


def no_check_of_field(monkeypatch):
    monkeypatch.setattr(key_agreement, "_FIELD", 2**256)


def check_keys_of_two():
    check_second_hello(1, KEYS[0])


def check_clients_twice():
    check_second_hello(0, KEYS[1])


def no_memory_of_clients(monkeypatch):
    class Forgetful(dict):
        def __contains__(self, client):
            return False

        def values(self):
            return ()

    begin = ServerSetup.__init__

    def forgetful(self, *arguments, **keywords):
        begin(self, *arguments, **keywords)
        self._roster = Forgetful(self._roster)

    monkeypatch.setattr(ServerSetup, "__init__", forgetful)


SAFEGUARDS = {
    "sequence numbers against replay": (no_sequence_numbers, check_replay),
    "sequence numbers against reordering": (no_sequence_numbers, check_order),
    "session in keys and headers": (no_session_anywhere, check_sessions),
    "session in the keys of masks": (no_session_in_keys, check_masks_of_sessions),
    "direction in keys": (no_direction_in_keys, check_directions),
    "header as associated data": (no_associated_data, check_headers),
    "roster's hash in keys": (no_roster_hash, check_rosters),
    "points of small order": (no_check_of_order, check_small_order),
    "one way to write a key": (no_check_of_field, check_field),
    "keys of two clients": (no_memory_of_clients, check_keys_of_two),
    "clients that come twice": (no_memory_of_clients, check_clients_twice),
}


@pytest.mark.parametrize("safeguard", SAFEGUARDS)
def test_every_safeguard_is_needed(safeguard, monkeypatch):
    is_needed(*SAFEGUARDS[safeguard], monkeypatch)


@pytest.mark.parametrize("remove", [no_session_in_keys, no_session_in_routes])
def test_either_safeguard_of_sessions_suffices(remove, monkeypatch):
    """Keys that differ, and numbers in headers that are compared: each keeps sessions apart."""
    remove(monkeypatch)
    check_sessions()
