"""Section 3.2 of XCLP in integers: what its steps compute, corrected and as printed, against `ot` and `phe`.

The steps of one pair of points are transcribed without parties, channels and encryption: client j has the
bits y, client k has x. Each function returns what the other client reads on the way, and the server's result.
"""

import secrets

import numpy as np
import pytest
from paillier_pair import N, codes_of, plain, with_extremes
from paillier_pair import distances as distances_by_phe
from recording_network import Network
from scipy import stats

from jaxfed.secure.hamming import transfer
from jaxfed.secure.hamming.pair import bits_of
from jaxfed.secure.session.endpoint import SERVER


def by_transfer(y, x, modulus, draw=secrets.randbelow):
    """Oblivious transfer: k reads t_1 ... t_L, and the server's result is T - R. The printed modulus is L."""
    r = [draw(modulus) for _ in y]  # step 1
    offers = [(r_l + y_l, r_l + 1 - y_l) for r_l, y_l in zip(r, y, strict=True)]
    t = [offer[x_l] % modulus for offer, x_l in zip(offers, x, strict=True)]  # step 2
    return t, (sum(t) - sum(r)) % modulus  # steps 3 and 4


def by_encryption(y, x, n, draw=secrets.randbelow):
    """Homomorphic encryption: j reads T, and the server's result is T - R modulo N = `n`."""
    r = draw(n)  # step 2; step 1 encrypts y
    t = (r + sum(-y_l if x_l else y_l for y_l, x_l in zip(y, x, strict=True))) % n
    return t, (t - (r - sum(x))) % n  # steps 3 to 5


def by_printed_encryption(y, x, draw=secrets.randbelow):
    """The same as printed: the opposite signs, another constant, and a small r added over the integers."""
    r = draw(len(y))
    t = r + sum(y_l if x_l else -y_l for y_l, x_l in zip(y, x, strict=True))
    return t, t - (r - len(y) + sum(x))


def computed(steps, a, b, *options):
    """The server's results for all pairs of points."""
    first, second = bits_of(a).tolist(), bits_of(b).tolist()
    return np.array([[steps(y, x, *options)[1] for x in second] for y in first])


def distances_by_ot(network, a, b):
    [block] = transfer.run_pair(
        transfer.First(network.endpoint(0), 1, a, 0),
        transfer.Second(network.endpoint(1), 0, b, len(a), 0),
        transfer.Server(network.endpoint(SERVER), 0, 1, len(a), 32 * a.shape[1]),
        (len(a), len(b), 32 * a.shape[1]),
    )
    return block.distances


def test_the_corrected_steps_give_hamming_distances_as_ot_and_phe_do():
    a = codes_of(4, 2)
    b = with_extremes(a, codes_of(3, 2, seed=1))
    expected = plain(a, b)
    assert {0, 64} <= set(expected.ravel().tolist())
    np.testing.assert_array_equal(computed(by_transfer, a, b, 128), expected)
    np.testing.assert_array_equal(computed(by_encryption, a, b, int(N)), expected)
    np.testing.assert_array_equal(distances_by_ot(Network(), a, b), expected)
    np.testing.assert_array_equal(distances_by_phe(Network(), a, b), expected)


# --- the printed steps ---------------------------------------------------------------------------


def test_modulo_l_would_lose_the_largest_distance():
    """In the paper's Z_L opposite points look equal. Every other distance is right."""
    a = codes_of(4, 2)
    b = with_extremes(a, codes_of(3, 2, seed=1))
    expected = plain(a, b)
    np.testing.assert_array_equal(computed(by_transfer, a, b, 64), expected % 64)
    assert expected[0, -1] == 64


def test_the_printed_encryption_counts_agreements():
    """L - h: the graph would connect each point with its farthest ones."""
    a, b = codes_of(4, 2), codes_of(3, 2, seed=1)
    np.testing.assert_array_equal(computed(by_printed_encryption, a, b), 64 - plain(a, b))


@pytest.mark.parametrize("x", [[0] * 32, [1] * 32])
def test_the_printed_mask_shows_the_key_owner_its_partners_point(x):
    """y = 1 ... 1 and r < L over the integers: the sign of T tells x apart. With r from Z_N, T is uniform."""
    y = [1] * 32
    assert all((by_printed_encryption(y, x)[0] > 0) == (x[0] == 1) for _ in range(100))
    source = np.random.default_rng(0).bytes
    opened = [
        by_encryption(y, x, 2**256, lambda _: int.from_bytes(source(32), "little"))[0]
        for _ in range(1000)
    ]
    counts = np.bincount([t >> 250 for t in opened], minlength=64)
    assert stats.chisquare(counts).pvalue > 1e-6


def test_without_random_shifts_the_receiver_reads_the_sender():
    """With every r_l = 0 client k gets y xor x, and so y."""
    y, x = bits_of(codes_of(2, 2)).tolist()
    received, _ = by_transfer(y, x, 128, lambda _: 0)
    assert [t_l ^ x_l for t_l, x_l in zip(received, x, strict=True)] == y
