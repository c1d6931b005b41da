"""Sessions: known answers, what a bad message does, who has which secret, and that every safeguard counts."""

import hmac
from collections import deque
from functools import partial
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from jaxfed.communication import Communication
from jaxfed.errors import UsageError
from jaxfed.secure import (
    framing,
    key_agreement,
    party_endpoint,
    sealed_link,
)
from jaxfed.secure.channel import Channel, Presence, Route
from jaxfed.secure.endpoint import SERVER, DroppedOut
from jaxfed.secure.errors import ProtocolError
from jaxfed.secure.framing import Header
from jaxfed.secure.key_agreement import KeyPair, derived_key
from jaxfed.secure.party_endpoint import PartyEndpoint
from jaxfed.secure.sealed_link import Link
from jaxfed.secure.session import Session
from jaxfed.secure.session_setup import ClientSetup, ServerSetup, agree

FRAME = 65  # bytes around a sealed payload, the kind's length aside


class Wire(Channel):
    """A channel on which somebody else's message can come first, or a message be changed on its way."""

    def __init__(self):
        super().__init__()
        self.forged = deque()
        self.sent = []
        self.change = lambda number, message: message
        self.taken = 0

    def send(self, message):
        self.sent.append(bytes(message))
        super().send(message)

    def receive(self, sender, receiver):
        if self.forged:
            return self.forged.popleft()
        message = super().receive(sender, receiver)
        if message is None:
            return None
        self.taken += 1
        return self.change(self.taken - 1, bytes(message))


def hexed(*parts):
    return bytes.fromhex("".join(parts))


def key_pair(private):
    return KeyPair(lambda count: private)


def replayed(seed):
    return np.random.default_rng(seed).bytes


def walk(channel, clients=(0, 1, 2), *, before=lambda sender, receiver, party, take: None, seed=0):
    """Setup step by step; `before` a message is taken it is told whose, and how it is taken."""
    source = replayed(seed)
    server = ServerSetup(channel, random_bytes=source)
    parties = {c: ClientSetup(c, channel, random_bytes=source) for c in clients}
    for c, party in parties.items():
        server.invite(c)
        before(SERVER, c, party, party.join)
        party.join()
        before(c, SERVER, server, lambda c=c: server.accept(c))
        server.accept(c)
    for c, party in parties.items():
        server.send_roster(c)
        before(SERVER, c, party, party.agree)
        party.agree()
    for party in parties.values():
        party.give_group_secret()
    leader, *others = sorted(clients)
    ends = {SERVER: server.finished(), leader: parties[leader].finished()}
    for c in others:
        before(leader, c, parties[c], parties[c].finished)
        ends[c] = parties[c].finished()
    return ends


def all_talk(ends):
    """Everybody to everybody, and the clients' seeds."""
    for a, sender in ends.items():
        for b, receiver in ends.items():
            if a != b:
                sender.send(b, "hi", b"%d to %d" % (a, b))
                assert receiver.receive(a, "hi") == b"%d to %d" % (a, b)
    clients = [end for address, end in ends.items() if address != SERVER]
    assert len({end.group_seed("x") for end in clients}) == 1
    for a in clients:
        for b in clients:
            if a is not b:
                assert a.pair_seed(b.address, "x") == b.pair_seed(a.address, "x")


def state(value):
    """All that an object of this package holds, to be compared before and after."""
    if isinstance(value, Channel):
        return None
    if isinstance(value, dict):
        return {key: state(held) for key, held in value.items()}
    if isinstance(value, (list, tuple, deque)):
        return [state(held) for held in value]
    if isinstance(value, set):
        return set(value)
    if type(value).__module__.startswith("jaxfed.secure"):
        return state(vars(value))
    return value if isinstance(value, (bytes, int, str)) else id(value)


def refused(wire, party, take, forged):
    """A forged message comes first: one error of one line, and the party is as it was."""
    before = state(party)
    wire.forged.append(forged)
    with pytest.raises(ProtocolError) as error:
        take()
    assert "\n" not in str(error.value)
    assert state(party) == before
    assert not wire.forged


