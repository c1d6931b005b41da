"""Sessions whose channel forges, changes and records; and what an object of this package holds."""

from collections import deque

import numpy as np
import pytest

from jaxfed.errors import ProtocolError
from jaxfed.secure.session import framing
from jaxfed.secure.session.channel import Channel
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.framing import Header
from jaxfed.secure.session.key_agreement import KeyPair
from jaxfed.secure.session.setup import agree

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
    end = getattr(party, "_endpoint", party)
    for partner in getattr(end, "_shared", ()):  # what a first message makes
        _ = end._incoming[partner], end._outgoing[partner], end._waiting[partner]
    before = state(party)
    wire.forged.append(forged)
    with pytest.raises(ProtocolError) as error:
        take()
    assert "\n" not in str(error.value)
    assert state(party) == before
    assert not wire.forged


def clear(session, sender, receiver, kind, payload):
    """A message of setup by somebody who follows nothing."""
    return Header(session, sender, receiver, kind, 0, len(payload), False).packed() + payload


def roster_of(server, *clients):
    entries = [address.to_bytes(4, "big", signed=True) + key for address, key in clients]
    return server + b"".join(entries)


KEYS = [KeyPair(lambda count, seed=seed: replayed(seed)(count)).public for seed in range(5)]


def one_more_in_roster(number, message):
    """Client 1 is shown one client more than the others are."""
    header, _, body = framing.parsed(message)
    if (header.kind, header.receiver) != ("roster", 1):
        return message
    one_more = (9).to_bytes(4, "big") + KEYS[4]
    return clear(header.session, SERVER, 1, "roster", bytes(body) + one_more)


def in_another_roster(channel):
    channel.change = one_more_in_roster
    return agree([0, 1, 2], channel)[0]


def established(seed=0):
    wire = Wire()
    return wire, agree([0, 1, 2], wire, replayed(seed))[0]


def reheaded(message, **fields):
    """A message with other fields in its header."""
    header, _, body = framing.parsed(message)
    return header._replace(**fields).packed() + bytes(body)


def sent(wire, ends, sender, receiver, kind="kind", payload=b"payload of some length"):
    """A message that went out and waits unread nowhere."""
    ends[sender].send(receiver, kind, payload)
    message = wire.sent[-1]
    while Channel.receive(wire, sender, receiver) is not None:
        pass
    return message
