"""Paillier's encryption and what it is made of: powers, products, packing; beside `phe`'s."""

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given
from hypothesis import strategies as st
from paillier_pair import BITS, KEY, N, codes_of, integers, parties, replayed
from recording_network import Network

from jaxfed.errors import ProtocolError, UsageError
from jaxfed.secure.hamming import paillier_packed
from jaxfed.secure.primitives import paillier, products
from jaxfed.secure.primitives.packing import Packing
from jaxfed.secure.primitives.products import FixedBase


@given(st.integers(0, 2**64), st.integers(1, 12), st.integers(1, 2000), st.integers(0, 2**96 - 1))
def test_fixed_base_powers(base, num_bytes, num_powers, exponent):
    modulus = mpz(2**61 - 1)
    powers = FixedBase(mpz(base), modulus, 8 * num_bytes, num_powers)
    exponent %= 256**num_bytes
    [digits] = powers.digits(exponent.to_bytes(num_bytes, "little"))
    assert powers.power(digits) == pow(base, exponent, int(modulus))


@given(st.integers(0, 30), st.integers(1, 40), st.integers(0, 2**31))
def test_subset_products(num_rows, num_columns, seed):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 2, (num_rows, num_columns), dtype=np.uint8)
    numbers = [mpz(int(value)) for value in rng.integers(0, 10007, num_columns)]
    expected = [
        products.product([c for bit, c in zip(row, numbers, strict=True) if bit], 10007)
        for row in rows
    ]
    assert products.subset_products(rows, numbers, mpz(10007)) == expected


@given(st.integers(1, 4096), st.integers(0, 2**31))
def test_packed_digits_come_back(num_bits, seed):
    """Any digits of 0 ... L up to the last slot, extremes included, without a carry."""
    packing = Packing(num_bits, BITS)
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, packing.slots + 1))
    digits = rng.choice([0, num_bits, int(rng.integers(0, num_bits + 1))], (3, count))
    radix = num_bits + 1
    values = [mpz(sum(int(d) * radix**i for i, d in enumerate(row))) for row in digits]
    assert max(values) < N
    np.testing.assert_array_equal(packing.digits(values, count), digits)
    assert packing.ones(count) == sum(radix**i for i in range(count))


@pytest.mark.parametrize(("bits", "num_bits", "slots"), [(2048, 4096, 170), (3072, 4096, 255)])
def test_a_plaintext_holds_as_many_slots_as_can_be(bits, num_bits, slots):
    packing = Packing(num_bits, bits)
    assert packing.slots == slots
    assert (num_bits + 1) ** slots <= 2 ** (bits - 1) < (num_bits + 1) ** (slots + 1)
    with pytest.raises(UsageError, match=f"{slots} slots, got {slots + 1}"):
        packing.packed_columns(np.zeros((slots + 1, 4), np.uint8))


def encrypted(plaintexts, key=KEY, source=None):
    encryption = paillier.Encryption(key, len(plaintexts))
    exponents = (source or replayed())(len(plaintexts) * encryption.exponent_bytes)
    return encryption([mpz(m) for m in plaintexts], exponents)


def test_encryption_is_the_written_one():
    """(1 + m N) B^e mod N^2, modulo p^2 and q^2 or not."""
    plaintexts = [0, 1, int(N) - 1, 12345]
    exponents = integers(replayed()(4 * BITS // 16), BITS // 16)
    b, square = int(KEY.public.base), int(N) ** 2
    expected = [
        (1 + m * int(N)) * pow(b, e, square) % square
        for m, e in zip(plaintexts, exponents, strict=True)
    ]
    assert encrypted(plaintexts) == expected


@pytest.mark.parametrize("bits", paillier.KEY_BITS)
def test_phe_reads_ours_and_we_read_phe(bits):
    key = paillier.generate_key(bits)
    n = int(key.public.n)
    assert n.bit_length() == bits
    plaintexts = [0, 1, n // 2, n - 1]
    ours = encrypted(plaintexts, key)
    assert [key.phe.raw_decrypt(int(c)) for c in ours] == plaintexts
    theirs = [mpz(key.phe.public_key.raw_encrypt(m)) for m in plaintexts]
    assert key.decrypt(theirs) == plaintexts
    assert key.decrypt([a * b % n**2 for a, b in zip(ours, theirs, strict=True)]) == [
        2 * m % n for m in plaintexts
    ]


def test_key_is_what_short_exponents_need():
    """p = q = 3 mod 4, no other common factor of p - 1 and q - 1; B an N-th power of Jacobi symbol 1."""
    for _ in range(40):  # a third of all pairs of primes have another common factor
        key = paillier.generate_key(BITS, insecure=True)
        p, q = key.phe.p, key.phe.q
        assert p % 4 == q % 4 == 3
        assert gmpy2.gcd(p - 1, q - 1) == 2
        assert gmpy2.legendre(key.public.base % p, p) == -1
        assert gmpy2.jacobi(key.public.base, key.public.n) == 1
        assert key.decrypt([key.public.base]) == [0]
        assert key.public.n.bit_length() == BITS


def test_a_key_of_another_size_than_agreed_is_refused():
    network, a = Network(), codes_of(2, 1)
    first, _, _ = parties(network, a, a)
    second = paillier_packed.Second(network.endpoint(1), 0, a, 2)
    first.send_key()
    with pytest.raises(ProtocolError, match="a key of 2048 bits takes 768 bytes, got 96"):
        second.receive_key()