# --- known answers -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("private", "public", "shared"),
    [  # RFC 7748, Section 5.2; of the second u the highest bit is masked, as it says
        (
            "a546e36bf0527c9d3b16154b82465edd62144c0ac1fc5a18506a2244ba449ac4",
            "e6db6867583030db3594c1a424b15f7c726624ec26b3353b10a903a6d0ab1c4c",
            "c3da55379de9c6908e94ea4df28d084f32eccf03491c71f754b4075577a28552",
        ),
        (
            "4b66e9d4d1b4673c5ad22691957d6af5c11b6421e0ea01d42ca4169e7918ba0d",
            "e5210f12786811d3f4b7959d0538ae2c31dbe7106fc03c3efc4cd549c715a413",
            "95cbde9476e8907d7aade45cb4b873f88b595a68799fa152e6f8f7647aac7957",
        ),
    ],
)
def test_agreement_is_x25519(private, public, shared):
    assert key_pair(hexed(private)).agreed(hexed(public)) == hexed(shared)


def test_agreement_iterated():
    """RFC 7748, Section 5.2: k, u = X25519(k, u), k, from k = u = 9."""
    k = u = (9).to_bytes(32, "little")
    for number in range(1000):
        k, u = key_pair(k).agreed(u), k
        if number == 0:
            expected = "422c8e7a6227d7bca1350b3e2bb7279f7897b87bb6854b783c60e80311ae3079"
            assert k == hexed(expected)
    assert k == hexed("684cf59ba83309552800ef566f2f4d3c1c3887c49360e3875f2eb94d99532c51")


