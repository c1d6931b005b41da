"""Generators, rings, fixed point and secret sharing of jaxfed.secure, without parties."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from jaxfed.secure.primitives import prg, ring, shamir
from jaxfed.secure.primitives.prg import Keystream, derived_seed
from jaxfed.secure.primitives.ring import FixedPoint


def replayed(seed):
    """A byte source that tests can replay."""
    stream = Keystream(bytes([seed]) * 32)
    return lambda count: stream.take(count).tobytes()


def uniform(values, bins):
    """p-value of integers in range(bins) being uniform."""
    return stats.chisquare(np.bincount(np.ravel(values).astype(np.int64), minlength=bins)).pvalue


# --- the generator -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "counter", "block"),
    [
        # FIPS-197, Appendix C.3; the counter is the plaintext block.
        (
            bytes(range(32)),
            0x00112233445566778899AABBCCDDEEFF,
            "8ea2b7ca516745bfeafc49904b496089",
        ),
        # AESAVS, zero key and zero block.
        (bytes(32), 0, "dc95c078a2408989ad48a21492842087"),
    ],
)
def test_keystream_is_aes_256_of_a_counter(key, counter, block):
    assert Keystream(key, start=16 * counter).take(16).tobytes().hex() == block


def test_keystream_counts_from_zero():
    key = bytes(range(32))
    cipher = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    counters = b"".join(number.to_bytes(16, "big") for number in range(20_000))
    assert Keystream(key).take(320_000).tobytes() == cipher.update(counters)


def test_a_stream_ends_at_its_bound(monkeypatch):
    """Beyond it the distance of its bytes from uniform ones is no longer promised."""
    monkeypatch.setattr(prg, "_MAX_BYTES", 64)
    stream = Keystream(bytes(32))
    stream.take(40)
    stream.take(24)
    with pytest.raises(ValueError, match="at most 64 bytes"):
        stream.take(1)


def test_derived_seed_is_hkdf():
    """RFC 5869, Test Case 3: no salt, no info; the first 32 bytes."""
    expected = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    assert derived_seed(b"\x0b" * 22, "").hex() == expected
    assert derived_seed(b"\x0b" * 22, "other").hex() != expected


# --- the ring ------------------------------------------------------------------------------------


@given(st.integers(1, 16), st.integers(0, 100), st.integers(0, 2**31))
def test_packing_is_a_bijection(width, count, seed):
    values = np.random.default_rng(seed).integers(0, 1 << width, count, dtype=np.uint16)
    message = ring.pack(values, width)
    assert len(message) == ring.packed_size(count, width)
    np.testing.assert_array_equal(ring.unpack(message, count, width), values)


# --- fixed point ---------------------------------------------------------------------------------


@given(
    st.integers(1, 7),
    st.integers(0, 45),
    st.integers(0, 2**31),
)
def test_fixed_point_sums_within_the_stated_error(num_terms, fraction_bits, seed):
    encoding = FixedPoint(num_terms, fraction_bits)
    rng = np.random.default_rng(seed)
    terms = rng.uniform(-1, 1, (num_terms, 50)) * encoding.largest * (1 - 1e-9)
    terms[:, 0] = encoding.largest * (
        1 - 1e-9
    )  # all at the end of the range: the sum must not wrap
    total = np.zeros(50, np.uint64)
    for term in terms:
        total += encoding.encode(term)
    exact = np.array([float(sum(Fraction(float(term)) for term in column)) for column in terms.T])
    spacing = np.spacing(np.abs(exact))  # of float64, the result's type
    assert np.all(np.abs(encoding.decode(total) - exact) <= encoding.error + spacing)


# --- Shamir --------------------------------------------------------------------------------------


@given(st.integers(1, 6), st.integers(0, 4), st.binary(max_size=64), st.integers(0, 255))
def test_any_threshold_shares_give_the_secret(threshold, more, secret, seed):
    num_shares = threshold + more
    shares = shamir.split(secret, num_shares, threshold, random_bytes=replayed(seed))
    for chosen in itertools.combinations(range(num_shares), threshold):
        held = {x + 1: shares[x] for x in chosen}
        assert shamir.reconstruct(held, threshold, len(secret)) == secret


def test_fewer_shares_say_nothing():
    """t - 1 shares fit every secret: the missing share that makes it so exists."""
    shares = shamir.split(b"attack at dawn", 3, 3)
    held = {1: int.from_bytes(shares[0], "big"), 2: int.from_bytes(shares[1], "big")}
    p = shamir.PRIME
    for guess in (b"attack at dawn", b"retreat at six", bytes(14)):
        # The polynomial of degree 2 through (0, guess) and the two shares, at x = 3.
        third = (int.from_bytes(guess, "big") - 3 * held[1] + 3 * held[2]) % p
        forged = {1: shares[0], 2: shares[1], 3: third.to_bytes(66, "big")}
        assert shamir.reconstruct(forged, 3, 14) == guess


def test_shamir_known_answer():
    """f(x) = 42 + 7 x + x^2 by hand: coefficients come from the source, highest first."""
    source = iter([1, 7])
    shares = shamir.split(b"*", 3, 3, random_bytes=lambda n: next(source).to_bytes(n, "big"))
    assert [int.from_bytes(share, "big") for share in shares] == [50, 60, 72]
