"""Payloads longer than a message may be: cut, put together again, and refused where somebody forges them."""

import mmap
import struct

import numpy as np
import pytest
from session_parties import established, refused, reheaded

from jaxfed.errors import ProtocolError
from jaxfed.secure import cross_steps
from jaxfed.secure.hamming import protocols
from jaxfed.secure.session import framing
from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.parties import Session

CAP = 200


@pytest.fixture
def small_cap(monkeypatch):
    monkeypatch.setattr(framing, "MAX_SIZE", CAP)


def headers(wire, kind="kind"):
    sent = [framing.parsed(message).header for message in wire.sent]
    return [header for header in sent if header.kind == kind]


@pytest.mark.parametrize("size", [0, 1, CAP - 1, CAP, CAP + 1, 2 * CAP, 7 * CAP + 3])
@pytest.mark.parametrize("route", [(0, 1), (2, SERVER), (SERVER, 0)])
def test_payloads_of_any_length_arrive(size, route, small_cap):
    wire, ends = established()
    payload = np.random.default_rng(0).bytes(size)
    sender, receiver = route
    for _ in range(2):
        ends[sender].send(receiver, "kind", payload)
    ends[sender].send(receiver, "next", b"after it")
    for _ in range(2):
        assert ends[receiver].receive(sender, "kind") == payload
    assert ends[receiver].receive(sender, "next") == b"after it"
    sizes = [header.size for header in headers(wire)]
    assert len(sizes) == 2 * max(1, -(-size // CAP))
    assert max(sizes) <= CAP
    assert sum(sizes) == 2 * size
    volume = wire.volumes[sender, receiver, "kind"]
    assert volume.payload_bytes == 2 * size
    assert volume.num_bytes == 2 * size + len(sizes) * (65 + len("kind"))


FORGERIES = {
    "a part left out": lambda parts: parts[2],
    "a part twice": lambda parts: parts[0],
    "the end at once": lambda parts: parts[-1],
    "no end": lambda parts: reheaded(parts[1], continues=False),
    "a flipped bit": lambda parts: parts[1][:-1] + bytes([parts[1][-1] ^ 1]),
    "a cut part": lambda parts: parts[1][:-1],
    "renumbered": lambda parts: reheaded(
        parts[2], sequence=framing.parsed(parts[1]).header.sequence
    ),
    "goes on in the clear": lambda parts: parts[1][:7] + b"\2" + parts[1][8:],
}


@pytest.mark.parametrize("what", FORGERIES)
def test_bad_parts_are_refused_and_change_nothing(what, small_cap):
    """Between two parts: what came before is kept, and the part that is due can still be taken."""
    wire, ends = established()
    payload = np.random.default_rng(0).bytes(3 * CAP + 50)
    ends[0].send(1, "kind", payload)
    parts = wire.sent[-4:]
    queue = wire._queues[0, 1]
    due = [queue.popleft() for _ in range(4)]
    queue.append(due[0])
    with pytest.raises(ProtocolError, match="no message"):  # the rest is not there yet
        ends[1].receive(0, "kind")
    refused(wire, ends[1], lambda: ends[1].receive(0, "kind"), FORGERIES[what](parts))
    queue.extend(due[1:])
    assert ends[1].receive(0, "kind") == payload


def test_the_last_part_says_so_under_the_seal(small_cap):
    """A message that says that it goes on is another one than the same that does not."""
    wire, ends = established()
    ends[0].send(1, "kind", b"a whole payload")
    forged = reheaded(wire.sent[-1], continues=True)
    refused(wire, ends[1], lambda: ends[1].receive(0, "kind"), forged)
    assert ends[1].receive(0, "kind") == b"a whole payload"


def test_parts_of_two_kinds_are_one_payload_of_none(small_cap):
    """From a party that follows nothing, sealed as it should be."""
    _, ends = established()
    link = ends[0]._outgoing[1]
    ends[0]._channel.send(link._sealed("one", memoryview(b"begun"), continues=True))
    ends[0]._channel.send(link._sealed("other", memoryview(b"and left"), continues=False))
    with pytest.raises(ProtocolError, match="'other' from 0 within 'one'"):
        ends[1].receive(0, "one")


def test_payloads_have_a_cap_over_all_parts(small_cap, monkeypatch):
    monkeypatch.setattr(framing, "MAX_PAYLOAD_BYTES", 3 * CAP)
    _, ends = established()
    with pytest.raises(ProtocolError, match="601 bytes; at most 600"):
        ends[0].send(1, "kind", bytes(3 * CAP + 1))
    ends[0].send(1, "kind", bytes(3 * CAP))
    assert ends[1].receive(0, "kind") == bytes(3 * CAP)
    link = ends[0]._outgoing[1]
    for _ in range(4):
        part = link._sealed("kind", memoryview(bytes(CAP)), continues=True)
        ends[0]._channel.send(part)
    with pytest.raises(ProtocolError, match="800 bytes; at most 600"):
        ends[1].receive(0, "kind")


@pytest.mark.parametrize("size", [framing.MAX_SIZE + 1, 2**31 - 1, 2**31, 2**32 + 5])
def test_forged_gigabytes_are_refused_unread(size):
    """Pages that nobody has written take no memory until somebody reads them."""
    wire, ends = established()
    ends[0].send(1, "kind", b"due")
    header = framing.parsed(wire.sent[-1]).header._replace(size=size).packed()
    forged = mmap.mmap(-1, len(header) + size + framing.TAG_BYTES)
    forged[: len(header)] = header
    before = resident_bytes()
    refused(wire, ends[1], lambda: ends[1].receive(0, "kind"), forged)
    assert resident_bytes() - before < 1 << 24
    assert ends[1].receive(0, "kind") == b"due"


def resident_bytes():
    with open("/proc/self/statm") as file:
        return mmap.PAGESIZE * int(file.read().split()[1])


@pytest.mark.parametrize("size", [2**31, 2**63, 2**64 - 1])
def test_a_forged_length_is_refused_before_anything_is_allocated(size):
    wire, ends = established()
    ends[0].send(1, "kind", b"due")
    forged = bytearray(wire.sent[-1])
    forged[41:49] = struct.pack(">Q", size)
    assert struct.unpack(">Q", wire.sent[-1][41:49]) == (3,)
    with pytest.raises(ProtocolError, match=f"with {size} bytes of payload; at most"):
        framing.parsed(forged)
    refused(wire, ends[1], lambda: ends[1].receive(0, "kind"), bytes(forged))


@pytest.mark.parametrize("protocol", ["masked", "ot"])
def test_protocols_do_not_notice(protocol, monkeypatch):
    """Distances and sums over messages that are cut are those of messages that are not."""
    rng = np.random.default_rng(0)
    codes = {j: rng.integers(0, 2**32, (9, 2), dtype=np.uint32) for j in range(3)}
    values = {j: rng.normal(size=(27, 2)) for j in range(3)}
    rows = {j: slice(9 * j, 9 * j + 9) for j in range(3)}
    found = []
    for cap in (framing.MAX_SIZE, CAP):
        monkeypatch.setattr(framing, "MAX_SIZE", cap)
        session = Session(3)
        neighbors = cross_steps.nearest_others(session, codes, 4, getattr(protocols, protocol))
        sums = cross_steps.sums_of_rows(session, values, rows, resilient=True)
        found.append((neighbors, sums))
    np.testing.assert_array_equal(found[0][0].indices, found[1][0].indices)
    np.testing.assert_array_equal(found[0][0].distances, found[1][0].distances)
    for client, own in found[0][1].items():
        np.testing.assert_array_equal(own, found[1][1][client])
