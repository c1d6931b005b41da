"""What a bad message to an endpoint does: nothing."""

from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
from session_parties import (
    Wire,
    established,
    refused,
    reheaded,
    replayed,
    sent,
    state,
)

from jaxfed.errors import ProtocolError
from jaxfed.secure.session import framing
from jaxfed.secure.session.channel import Channel
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.party_endpoint import PartyEndpoint


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


def test_a_message_that_is_kept_back_blocks_those_after_it():
    """Nothing is taken over a gap: the sender's messages arrive all and in order, or not at all."""
    wire, ends = established()
    ends[0].send(1, "kind", b"kept back")
    assert Channel.receive(wire, 0, 1)
    ends[0].send(1, "kind", b"after it")
    for _ in range(2):
        with pytest.raises(ProtocolError, match=r"out of order|no message"):
            ends[1].receive(0, "kind")


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


@pytest.mark.parametrize("count", [800, pytest.param(8000, marks=pytest.mark.slow)])
def test_mutated_messages(count):
    """So many bad messages to endpoints, good ones between them: each is refused and changes nothing."""
    rng = np.random.default_rng(count)
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
        while (bad := mutated(rng, due, others)) == due:
            pass
        refused(wire, ends[receiver], take, bad)
        if number % 50 == 49:
            assert take() == payload
