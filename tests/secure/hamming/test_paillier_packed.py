"""SecureHamming by Paillier's encryption, `phe` and `phe_paper`: distances, views, bytes, bad messages.

Keys are of 256 bits where nothing is said, which hide nothing and follow the same protocol.
"""

import itertools
import pickle
import random

import gmpy2
import numpy as np
import pytest
from gmpy2 import mpz
from hypothesis import given
from hypothesis import strategies as st
from phe.paillier import PaillierPublicKey
from recording_network import Network
from scipy import stats

from jaxfed.errors import UsageError
from jaxfed.host.workers import worker_processes
from jaxfed.secure.errors import ProtocolError
from jaxfed.secure.hamming import packed_distances, paillier_packed, paillier_paper
from jaxfed.secure.primitives import paillier, subset_products
from jaxfed.secure.primitives.blocks import bits_of
from jaxfed.secure.primitives.fixed_base import FixedBase
from jaxfed.secure.primitives.packing import Packing, balanced
from jaxfed.secure.session.endpoint import SERVER, DroppedOut

BITS = 256
KEY = paillier.generate_key(BITS, insecure=True)
N = KEY.public.n
PROTOCOLS = ["phe", "phe_paper"]


def codes_of(n, num_words, seed=0):
    return np.random.default_rng(seed).integers(0, 2**32, (n, num_words), dtype=np.uint32)


def with_extremes(a, b):
    """Equal and opposite points planted."""
    b = b.copy()
    if len(a) and len(b):
        b[0] = a[-1]
        b[-1] = ~a[0]
    return b


def plain(a, b):
    return np.sum(bits_of(a)[:, None] != bits_of(b)[None], axis=2)


def parties(network, a, b, *, key=KEY, points=None, mapped=map, **source):
    """First (client 0, with a), Second (client 1, with b) and Server of `phe`."""
    bits, num_bits = key.public.bits, 32 * a.shape[1]
    points = points or paillier_packed.EncryptedPoints(a, key, mapped=mapped)
    return (
        paillier_packed.First(network.endpoint(0), 1, points, mapped=mapped),
        paillier_packed.Second(
            network.endpoint(1), 0, b, len(a), key_bits=bits, mapped=mapped, **source
        ),
        paillier_packed.Server(network.endpoint(SERVER), 0, 1, len(a), num_bits, key_bits=bits),
    )


def paper_parties(network, a, b, *, key=KEY, **source):
    bits, num_bits = key.public.bits, 32 * a.shape[1]
    return (
        paillier_paper.First(network.endpoint(0), 1, a, key),
        paillier_paper.Second(network.endpoint(1), 0, b, key_bits=bits, **source),
        paillier_paper.Server(network.endpoint(SERVER), 0, 1, num_bits, key_bits=bits),
    )


def blocks(protocol, network, a, b, **options):
    if protocol == "phe":
        return paillier_packed.run_pair(*parties(network, a, b, **options), (len(a), len(b)))
    return paillier_paper.run_pair(*paper_parties(network, a, b, **options), (len(a), len(b)))


def distances(protocol, network, a, b, **options):
    found = np.full((len(a), len(b)), -1)
    for block in blocks(protocol, network, a, b, **options):
        assert (block.first, block.second) == (0, 1)
        assert block.distances.dtype == np.uint16
        part = found[block.rows.start : block.rows.stop, block.columns.start : block.columns.stop]
        assert np.all(part == -1)
        part[:] = block.distances
    return found


def replayed(seed=0):
    """A byte source that repeats itself, for tests alone."""
    return np.random.default_rng(seed).bytes


class Recorded:
    """A byte source that keeps what it gave."""

    def __init__(self):
        self.given, self._source = [], replayed()

    def __call__(self, count):
        self.given.append(self._source(count))
        return self.given[-1]


def integers(message, size):
    return [
        int.from_bytes(message[start : start + size], "little")
        for start in range(0, len(message), size)
    ]


