"""Wire format of messages: a self-contained header, then the payload.

    protocol   6 bytes   "jaxfed"
    version    1
    sealed     1         1: the payload is encrypted, and 16 bytes of tag follow it
    kind size  1         K
    session   16
    sender     4         signed; -1 is the server
    receiver   4
    sequence   8         number of the message among those from sender to receiver
    size       8         bytes of the payload, without the tag: with it below 2^31
    kind       K         printable ASCII, 1 to 64 bytes
    payload, tag

OpenSSL's AES-GCM takes below 2^31 bytes at once. Lengths are checked before anything else is done with a
message.

Integers are big-endian. Each message has exactly one encoding, and anything else is refused. The header is
the associated data of the encryption, so it cannot be changed either; it is not secret.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from jaxfed.errors import ProtocolError

PROTOCOL = b"jaxfed"
VERSION = 1
SESSION_BYTES = 16
TAG_BYTES = 16
MAX_KIND_BYTES = 64
MAX_SIZE = (1 << 31) - 1 - TAG_BYTES  # bytes of payload

_FIXED = struct.Struct(f">6sBBB{SESSION_BYTES}siiQQ")


class Header(NamedTuple):
    """Header of a message; fields as in the module's table."""

    session: bytes
    sender: int
    receiver: int
    kind: str
    sequence: int
    size: int
    is_sealed: bool

    def packed(self) -> bytes:
        """Encode the header."""
        kind = self.kind.encode("ascii", "replace")
        _check_kind(kind, self.kind)
        fixed = _FIXED.pack(
            PROTOCOL,
            VERSION,
            self.is_sealed,
            len(kind),
            self.session,
            self.sender,
            self.receiver,
            self.sequence,
            self.size,
        )
        return fixed + kind

    @property
    def overhead(self) -> int:
        """Bytes of the message that are not its payload."""
        return _FIXED.size + len(self.kind) + (TAG_BYTES if self.is_sealed else 0)


class Frame(NamedTuple):
    """A parsed message: its header, parsed and as bytes, and the payload with its tag."""

    header: Header
    header_bytes: memoryview
    body: memoryview


def parsed(message: bytes | bytearray) -> Frame:
    """Parse a message."""
    view = memoryview(message)
    if len(view) < _FIXED.size:
        raise ProtocolError(f"a message of {len(view)} bytes: shorter than a header")
    protocol, version, sealed, kind_size, session, sender, receiver, sequence, size = (
        _FIXED.unpack_from(view)
    )
    if protocol != PROTOCOL or version != VERSION or sealed not in (0, 1):
        raise ProtocolError("not a message of this protocol and version")
    if size > MAX_SIZE:
        raise ProtocolError(
            f"a message with {size} bytes of payload; at most {MAX_SIZE} are allowed"
        )
    begin = _FIXED.size + kind_size
    kind = bytes(view[_FIXED.size : begin])
    if len(kind) != kind_size:
        raise ProtocolError("a message that ends in its header")
    _check_kind(kind, kind)
    header = Header(session, sender, receiver, kind.decode(), sequence, size, sealed == 1)
    if len(view) != size + header.overhead:
        raise ProtocolError(
            f"a message of {len(view)} bytes where its header means {size + header.overhead}"
        )
    return Frame(header, view[:begin], view[begin:])


def _check_kind(kind: bytes, shown: object) -> None:
    if not (0 < len(kind) <= MAX_KIND_BYTES and all(32 < byte < 127 for byte in kind)):
        raise ProtocolError(f"{shown!r} is no kind of message")