def test_agreement_of_two_key_pairs():
    """RFC 7748, Section 6.1."""
    alice = key_pair(hexed("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"))
    bob = key_pair(hexed("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
    assert alice.public == hexed("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    assert bob.public == hexed("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
    shared = hexed("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    assert alice.agreed(bob.public) == bob.agreed(alice.public) == shared


def hkdf(secret, salt, info, size):
    """RFC 5869 with SHA-256, as Section 2 prints it."""
    key, block, output = hmac.digest(salt, secret, "sha256"), b"", b""
    for number in range(1, -(-size // 32) + 1):
        block = hmac.digest(key, block + info + bytes([number]), "sha256")
        output += block
    return output[:size]


@pytest.mark.parametrize(
    ("secret", "salt", "info", "output"),
    [  # RFC 5869, Appendix A.1 and A.2
        (
            b"\x0b" * 22,
            bytes(range(13)),
            bytes(range(0xF0, 0xFA)),
            "3cb25f25faacd57a90434f64d0362f2a2d2d0a90cf1a5a4c5db02d56ecc4c5bf34007208d5b887185865",
        ),
        (
            bytes(range(0x50)),
            bytes(range(0x60, 0xB0)),
            bytes(range(0xB0, 0x100)),
            "b11e398dc80327a1c8e7f78c596a49344f012eda2d4efad8a050cc4c19afa97c"
            "59045a99cac7827271cb41c65e590e09da3275600c2f09b8367793a9aca3db71"
            "cc30c58179ec3e87c14c01d5c1f3434f1d87",
        ),
    ],
)
def test_hkdf_of_the_tests(secret, salt, info, output):
    assert hkdf(secret, salt, info, len(output) // 2) == hexed(output)


def test_derived_keys_are_hkdf_of_fields_with_their_lengths():
    info = b"".join(
        len(field).to_bytes(4, "big") + field
        for field in (b"jaxfed secure session, version 1", b"channel", b"route", b"hash")
    )
    key = derived_key(b"s" * 32, b"n" * 16, "channel", b"route", b"hash")
    assert key == hkdf(b"s" * 32, b"n" * 16, info, 32)


def test_no_two_lists_of_fields_read_the_same():
    lists = [("a", b"b"), ("ab",), ("", b"ab"), ("a", b"", b"b"), ("a", b"b", b""), ("a\0\0\0\1b",)]
    keys = {derived_key(b"s" * 32, b"n" * 16, *fields) for fields in lists}
    keys |= {derived_key(b"S" * 32, b"n" * 16, "ab"), derived_key(b"s" * 32, b"N" * 16, "ab")}
    assert len(keys) == len(lists) + 2


def gcm(key, nonce, plaintext, associated):
    """AES-GCM of NIST SP 800-38D, Section 7.1, from AES on single blocks: (ciphertext, tag)."""
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()

    def times(x, y):
        product = 0
        for bit in range(127, -1, -1):
            product ^= y * (x >> bit & 1)
            y = y >> 1 ^ (y & 1) * (0xE1 << 120)
        return product

    def padded(text):
        return text + bytes(-len(text) % 16)

    stream = b"".join(
        encryptor.update(nonce + (2 + number).to_bytes(4, "big"))
        for number in range(-(-len(plaintext) // 16))
    )
    ciphertext = bytes(a ^ b for a, b in zip(plaintext, stream, strict=False))
    lengths = (8 * len(associated)).to_bytes(8, "big") + (8 * len(ciphertext)).to_bytes(8, "big")
    hashed, h = 0, int.from_bytes(encryptor.update(bytes(16)), "big")
    text = padded(associated) + padded(ciphertext) + lengths
    for start in range(0, len(text), 16):
        hashed = times(hashed ^ int.from_bytes(text[start : start + 16], "big"), h)
    mask = int.from_bytes(encryptor.update(nonce + (1).to_bytes(4, "big")), "big")
    return ciphertext, (hashed ^ mask).to_bytes(16, "big")


def test_gcm_of_the_tests():
    """McGrew and Viega, "The Galois/Counter Mode of Operation", Appendix B, Test Case 16."""
    key = hexed("feffe9928665731c6d6a8f9467308308" * 2)
    plaintext = hexed(
        "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a72"
        "1c3c0c95956809532fcf0e2449a6b525b16aedf5aa0de657ba637b39"
    )
    associated = hexed("feedfacedeadbeeffeedfacedeadbeefabaddad2")
    ciphertext, tag = gcm(key, hexed("cafebabefacedbaddecaf888"), plaintext, associated)
    assert ciphertext == hexed(
        "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa"
        "8cb08e48590dbb3da7b08b1056828838c5f61e6393ba7a0abcc9f662"
    )
    assert tag == hexed("76fc6ece0f4e1768cddf8853bb2d551b")


@pytest.mark.parametrize("payload", [b"", b"p", b"payload" * 10])
def test_a_sealed_message_is_gcm_under_its_number_and_header(payload):
    """Byte for byte: the table of `framing`, the nonce the number, the header associated data."""
    link = Link(b"k" * 32, b"session number 1", 3, SERVER)
    for number in range(3):
        header = (
            b"jaxfed\x01\x01\x05session number 1"
            + (3).to_bytes(4, "big")
            + b"\xff\xff\xff\xff"
            + number.to_bytes(8, "big")
            + len(payload).to_bytes(8, "big")
            + b"hello"
        )
        ciphertext, tag = gcm(b"k" * 32, number.to_bytes(12, "big"), payload, header)
        message = link.sealed("hello", payload)
        assert message == header + ciphertext + tag
        assert len(message) == FRAME + len("hello") + len(payload)


# --- setup ---------------------------------------------------------------------------------------

SMALL_ORDER = [  # u-coordinates below 2^255 - 19 of points of an order that divides 8
    0,
    1,
    2**255 - 20,
    325606250916557431795983626356110631294008115727848805560023387167927233504,
    39382357235489614581723060781553021112529911719440698176882885853963445705823,
]


@pytest.mark.parametrize("u", SMALL_ORDER)
def test_public_keys_of_small_order_are_refused(u):
    """The shared secret would be zero whatever the private key is."""
    with pytest.raises(ProtocolError, match="small order"):
        KeyPair().agreed(u.to_bytes(32, "little"))


@pytest.mark.parametrize(
    "public",
    [
        b"",
        bytes(31),
        b"\1" * 33,
        (2**255 - 19).to_bytes(32, "little"),
        (2**255 - 19 + 9).to_bytes(32, "little"),
        (2**255 + 9).to_bytes(32, "little"),  # 9 with the bit that X25519 ignores
        b"\xff" * 32,
    ],
)
def test_what_is_no_public_key_is_refused(public):
    with pytest.raises(ProtocolError, match="public key"):
        KeyPair().agreed(public)


@pytest.mark.parametrize("clients", [[0], [0, 1], [2, 0, 7]])
def test_everybody_reaches_everybody_after_setup(clients):
    all_talk(agree(clients, Channel()))


def test_parties_of_another_number_of_clients():
    with pytest.raises(UsageError, match="num_clients=0"):
        Session(0)


def test_sessions_are_fresh():
    one, other = Session(2), Session(2)
    for label in ("a", "b"):
        seeds = {s.endpoints[0].group_seed(label) for s in (one, other)}
        seeds |= {s.endpoints[0].pair_seed(1, label) for s in (one, other)}
        assert len(seeds) == 4
    assert one.endpoints[0].group_seed("a") != one.endpoints[0].group_seed("b")
    numbers = {
        framing.parsed(s.endpoints[0]._outgoing[1].sealed("x", b"")).header.session
        for s in (one, other)
    }
    assert len(numbers) == 2


def test_the_server_never_has_the_group_secret():
    """Nothing it receives or holds contains it, and no key it can derive opens a message with it."""
    wire = Wire()
    source = replayed(1)
    drawn = []
    ends = agree([0, 1, 2], wire, lambda count: drawn.append(source(count)) or drawn[-1])
    secret = drawn[-1]
    assert derived_key(secret, ends[1]._session, "group seed", b"x") == ends[1].group_seed("x")
    assert not any(secret in message for message in wire.sent)
    assert not any(secret == held for held in leaves(state(ends[SERVER])))
    with pytest.raises(ProtocolError, match="no group secret"):
        ends[SERVER].group_seed("x")
    sealed = [m for m in wire.sent if framing.parsed(m).header.kind == "group"]
    assert len(sealed) == 2
    session, roster_hash = ends[SERVER]._session, ends[SERVER].roster_hash
    for message in sealed:
        header = framing.parsed(message).header
        for shared in ends[SERVER]._shared.values():
            for route in [(a, b) for a in range(-1, 3) for b in range(-1, 3)]:
                packed = b"".join(address.to_bytes(4, "big", signed=True) for address in route)
                key = derived_key(shared, session, "channel", packed, roster_hash)
                with pytest.raises(ProtocolError, match="did not seal"):
                    Link(key, session, header.sender, header.receiver).opened(message)


def leaves(held):
    if isinstance(held, dict):
        held = [*held.keys(), *held.values()]
    if isinstance(held, (list, set)):
        for part in held:
            yield from leaves(part)
    else:
        yield held


def clear(session, sender, receiver, kind, payload):
    """A message of setup by somebody who follows nothing."""
    return Header(session, sender, receiver, kind, 0, len(payload), False).packed() + payload


def roster_of(server, *clients):
    entries = [address.to_bytes(4, "big", signed=True) + key for address, key in clients]
    return server + b"".join(entries)


KEYS = [KeyPair(lambda count, seed=seed: replayed(seed)(count)).public for seed in range(5)]


def bad_hellos(own):
    """(what it is about, public key)."""
    return [
        ("another party has", KEYS[0]),
        ("small order", bytes(32)),
        ("bytes", own[:31]),
        ("bytes", own + b"\0"),
        ("field", own[:31] + bytes([own[31] | 128])),
    ]


def test_bad_public_keys_never_reach_the_others():
    wire = Wire()
    server = ServerSetup(wire)
    server.invite(0)
    header = framing.parsed(wire.receive(SERVER, 0)).header
    wire.send(clear(header.session, 0, SERVER, "hello", KEYS[0]))
    server.accept(0)
    for number, (about, key) in enumerate(bad_hellos(KEYS[1])):
        before = state(server)
        wire.send(clear(header.session, 1, SERVER, "hello", key))
        with pytest.raises(ProtocolError, match=about):
            server.accept(1)
        assert state(server) == before, number
    wire.send(clear(header.session, 0, SERVER, "hello", KEYS[2]))
    with pytest.raises(ProtocolError, match="client 0 is there twice"):
        server.accept(0)
    wire.send(clear(header.session, 1, SERVER, "hello", KEYS[1]))
    server.accept(1)
    assert sorted(server.finished()._shared) == [0, 1]


def bad_rosters(own):
    """(what it is about, roster) for client 1 with this public key."""
    server, other, third = KEYS[:3]
    return [
        ("without client 1's key", roster_of(server, (0, other))),
        ("without client 1's key", roster_of(server, (0, other), (1, third))),
        ("ascending", roster_of(server, (1, own), (0, other))),
        ("ascending", roster_of(server, (1, own), (1, other))),
        ("ascending", roster_of(server, (1, own), (1, own))),
        ("ascending", roster_of(server, (-1, other), (1, own))),
        ("same key", roster_of(server, (0, own), (1, own))),
        ("same key", roster_of(own, (0, other), (1, own))),
        ("same key", roster_of(server, (0, server), (1, own))),
        ("small order", roster_of(bytes(32), (0, other), (1, own))),
        ("small order", roster_of(server, (0, bytes(32)), (1, own))),
        ("field", roster_of(server, (0, b"\xff" * 32), (1, own))),
        ("32 \\+ 36 p", server),
        ("32 \\+ 36 p", b""),
        ("32 \\+ 36 p", roster_of(server, (1, own))[:-1]),
        ("32 \\+ 36 p", roster_of(server, (1, own)) + b"\0"),
    ]


def test_rosters_that_are_refused():
    wire = Wire()
    client, server = ClientSetup(1, wire), ServerSetup(wire)
    server.invite(1)
    client.join()
    header, _, body = framing.parsed(wire.receive(1, SERVER))
    for about, roster in bad_rosters(bytes(body)):
        forged = clear(header.session, SERVER, 1, "roster", roster)
        refused(wire, client, client.agree, forged)
        wire.forged.append(forged)
        with pytest.raises(ProtocolError, match=about):
            client.agree()
    wire.send(clear(header.session, 1, SERVER, "hello", bytes(body)))
    server.accept(1)
    server.send_roster(1)
    client.agree()
    client.give_group_secret()
    all_talk({SERVER: server.finished(), 1: client.finished()})


def in_another_roster(channel):
    """Client 1 is shown one client more than the others are."""
    one_more = (9).to_bytes(4, "big") + KEYS[4]

    def change(number, message):
        header, _, body = framing.parsed(message)
        if (header.kind, header.receiver) != ("roster", 1):
            return message
        return clear(header.session, SERVER, 1, "roster", bytes(body) + one_more)

    channel.change = change
    return walk(channel)


def test_who_was_shown_different_rosters_shares_no_key():
    with pytest.raises(ProtocolError, match="did not seal"):
        in_another_roster(Wire())


@pytest.mark.parametrize(
    ("action", "kind"),
    [
        ("receive", "invite"),
        ("send", "hello"),
        ("receive", "roster"),
        ("send", "group"),
        ("receive", "group"),
    ],
)
@pytest.mark.parametrize("client", [0, 1, 2])
def test_a_client_that_leaves_during_setup_is_no_part_of_the_session(client, action, kind):
    presence = Presence()
    presence.lose_when(client, action, kind)
    session = Session(3, presence=presence)
    never_acts = kind == "group" and (action == "send") != (client == 0)  # 0 gives, others take
    stayed = [c for c in range(3) if never_acts or c != client]
    assert session.clients == stayed
    assert session.endpoints.keys() == {SERVER, *stayed}
    all_talk(session.endpoints)


def test_a_session_that_everybody_leaves():
    presence = Presence()
    for client in range(3):
        presence.lose(client)
    assert Session(3, presence=presence).clients == []


# --- bad messages to an endpoint -----------------------------------------------------------------


def established(seed=0):
    wire = Wire()
    return wire, walk(wire, seed=seed)


def reheaded(message, **fields):
    """A message with other fields in its header."""
    header, _, body = framing.parsed(message)
    return header._replace(**fields).packed() + bytes(body)


class Due(NamedTuple):
    """Who could forge what: the channel, all endpoints, the message 0 -> 1 that is due, and the next."""

    wire: Wire
    ends: dict[int, PartyEndpoint]
    due: bytes
    later: bytes

    @property
    def header(self):
        return framing.parsed(self.due).header

    def sent(self, sender, receiver, /, **fields):
        """Another message of the session, under a header changed to fit if `fields` says so."""
        message = sent(self.wire, self.ends, sender, receiver)
        return reheaded(message, **fields) if fields else message


FORGERIES = {
    "cut": lambda x: x.due[:-1],
    "cut in the header": lambda x: x.due[:40],
    "empty": lambda x: b"",
    "longer": lambda x: x.due + b"\0",
    "flipped body": lambda x: x.due[:-20] + bytes([x.due[-20] ^ 1]) + x.due[-19:],
    "flipped tag": lambda x: x.due[:-1] + bytes([x.due[-1] ^ 128]),
    "out of order": lambda x: x.later,
    "renumbered": lambda x: reheaded(x.later, sequence=x.header.sequence),
    "of another kind": lambda x: reheaded(x.due, kind="dink"),
    "of no kind": lambda x: x.due[:8] + b"\0" + x.due[9:],
    "of a kind too long": lambda x: x.due[:8] + b"\x41" + x.due[9:],
    "of another version": lambda x: x.due[:6] + b"\2" + x.due[7:],
    "unsealed": lambda x: reheaded(x.due, is_sealed=False, size=x.header.size + 16),
    "in the clear": lambda x: x.header._replace(is_sealed=False, size=4).packed() + b"text",
    "reflected": lambda x: x.sent(1, 0),
    "reflected, readdressed": lambda x: x.sent(
        1, 0, sender=0, receiver=1, sequence=x.header.sequence
    ),
    "for somebody else": lambda x: x.sent(0, 2),
    "for somebody else, readdressed": lambda x: x.sent(
        0, 2, receiver=1, sequence=x.header.sequence
    ),
    "from somebody else": lambda x: x.sent(2, 1),
    "from the server in a client's name": lambda x: x.sent(
        SERVER, 1, sender=0, sequence=x.header.sequence
    ),
    "of another session": lambda x: sent(*established(1), 0, 1),
    "of another session, renamed": lambda x: reheaded(
        sent(*established(1), 0, 1), session=x.header.session, sequence=x.header.sequence
    ),
    "of setup": lambda x: x.wire.sent[0],
    "noise": lambda x: replayed(7)(300),
}


def sent(wire, ends, sender, receiver, kind="kind", payload=b"payload of some length"):
    """A message that went out and waits unread nowhere."""
    ends[sender].send(receiver, kind, payload)
    message = wire.sent[-1]
    while Channel.receive(wire, sender, receiver) is not None:
        pass
    return message


@pytest.mark.parametrize("what", FORGERIES)
def test_bad_messages_are_refused_and_change_nothing(what):
    wire, ends = established()
    ends[0].send(1, "first", b"")
    repeated = wire.sent[-1]
    assert ends[1].receive(0, "first") == b""
    payloads = [b"the payload that is due", b"the one after it"]
    for payload in payloads:
        ends[0].send(1, "kind", payload)
    due, later = wire.sent[-2:]
    forged = FORGERIES[what](Due(wire, ends, due, later))
    assert forged != due

    def take():
        return ends[1].receive(0, "kind")

    refused(wire, ends[1], take, forged)
    refused(wire, ends[1], take, repeated)
    assert take() == payloads[0]
    refused(wire, ends[1], take, due)
    assert take() == payloads[1]
    with pytest.raises(ProtocolError, match="no message from 0"):
        take()


def test_a_message_of_another_kind_than_asked_for_stays_the_next():
    _, ends = established()
    ends[0].send(1, "this", b"1")
    with pytest.raises(ProtocolError, match="'this' from 0 where 'that' was due"):
        ends[1].receive(0, "that")
    assert ends[1].receive(0, "this") == b"1"


def test_a_message_that_is_kept_back_blocks_those_after_it():
    """Nothing is taken over a gap: the sender's messages arrive all and in order, or not at all."""
    wire, ends = established()
    ends[0].send(1, "kind", b"kept back")
    assert Channel.receive(wire, 0, 1)
    ends[0].send(1, "kind", b"after it")
    for _ in range(2):
        with pytest.raises(ProtocolError, match=r"out of order|no message"):
            ends[1].receive(0, "kind")


def test_discarding_forgets_one_kind():
    _, ends = established()
    for sender, kind in ((0, "a"), (0, "b"), (2, "a"), (0, "a"), (0, "c")):
        ends[sender].send(1, kind, kind.encode())
    ends[1].discard("a")
    assert ends[1].receive(0, "b") == b"b"
    assert ends[1].receive(0, "c") == b"c"
    for sender in (0, 2):
        with pytest.raises(ProtocolError, match="no message"):
            ends[1].receive(sender, "a")


def test_misuse_of_an_endpoint():
    _, ends = established()
    before = state(ends[0])
    for call in (
        lambda: ends[0].send(7, "kind", b""),
        lambda: ends[0].send(0, "kind", b""),
        lambda: ends[0].receive(7, "kind"),
        lambda: ends[0].send(1, "no kind", b""),
        lambda: ends[0].send(1, "k" * 65, b""),
        lambda: ends[0].send(1, "", b""),
        lambda: ends[0].pair_seed(SERVER, "x"),
        lambda: ends[0].join_group(b"k" * 31),
    ):
        with pytest.raises(ProtocolError):
            call()
    assert state(ends[0]) == before
    with pytest.raises(ProtocolError, match="between clients"):
        ends[SERVER].pair_seed(0, "x")
    ends[0].claim("masks/1")
    with pytest.raises(ProtocolError, match="used before"):
        ends[0].claim("masks/1")
    ends[0].claim("masks/2")
    ends[1].claim("masks/1")


@pytest.mark.parametrize("message", [b"", b"jaxfed", bytes(200)])
def test_the_channel_carries_messages_only(message):
    channel = Channel()
    with pytest.raises(ProtocolError):
        channel.send(message)
    assert not channel.volumes


# --- fuzzing -------------------------------------------------------------------------------------


def mutated(rng, message, others):
    """A message that nobody sent: bits, bytes, parts or header fields of one that somebody did."""
    way, at = rng.integers(9), int(rng.integers(len(message)))
    other = others[rng.integers(len(others))]
    if way == 0:
        return message[:at] + bytes([message[at] ^ 1 << int(rng.integers(8))]) + message[at + 1 :]
    if way == 1:
        return message[:at]
    if way == 2:
        return message + rng.bytes(int(rng.integers(1, 40)))
    if way == 3:
        return message[:at] + other[at:]
    if way == 4:
        return message[:at] + rng.bytes(int(rng.integers(1, 20))) + message[at:]
    if way == 5:
        return message[:at] + message[at + int(rng.integers(1, 20)) :]
    if way == 6:
        return other
    if way == 7:
        return rng.bytes(int(rng.integers(150)))
    header = framing.parsed(message).header
    fields = [
        {"session": rng.bytes(16)},
        {"sender": int(rng.integers(-2, 4))},
        {"receiver": int(rng.integers(-(2**31), 2**31))},
        {"kind": ["invite", "hello", "roster", "group", "x"][rng.integers(5)]},
        {"sequence": int(rng.integers(3))},
        {"size": int(rng.integers(2**63))},
        {"is_sealed": not header.is_sealed, "size": max(0, header.size - 16)},
        {"is_sealed": not header.is_sealed, "size": header.size + 16},
    ]
    return reheaded(message, **fields[rng.integers(len(fields))])


def bad_ones(rng, message, others, count):
    """So many mutations that differ from the message."""
    while count:
        bad = mutated(rng, message, others)
        if bad != message:
            yield bad
            count -= 1


def is_only_for_later(bad, message):
    """Setup in the clear: another session's number or payload is noticed by later steps."""
    try:
        ours, theirs = framing.parsed(bad).header, framing.parsed(message).header
    except ProtocolError:
        return False
    return not ours.is_sealed and ours._replace(session=b"") == theirs._replace(session=b"")


def fuzzed_steps(rng, count):
    """Before every message of setup so many bad ones come. How many were refused."""
    old = Wire()
    walk(old, seed=1)
    wire, numbers = Wire(), []

    def before(sender, receiver, party, take):
        message = Channel.receive(wire, sender, receiver)
        for bad in bad_ones(rng, message, [*old.sent, *wire.sent], count):
            if not is_only_for_later(bad, message):
                refused(wire, party, take, bad)
                numbers.append(1)
        wire.forged.append(message)

    all_talk(walk(wire, before=before))
    return len(numbers)


def fuzzed_setups(rng, count):
    """So many setups, one message of each changed on its way. How many came to nothing."""
    old = Wire()
    walk(old, (0, 1), seed=1)
    for _ in range(count):
        wire, which = Wire(), int(rng.integers(7))
        wire.change = lambda number, message, wire=wire, which=which: (
            next(bad_ones(rng, message, old.sent + wire.sent, 1)) if number == which else message
        )
        with pytest.raises(ProtocolError):
            agree([0, 1], wire, rng.bytes)
    return count


def fuzzed_endpoints(rng, count):
    """So many bad messages to endpoints, good ones between them. How many were refused."""
    wire, ends = established()
    old = established(1)[0].sent
    routes = [(a, b) for a in ends for b in ends if a != b]
    for number in range(count):
        if number % 50 == 0:
            sender, receiver = routes[(number // 50) % len(routes)]
            payload = rng.bytes(int(rng.integers(60)))
            ends[sender].send(receiver, "kind", payload)
            due, others = wire.sent[-1], old + wire.sent[:-1]
        take = partial(ends[receiver].receive, sender, "kind")
        refused(wire, ends[receiver], take, next(bad_ones(rng, due, others, 1)))
        if number % 50 == 49:
            assert take() == payload
    return count


def test_ten_thousand_bad_messages():
    rng = np.random.default_rng(0)
    steps, setups = fuzzed_steps(rng, 250), fuzzed_setups(rng, 1500)
    assert steps + setups + fuzzed_endpoints(rng, 8000) > 10_000
    assert min(steps, setups) > 1000


# --- what is recorded ----------------------------------------------------------------------------


def test_everything_that_goes_through_is_counted_by_route():
    session = Session(2)
    before = dict(session.channel.volumes)
    for sender, receiver, kind, payload in [
        (0, SERVER, "up/0/1", b"12345"),
        (0, SERVER, "up/0/1", b""),
        (SERVER, 1, "down", b"123"),
        (0, 1, "across/7", b"1234567"),
    ]:
        session.endpoints[sender].send(receiver, kind, payload)
    new = {r: v for r, v in session.channel.volumes.items() if before.get(r) != v}
    assert new == {
        Route(0, SERVER, "up/0/1"): (2, 5, 5 + 2 * (FRAME + 6)),
        Route(SERVER, 1, "down"): (1, 3, 3 + FRAME + 4),
        Route(0, 1, "across/7"): (1, 7, 7 + FRAME + 8),
    }


@pytest.mark.parametrize("p", [1, 2, 5])
def test_setup_has_the_bytes_that_its_table_says(p):
    """Kinds without what follows a slash; what clients send each other goes up and down."""
    session = Session(p)
    session.endpoints[0].send(SERVER, "up/0/1", b"12345")
    communication = session.communication()
    clear = FRAME - 16
    assert communication.upload == {
        "hello": 32 * p,
        **({"group": 32 * (p - 1)} if p > 1 else {}),
        "up": 5,
        "framing": p * (clear + 5) + (p - 1) * (FRAME + 5) + FRAME + 6,
    }
    assert communication.download == {
        "invite": 0,
        "roster": p * (32 + 36 * p),
        **({"group": 32 * (p - 1)} if p > 1 else {}),
        "framing": p * (clear + 6) + p * (clear + 6) + (p - 1) * (FRAME + 5),
    }


def test_bytes_on_the_wire_are_those_counted():
    wire, ends = established()
    all_talk(ends)
    counted = Communication()
    wire.count(counted)
    ups, downs = (
        sum(len(m) for m in wire.sent if getattr(framing.parsed(m).header, end) != SERVER)
        for end in ("sender", "receiver")
    )
    assert sum(counted.upload.values()) == ups
    assert sum(counted.download.values()) == downs


def test_a_client_that_is_gone_neither_sends_nor_receives():
    session = Session(3)
    ends, presence = session.endpoints, session.presence
    presence.lose_when(0, "send", "late", after=1)
    ends[0].send(1, "late", b"still there")
    ends[0].send(1, "early", b"")
    with pytest.raises(DroppedOut, match="client 0 dropped out"):
        ends[0].send(1, "late/2", b"")
    assert session.clients == [1, 2]
    with pytest.raises(DroppedOut):
        ends[0].receive(1, "any")
    assert ends[1].receive(0, "late") == b"still there"
    assert ends[1].receive(0, "early") == b""
    with pytest.raises(DroppedOut) as dropout:  # nothing more will come
        ends[1].receive(0, "late")
    assert dropout.value.client == 0
    with pytest.raises(ProtocolError):
        ends[1].receive(2, "late")


# --- every safeguard counts ----------------------------------------------------------------------
#
# (what is removed, how, the check that must fail then). A check raises nothing when all is well.


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


def check_field():
    """The same key in two ways would pass for two keys."""
    wire = Wire()
    server = ServerSetup(wire)
    server.invite(0)
    session = framing.parsed(wire.receive(SERVER, 0)).header.session
    wire.send(clear(session, 0, SERVER, "hello", KEYS[0]))
    server.accept(0)
    again = KEYS[0][:31] + bytes([KEYS[0][31] | 128])
    wire.send(clear(session, 1, SERVER, "hello", again))
    with pytest.raises(ProtocolError):
        server.accept(1)


def no_check_of_field(monkeypatch):
    monkeypatch.setattr(key_agreement, "_FIELD", 2**256)


def check_keys_of_two():
    wire = Wire()
    server = ServerSetup(wire)
    server.invite(0)
    session = framing.parsed(wire.receive(SERVER, 0)).header.session
    for client in (0, 1):
        wire.send(clear(session, client, SERVER, "hello", KEYS[0]))
    server.accept(0)
    with pytest.raises(ProtocolError):
        server.accept(1)


def check_clients_twice():
    wire = Wire()
    server = ServerSetup(wire)
    server.invite(0)
    session = framing.parsed(wire.receive(SERVER, 0)).header.session
    for key in KEYS[:2]:
        wire.send(clear(session, 0, SERVER, "hello", key))
    server.accept(0)
    with pytest.raises(ProtocolError):
        server.accept(0)


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
    remove, check = SAFEGUARDS[safeguard]
    check()
    remove(monkeypatch)
    with pytest.raises((AssertionError, pytest.fail.Exception)):
        check()


@pytest.mark.parametrize("remove", [no_session_in_keys, no_session_in_routes])
def test_either_safeguard_of_sessions_suffices(remove, monkeypatch):
    """Keys that differ, and numbers in headers that are compared: each keeps sessions apart."""
    remove(monkeypatch)
    check_sessions()