def opened(network):
    """Every T that first sent to the server."""
    return [
        t
        for message in network.log
        if message.kind.startswith("opened")
        for t in integers(message.payload, BITS // 8)
    ]


# --- what it is made of --------------------------------------------------------------------------


@given(st.integers(0, 2**64), st.integers(1, 12), st.integers(1, 2000), st.integers(0, 2**96 - 1))
def test_fixed_base_powers(base, num_bytes, num_powers, exponent):
    modulus = mpz(2**61 - 1)
    powers = FixedBase(mpz(base), modulus, 8 * num_bytes, num_powers)
    exponent %= 256**num_bytes
    [digits] = powers.digits(exponent.to_bytes(num_bytes, "little"))
    assert powers.power(digits) == pow(base, exponent, int(modulus))


def test_fixed_base_is_shared_by_the_tasks_of_a_worker():
    powers = FixedBase(mpz(3), mpz(1009), 16, 5)
    copy, again = (pickle.loads(pickle.dumps(powers)) for _ in range(2))
    assert copy is again
    [digits] = copy.digits((12345).to_bytes(2, "little"))
    assert copy.power(digits) == pow(3, 12345, 1009)


@given(st.integers(0, 30), st.integers(1, 40), st.integers(0, 2**31))
def test_subset_products(num_rows, num_columns, seed):
    rng = np.random.default_rng(seed)
    rows = rng.integers(0, 2, (num_rows, num_columns), dtype=np.uint8)
    numbers = [mpz(int(value)) for value in rng.integers(0, 10007, num_columns)]
    expected = [
        subset_products.product([c for bit, c in zip(row, numbers, strict=True) if bit], 10007)
        for row in rows
    ]
    assert subset_products.subset_products(rows, numbers, mpz(10007)) == expected


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


@pytest.mark.parametrize("count", [1, 8, 9, 21])
def test_packed_columns(count):
    packing = Packing(4096, BITS)
    assert packing.slots == 21  # 4097^21 <= 2^255 < 4097^22
    bits = np.random.default_rng(0).integers(0, 2, (count, 50), dtype=np.uint8)
    expected = [
        sum(int(bit) * 4097**i for i, bit in enumerate(column)) for column in bits.T.tolist()
    ]
    assert packing.packed_columns(bits) == expected


@pytest.mark.parametrize(("bits", "num_bits", "slots"), [(2048, 4096, 170), (3072, 4096, 255)])
def test_a_plaintext_holds_as_many_slots_as_can_be(bits, num_bits, slots):
    packing = Packing(num_bits, bits)
    assert packing.slots == slots
    assert (num_bits + 1) ** slots <= 2 ** (bits - 1) < (num_bits + 1) ** (slots + 1)
    with pytest.raises(UsageError, match=f"{slots} slots, got {slots + 1}"):
        packing.packed_columns(np.zeros((slots + 1, 4), np.uint8))


@given(st.integers(0, 400), st.integers(1, 50))
def test_blocks_are_balanced(count, size):
    pieces = list(balanced(count, size))
    assert [i for piece in pieces for i in piece] == list(range(count))
    assert len(pieces) == -(-count // size)
    lengths = {len(piece) for piece in pieces}
    assert not lengths or (max(lengths) <= size and max(lengths) - min(lengths) <= 1)


def test_uniform_integers_are_drawn_again_not_reduced():
    """The first draw is N itself, the second N - 1: what counts is the second."""
    draws = iter([int(N), int(N) - 1])
    value = paillier.uniform_below(N, lambda size: next(draws).to_bytes(size, "little"))
    assert value == N - 1


# --- encryption ----------------------------------------------------------------------------------


def encrypted(plaintexts, key=KEY, source=None):
    encryption = paillier.Encryption(key, len(plaintexts))
    exponents = (source or replayed())(len(plaintexts) * encryption.exponent_bytes)
    return encryption(([mpz(m) for m in plaintexts], exponents))


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


def test_encryptions_of_the_same_differ():
    """All zeros, all ones: no ciphertext comes twice, and Jacobi symbols do not tell them apart."""
    zeros, ones = encrypted([0] * 200, source=replayed(1)), encrypted([1] * 200, source=replayed(2))
    assert len({*zeros, *ones}) == 400
    assert {int(gmpy2.jacobi(c, N)) for c in zeros + ones} == {1}


@pytest.mark.parametrize("bits", [1024, 2047, 4096, 0])
def test_wrong_key_sizes_are_refused(bits):
    with pytest.raises(UsageError, match="allowed are 2048 and 3072"):
        paillier.generate_key(bits)


@pytest.mark.parametrize("bits", [64, 120, 257])
def test_tests_have_limits_too(bits):
    with pytest.raises(UsageError, match="even tests need multiples of 16"):
        paillier.generate_key(bits, insecure=True)


def test_a_key_of_another_size_than_agreed_is_refused():
    network, a = Network(), codes_of(2, 1)
    first, _, _ = parties(network, a, a)
    second = paillier_packed.Second(network.endpoint(1), 0, a, 2)
    first.send_key()
    with pytest.raises(ProtocolError, match="a key of 2048 bits takes 768 bytes, got 96"):
        second.receive_key()


# --- distances -----------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize(
    ("n", "m", "num_words"), [(1, 1, 1), (3, 2, 1), (2, 3, 2), (0, 2, 1), (2, 0, 1)]
)
def test_small_cases(protocol, n, m, num_words):
    a = codes_of(n, num_words)
    b = with_extremes(a, codes_of(m, num_words, seed=1))
    np.testing.assert_array_equal(distances(protocol, Network(), a, b), plain(a, b))


@given(
    st.integers(1, 100),
    st.integers(1, 30),
    st.sampled_from([1, 3, 4]),
    st.integers(0, 2**31),
)
def test_distances(n, m, num_words, seed):
    a = codes_of(n, num_words, seed)
    b = with_extremes(a, codes_of(m, num_words, seed + 1))
    np.testing.assert_array_equal(distances("phe", Network(), a, b), plain(a, b))


@pytest.mark.parametrize("fill", [0, 2**32 - 1])
def test_constant_points_fill_every_slot(fill):
    """V = 0 and V as large as can be."""
    slots = Packing(32, BITS).slots
    a = np.full((slots, 1), fill, np.uint32)
    b = np.array([[0], [2**32 - 1]], np.uint32)
    np.testing.assert_array_equal(distances("phe", Network(), a, b), plain(a, b))


def test_distances_of_4096_bits_over_several_blocks(monkeypatch):
    monkeypatch.setattr(paillier_packed, "MESSAGE_VECTORS", 16)
    monkeypatch.setattr(paillier_packed, "_TASK_VECTORS", 5)
    a = codes_of(50, 128)
    b = with_extremes(a, codes_of(37, 128, seed=1))
    found = distances("phe", Network(), a, b)
    np.testing.assert_array_equal(found, plain(a, b))
    assert found[-1, 0] == 0
    assert found[0, -1] == 4096


def test_full_keys():
    a = codes_of(3, 1)
    b = with_extremes(a, codes_of(3, 1, seed=1))
    key = paillier.generate_key()
    np.testing.assert_array_equal(distances("phe", Network(), a, b, key=key), plain(a, b))


def test_worker_processes_give_the_same_messages():
    """Two processes; equal sources, equal bytes."""
    a, b = codes_of(9, 16), codes_of(100, 16, seed=1)
    logs = []
    for count in (0, 2):
        network = Network()
        with worker_processes(count) as mapped:
            points = paillier_packed.EncryptedPoints(a, KEY, random_bytes=replayed(), mapped=mapped)
            found = distances(
                "phe", network, a, b, points=points, mapped=mapped, random_bytes=replayed(1)
            )
        np.testing.assert_array_equal(found, plain(a, b))
        logs.append(network.log)
    assert logs[0] == logs[1]
    with pytest.raises(UsageError, match="workers=-1"), worker_processes(-1):
        pass


def test_points_are_encrypted_once_for_all_partners():
    a, b = codes_of(5, 2), codes_of(4, 2, seed=1)
    points = paillier_packed.EncryptedPoints(a, KEY)
    sent = []
    for _ in range(2):
        network = Network()
        np.testing.assert_array_equal(distances("phe", network, a, b, points=points), plain(a, b))
        sent.append([m.payload for m in network.log if m.kind == "points"])
    assert sent[0] == sent[1]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_codes_too_long_for_the_ring_are_refused(protocol):
    with pytest.raises(UsageError, match="num_bits=65536"):
        distances(protocol, Network(), codes_of(1, 2048), codes_of(1, 2048))


def test_keys_too_short_for_a_distance_are_refused():
    with pytest.raises(UsageError, match="key_bits=8: too few for a distance of 256 bits"):
        Packing(256, 8)


# --- bytes ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(5, 7), (1, 1), (120, 20), (0, 2)])
def test_bytes_are_as_counted(sizes, monkeypatch):
    monkeypatch.setattr(paillier_packed, "MESSAGE_VECTORS", 6)
    n, m = sizes
    network = Network()
    distances("phe", network, codes_of(n, 3), codes_of(m, 3))
    assert network.bytes_by_kind() == paillier_packed.message_bytes(n, m, 96, BITS)


def test_bytes_of_the_paper_are_as_counted():
    network = Network()
    distances("phe_paper", network, codes_of(2, 1), codes_of(3, 1))
    assert network.bytes_by_kind() == paillier_paper.message_bytes(2, 3, 32, BITS)


@pytest.mark.parametrize(("num_bits", "limit"), [(4096, 32), (1024, 11)])
def test_bytes_a_pair_at_full_size(num_bits, limit):
    """The targets at 500 x 500 points, and 140 times less than the paper's protocol moves."""
    ours = sum(paillier_packed.message_bytes(500, 500, num_bits).values())
    assert ours / 500**2 <= limit
    if num_bits == 4096:
        assert sum(paillier_paper.message_bytes(500, 500, 4096).values()) > 140 * ours


# --- who sees what -------------------------------------------------------------------------------


VIEWS = {
    "phe": {
        0: {"answers"},
        1: {"key", "points"},
        SERVER: {"modulus/0/1", "mask_seed/0/1", "opened/0/1"},
    },
    "phe_paper": {
        0: {"answer"},
        1: {"modulus", "point"},
        SERVER: {"modulus/0/1", "opened/0/1", "mask/0/1"},
    },
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_who_receives_what(protocol):
    network = Network()
    distances(protocol, network, codes_of(2, 1), codes_of(2, 1))
    for address, kinds in VIEWS[protocol].items():
        assert {message.kind for message in network.seen_by(address)} == kinds


def test_server_view_is_the_same_for_flipped_points():
    """Other inputs with the same H: every byte that the server receives is the same."""
    a, b = codes_of(6, 2), codes_of(5, 2, seed=1)
    seen = []
    for x, y in ((a, b), (~a, ~b)):
        network = Network()
        found = distances("phe", network, x, y, random_bytes=replayed())
        np.testing.assert_array_equal(found, plain(a, b))
        seen.append([m.payload for m in network.seen_by(SERVER)])
    assert seen[0] == seen[1]


def test_server_view_of_the_paper_is_the_same_for_flipped_points():
    """r' = r + L - 2 |x| keeps R = r - |x|, and T = R + h with it."""
    a, b = codes_of(3, 2), codes_of(4, 2, seed=1)
    weights = itertools.cycle(bits_of(b).sum(axis=1).tolist())
    seen = []
    for flipped in (False, True):
        numbers = iter(range(10**6, 10**7, 10**5))

        def random_below(n, flipped=flipped, numbers=numbers):
            return next(numbers) + (64 - 2 * next(weights) if flipped else 0)

        network = Network()
        x, y = (~a, ~b) if flipped else (a, b)
        found = distances("phe_paper", network, x, y, random_below=random_below)
        np.testing.assert_array_equal(found, plain(a, b))
        seen.append([m.payload for m in network.seen_by(SERVER)])
    assert seen[0] == seen[1]


class Given:
    """Masks that a test chose."""

    def __init__(self, masks):
        self.masks = masks

    def take(self, count):
        return self.masks[:count]


def exponent_shifts(exponents, bits):
    """2 sum_{l: x_l = 1} e_l - sum_l e_l, for every vector x."""
    return [
        sum(e if bit else -e for e, bit in zip(exponents, row, strict=True))
        for row in bits.tolist()
    ]


def test_owner_view_is_the_same_for_any_vectors_of_its_partner():
    """Coupling: rho' = rho + V - V' and s' = s + shift - shift' give the same bytes for any other x."""
    a, b, other = codes_of(6, 1), codes_of(4, 1, seed=1), codes_of(4, 1, seed=2)
    source = Recorded()
    points = paillier_packed.EncryptedPoints(a, KEY, random_bytes=source)
    points.message(0)
    exponents = integers(b"".join(source.given), BITS // 16)
    packed, shifts = (
        [
            [
                sum(int(32 - h) * 33**i for i, h in enumerate(column))
                for column in plain(a, y).T.tolist()
            ]
            for y in (b, other)
        ],
        [exponent_shifts(exponents, bits_of(y)) for y in (b, other)],
    )
    masks = [paillier.uniform_below(N, replayed(3)) for _ in b]
    hiding = [1 << 200, 3 << 190, 5 << 180, 7 << 170]
    seen, server_masks = [], []
    for run, y in enumerate((b, other)):
        network = Network()
        first, second, _ = parties(network, a, y, points=points)
        first.send_key()
        second.receive_key()
        rho = [(mask + packed[0][m] - packed[run][m]) % N for m, mask in enumerate(masks)]
        s = [value + shifts[0][m] - shifts[run][m] for m, value in enumerate(hiding)]
        second._masks = Given(rho)
        second._random_bytes = lambda size, s=s: paillier.to_bytes(s, size // len(s))
        first.send_points(0)
        second.receive_points(0)
        second.answer(range(4))
        first.open(4)
        seen.append([m.payload for m in network.seen_by(0)])
        seen[-1].append(network.log[-1].payload)  # T
        server_masks.append(rho)
    assert seen[0] == seen[1]
    assert server_masks[0] != server_masks[1]


def test_opened_values_are_distances_plus_masks():
    """dec(answer) = (V + rho) mod N in every draw, wrapped around or not."""
    a, b = codes_of(5, 1), codes_of(300, 1, seed=1)
    network, source = Network(), Recorded()
    distances("phe", network, a, b, random_bytes=source)
    masks = packed_distances.Masks(source.given[0], N).take(300)
    values = [
        sum(int(32 - h) * 33**i for i, h in enumerate(column)) for column in plain(a, b).T.tolist()
    ]
    assert opened(network) == [(v + m) % N for v, m in zip(values, masks, strict=True)]
    full = [33**50 - 1] * 300  # close enough to N to wrap, were L - h = L everywhere
    assert {int((v + m) // N) for v, m in zip(full, masks, strict=True)} == {0, 1}


def uniform_in_n(values, num_bins=64):
    counts = np.bincount([int(v * num_bins // N) for v in values], minlength=num_bins)
    return stats.chisquare(counts).pvalue


@pytest.mark.parametrize("fill", [0, 2**32 - 1])
def test_opened_values_are_uniform(fill):
    """Constant points, V = 0 or the largest: T is uniform in Z_N all the same."""
    a = np.zeros((50, 1), np.uint32)
    network = Network()
    distances("phe", network, a, np.full((2000, 1), fill, np.uint32), random_bytes=replayed(fill))
    values = opened(network)
    assert len(set(values)) == 2000
    assert uniform_in_n(values) > 1e-6


def test_opened_values_of_the_paper_are_uniform():
    """r from [0, L - 1], as printed, would leave T next to 0."""
    network, a = Network(), np.zeros((1, 1), np.uint32)
    source = random.Random(0).randrange
    distances("phe_paper", network, a, np.zeros((1000, 1), np.uint32), random_below=source)
    assert uniform_in_n(opened(network)) > 1e-6


def test_masks_are_fresh_in_every_run_and_for_every_vector():
    """The same points again: the owner sees no T twice. (T - T' under one rho would be V - V'.)"""
    a = codes_of(3, 1)
    b = np.repeat(a, 4, axis=0)
    seen = []
    for _ in range(3):
        network = Network()
        distances("phe", network, a, b)
        seen += opened(network)
    assert len(set(seen)) == 36


# --- distinguishing games ------------------------------------------------------------------------


def recognized(answer, ciphertexts, candidates):
    """Which candidate x explains the answer's randomness: answer = prod_l c_l^(+-1) mod N."""
    for number, bits in enumerate(candidates.tolist()):
        expected = mpz(1)
        for bit, ciphertext in zip(bits, ciphertexts, strict=True):
            factor = ciphertext if bit else gmpy2.invert(ciphertext, N)
            expected = expected * factor % N
        if answer % N == expected:
            return number
    return None


@pytest.mark.parametrize("randomized", [True, False])
def test_the_key_owner_recognizes_answers_unless_they_are_randomized(randomized):
    """60 games: x is one of two; the owner compares the answer with products of its ciphertexts."""
    a, candidates = codes_of(2, 1), codes_of(2, 1, seed=1)
    points = paillier_packed.EncryptedPoints(a, KEY)
    ciphertexts = integers(points.message(0), BITS // 4)
    coins, wins = np.random.default_rng(0), 0
    for _ in range(60):
        secret, guess = coins.integers(0, 2, 2)
        network = Network()
        source = {} if randomized else {"random_bytes": bytes}  # s = 0 (and a seed of zeros)
        distances("phe", network, a, candidates[secret : secret + 1], points=points, **source)
        [message] = network.seen_by(0)
        [answer] = integers(message.payload, BITS // 4)
        found = recognized(answer, ciphertexts, bits_of(candidates))
        wins += (guess if found is None else found) == secret
    assert 15 <= wins <= 45 if randomized else wins == 60


@pytest.mark.parametrize("randomized", [True, False])
def test_the_same_game_with_the_protocol_of_the_paper(randomized, monkeypatch):
    """The answer's randomness comes from Enc(r) alone."""
    a, candidates = codes_of(1, 1), codes_of(2, 1, seed=1)
    network = Network()
    first, second, _ = paper_parties(network, a, candidates)
    first.send_key()
    second.receive_key()
    first.send_point(0)
    ciphertexts = integers(network.log[-1].payload, BITS // 4)
    second.receive_point()
    if not randomized:
        monkeypatch.setattr(PaillierPublicKey, "get_random_lt_n", lambda self: 1)
    for column in range(2):
        second.answer(column)
        [answer] = integers(network.seen_by(0)[-1].payload, BITS // 4)
        found = recognized(answer, ciphertexts, 1 - bits_of(candidates))
        assert found == (None if randomized else column)


@pytest.mark.parametrize("shortened", [False, True])
def test_exponents_hide_even_from_one_who_takes_logarithms(shortened, monkeypatch):
    """x = 0 or 1, ... L times: with exponents no longer than the owner's own their sum tells which.

    The statistical distance is at most L 2^(|N| / 2) over the number of values of s.
    """
    if shortened:
        monkeypatch.setattr(paillier, "HIDING_BITS", 0)
        monkeypatch.setattr(paillier_packed, "HIDING_BITS", 0)
    a = codes_of(1, 1)
    source = Recorded()
    points = paillier_packed.EncryptedPoints(a, KEY, random_bytes=source)
    points.message(0)
    own = integers(b"".join(source.given), BITS // 16)
    secrets_ = np.random.default_rng(1).integers(0, 2, 200)
    b = np.where(secrets_[:, None] == 1, np.uint32(2**32 - 1), np.uint32(0))
    network, source = Network(), Recorded()
    distances("phe", network, a, b, points=points, random_bytes=source)
    size = len(source.given[1]) // 90  # of s; 90 vectors make a task
    hiding = integers(b"".join(source.given[1:]), size)
    assert shortened or 2 ** (8 * size) // 2**120 >= 32 * 2 ** (BITS // 2)
    logs = [s + t for s, t in zip(hiding, exponent_shifts(own, bits_of(b)), strict=True)]
    answers = integers(network.seen_by(0)[0].payload, BITS // 4)
    for log, answer in zip(logs, answers, strict=True):
        assert gmpy2.powmod(KEY.public.base, log, N) == answer % N
    wins = np.sum((np.array([log >> (8 * size - 1) for log in logs]) > 0) == secrets_)
    assert wins == 200 if shortened else 60 <= wins <= 140


# --- mutations: each safeguard removed is noticed ------------------------------------------------


def test_masks_slot_by_slot_would_not_be_uniform(monkeypatch):
    """r_i uniform in [0, L] for every slot: T stays far below N, and its slots tell h."""

    def slot_by_slot(self, count):
        slots = np.frombuffer(self._bytes(20 * count), np.uint8).reshape(count, 20) % 33
        return [mpz(sum(int(r) * 33**i for i, r in enumerate(row))) for row in slots]

    monkeypatch.setattr(packed_distances.Masks, "take", slot_by_slot)
    network, a = Network(), np.zeros((20, 1), np.uint32)
    distances("phe", network, a, codes_of(200, 1), random_bytes=replayed())
    assert uniform_in_n(opened(network)) < 1e-6


def test_without_masks_the_owner_reads_the_distances(monkeypatch):
    monkeypatch.setattr(packed_distances.Masks, "take", lambda self, count: [mpz(0)] * count)
    network, a, b = Network(), codes_of(3, 1), codes_of(5, 1, seed=1)
    distances("phe", network, a, b)
    digits = Packing(32, BITS).digits([mpz(t) for t in opened(network)], 3)
    np.testing.assert_array_equal(32 - digits.T, plain(a, b))


@pytest.mark.parametrize("reduced", [False, True])
def test_masks_reduced_modulo_n_would_be_biased(reduced, monkeypatch):
    if reduced:
        monkeypatch.setattr(
            packed_distances,
            "uniform_below",
            lambda n, source: mpz(int.from_bytes(source(BITS // 8), "little")) % n,
        )
    modulus = mpz(3 << (BITS - 2)) | 1  # the worst there is: a third of all values come twice
    values = packed_distances.Masks(bytes(32), modulus).take(5000)
    bins = np.bincount([int(v * 64 // modulus) for v in values], minlength=64)
    assert (stats.chisquare(bins).pvalue < 1e-6) == reduced


def test_digits_to_base_l_would_carry(monkeypatch):
    """The paper's Z_L: L - h = L of an equal point has no digit."""

    class Modular(Packing):
        def __init__(self, num_bits, key_bits):
            super().__init__(num_bits, key_bits)
            self._radix -= 1

    monkeypatch.setattr(paillier_packed, "Packing", Modular)
    monkeypatch.setattr(packed_distances, "Packing", Modular)
    a = codes_of(3, 1)
    found = distances("phe", Network(), a[:2], a[2:])
    np.testing.assert_array_equal(found, plain(a[:2], a[2:]))  # no distance 0: as if all were well
    found = distances("phe", Network(), a[:2], a[:1])
    assert found[0, 0] == 32 != plain(a[:2], a[:1])[0, 0]


# --- dropouts and bad messages -------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("client", [0, 1])
def test_dropout_during_the_distances(protocol, client):
    """Wherever it happens, the pair ends with `DroppedOut`, and nothing waits at the server."""
    a, b = codes_of(3, 1), codes_of(2, 1, seed=1)
    complete = Network()
    distances(protocol, complete, a, b)
    for kind in {m.kind for m in complete.log if m.sender == client}:
        network, done = Network(), []
        network.leave(client, "send", kind)
        with pytest.raises(DroppedOut) as dropout:
            done.extend(blocks(protocol, network, a, b))
        assert dropout.value.client == client
        assert not done
        assert not network.queues[0, SERVER]
        assert not network.queues[1, SERVER]


def tampered(kind, change):
    """A network that changes the first message of a kind, "modulus/0/1" or just "modulus"."""
    network, left = Network(), [change]

    def tamper(message):
        if kind in (message.kind, message.kind.partition("/")[0]) and left:
            return left.pop()(message.payload)
        return message.payload

    network.tamper = tamper
    return network


def starting(number, size):
    """A change that puts a number at the start of the message."""
    return lambda payload: int(number).to_bytes(size, "little") + payload[size:]


def ending(number, size):
    return lambda payload: payload[:-size] + int(number).to_bytes(size, "little")


PLAIN, CIPHER = BITS // 8, BITS // 4
OTHER_N = paillier.generate_key(BITS, insecure=True).public.n
NOT_CIPHERTEXTS = [
    (0, r"not in \[1, N\^2\)"),
    (N * N, r"not in \[1, N\^2\)"),
    (N * N + 1, r"not in \[1, N\^2\)"),
    (2 ** (2 * BITS) - 1, r"not in \[1, N\^2\)"),
    (N, "no inverse"),
    (N * (N - 1), "no inverse"),
    (KEY.phe.p, "no inverse"),
]
NOT_MODULI = [(N - 1, "odd"), (N >> 1 | 1, "odd and has 256 bits, got 255"), (0, "got 0 bits")]
# What a wrong mask gives is random: too large a distance, or too large a plaintext already.
MISFIT = r"do not fit together|not in \[0, N\)"
BAD_NUMBERS = [
    *(("phe", "points", starting(c, CIPHER), match) for c, match in NOT_CIPHERTEXTS),
    *(("phe", "answers", starting(c, CIPHER), match) for c, match in NOT_CIPHERTEXTS),
    *(("phe", "key", ending(c, CIPHER), match) for c, match in NOT_CIPHERTEXTS),
    *(("phe_paper", "point", starting(c, CIPHER), match) for c, match in NOT_CIPHERTEXTS),
    *(("phe_paper", "answer", starting(c, CIPHER), match) for c, match in NOT_CIPHERTEXTS),
    *(("phe", "key", starting(n, PLAIN), match) for n, match in NOT_MODULI),
    *(("phe", "modulus", starting(n, PLAIN), match) for n, match in NOT_MODULI),
    *(("phe_paper", "modulus", starting(n, PLAIN), match) for n, match in NOT_MODULI),
    *(("phe", "key", ending(b, CIPHER), "small order") for b in (1, N * N - 1, N + 1)),
    ("phe", "opened", starting(N, PLAIN), r"not in \[0, N\)"),
    ("phe", "opened", starting(2**BITS - 1, PLAIN), r"not in \[0, N\)"),
    ("phe", "modulus", starting(OTHER_N, PLAIN), MISFIT),
    ("phe_paper", "modulus/0/1", starting(OTHER_N, PLAIN), "clients 0 and 1 name different moduli"),
    ("phe", "mask_seed", lambda p: p[:-1], "a seed has 32 bytes, got 31"),
    ("phe", "mask_seed", lambda p: p[::-1], MISFIT),
    ("phe_paper", "opened", starting(N, PLAIN), r"not in \[0, N\)"),
    ("phe_paper", "mask", starting(N, PLAIN), r"not in \[0, N\)"),
    ("phe_paper", "mask", starting(5, PLAIN), "do not fit together"),
]


@pytest.mark.parametrize(("protocol", "kind", "change", "match"), BAD_NUMBERS)
def test_numbers_out_of_range_give_an_error_and_no_distances(protocol, kind, change, match):
    a, b = codes_of(3, 1), codes_of(2, 1, seed=1)
    done = []
    with pytest.raises(ProtocolError, match=match) as caught:
        done.extend(blocks(protocol, tampered(kind, change), a, b))
    assert not done
    assert "\n" not in str(caught.value)


DAMAGES = {
    "cut": lambda payload: payload[:-1],
    "longer": lambda payload: payload + b"\0",
    "empty": lambda payload: b"",
    "twice": lambda payload: payload + payload,
}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("damage", DAMAGES)
def test_malformed_messages_give_an_error_and_no_distances(protocol, damage):
    """Every kind of message in turn."""
    a, b = codes_of(2, 1), codes_of(1, 1, seed=1)
    kinds = set().union(*VIEWS[protocol].values())
    for kind in kinds:
        done = []
        with pytest.raises(ProtocolError) as caught:
            done.extend(blocks(protocol, tampered(kind, DAMAGES[damage]), a, b))
        assert not done
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_random_messages_never_pass_or_crash(protocol):
    """Bytes of the right and of wrong lengths in place of each kind: one line, no distances.

    Of the right length, a few kinds (noise for ciphertexts) fail only when the server finds no distance.
    """
    rng = np.random.default_rng(0)
    a, b = codes_of(3, 1), codes_of(2, 1, seed=1)
    complete = Network()
    distances(protocol, complete, a, b)
    lengths = {m.kind: len(m.payload) for m in complete.log}
    points = {"points": paillier_packed.EncryptedPoints(a, KEY)} if protocol == "phe" else {}
    for trial, kind in zip(range(700), itertools.cycle(lengths), strict=False):
        payload = rng.bytes(lengths[kind] if trial % 3 else int(rng.integers(0, 64)))
        network, done = tampered(kind, lambda _, payload=payload: payload), []
        with pytest.raises(ProtocolError) as caught:
            done.extend(blocks(protocol, network, a, b, **points))
        assert not done
        assert "\n" not in str(caught.value)
