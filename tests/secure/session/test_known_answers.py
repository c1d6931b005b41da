"""Sessions against known answers: RFC 7748, RFC 5869, AES-GCM byte for byte."""

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from session_parties import (
    FRAME,
    hexed,
    key_pair,
)

from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.framing import Link
from jaxfed.secure.session.key_agreement import derived_key


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


def test_agreement_of_two_key_pairs():
    """RFC 7748, Section 6.1."""
    alice = key_pair(hexed("77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a"))
    bob = key_pair(hexed("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
    assert alice.public == hexed("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a")
    assert bob.public == hexed("de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f")
    shared = hexed("4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742")
    assert alice.agreed(bob.public) == bob.agreed(alice.public) == shared


def test_derived_keys_are_hkdf_of_fields_with_their_lengths():
    info = b"".join(
        len(field).to_bytes(4, "big") + field
        for field in (b"jaxfed secure session, version 1", b"channel", b"route", b"hash")
    )
    key = derived_key(b"s" * 32, b"n" * 16, "channel", b"route", b"hash")
    assert key == HKDF(hashes.SHA256(), 32, b"n" * 16, info).derive(b"s" * 32)


def test_no_two_lists_of_fields_read_the_same():
    lists = [("a", b"b"), ("ab",), ("", b"ab"), ("a", b"", b"b"), ("a", b"b", b""), ("a\0\0\0\1b",)]
    keys = {derived_key(b"s" * 32, b"n" * 16, *fields) for fields in lists}
    keys |= {derived_key(b"S" * 32, b"n" * 16, "ab"), derived_key(b"s" * 32, b"N" * 16, "ab")}
    assert len(keys) == len(lists) + 2


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
        sealed = AESGCM(b"k" * 32).encrypt(number.to_bytes(12, "big"), payload, header)
        message = link.sealed("hello", payload)
        assert message == header + sealed
        assert len(message) == FRAME + len("hello") + len(payload)
