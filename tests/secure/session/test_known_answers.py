"""Sessions against known answers: RFC 7748, RFC 5869, AES-GCM byte for byte."""

import hmac

import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from session_parties import (
    FRAME,
    hexed,
    key_pair,
)

from jaxfed.secure.session.endpoint import SERVER
from jaxfed.secure.session.key_agreement import derived_key
from jaxfed.secure.session.sealed_link import Link


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
