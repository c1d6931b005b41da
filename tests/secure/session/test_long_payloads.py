"""Payloads of gigabytes: refused before anything is read or allocated."""

import struct
from unittest import mock

import pytest
from session_parties import established, refused

from jaxfed.errors import ProtocolError
from jaxfed.secure.session import framing


def test_payloads_have_a_cap():
    _, ends = established()
    with mock.patch.object(framing, "MAX_SIZE", 600):
        ends[0].send(1, "kind", bytes(600))
        with pytest.raises(ProtocolError, match="601 bytes; at most 600"):
            ends[0].send(1, "kind", bytes(601))
        assert ends[1].receive(0, "kind") == bytes(600)


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
