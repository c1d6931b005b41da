"""SecureHamming by Paillier's encryption, `phe`: distances, bytes, dropouts, bad messages."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from paillier_pair import (
    BITS,
    KEY,
    N,
    blocks,
    codes_of,
    distances,
    plain,
    with_extremes,
)
from recording_network import Network

from jaxfed.errors import ProtocolError
from jaxfed.secure.hamming import paillier_packed
from jaxfed.secure.primitives import paillier


@given(
    st.integers(1, 100),
    st.integers(1, 30),
    st.sampled_from([1, 3, 4]),
    st.integers(0, 2**31),
)
def test_distances(n, m, num_words, seed):
    a = codes_of(n, num_words, seed)
    b = with_extremes(a, codes_of(m, num_words, seed + 1))
    np.testing.assert_array_equal(distances(Network(), a, b), plain(a, b))


def test_points_are_encrypted_once_for_all_partners():
    a, b = codes_of(5, 2), codes_of(4, 2, seed=1)
    points = paillier_packed.EncryptedPoints(a, KEY)
    sent = []
    for _ in range(2):
        network = Network()
        np.testing.assert_array_equal(distances(network, a, b, points=points), plain(a, b))
        sent.append([m.payload for m in network.log if m.kind == "points"])
    assert sent[0] == sent[1]


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
    *(("points", starting(c, CIPHER), match) for c, match in NOT_CIPHERTEXTS),
    *(("answers", starting(c, CIPHER), match) for c, match in NOT_CIPHERTEXTS),
    *(("key", ending(c, CIPHER), match) for c, match in NOT_CIPHERTEXTS),
    *(("key", starting(n, PLAIN), match) for n, match in NOT_MODULI),
    *(("modulus", starting(n, PLAIN), match) for n, match in NOT_MODULI),
    *(("key", ending(b, CIPHER), "small order") for b in (1, N * N - 1, N + 1)),
    ("opened", starting(N, PLAIN), r"not in \[0, N\)"),
    ("opened", starting(2**BITS - 1, PLAIN), r"not in \[0, N\)"),
    ("modulus", starting(OTHER_N, PLAIN), MISFIT),
    ("mask_seed", lambda p: p[:-1], "a seed has 32 bytes, got 31"),
    ("mask_seed", lambda p: p[::-1], MISFIT),
]


@pytest.mark.parametrize(("kind", "change", "match"), BAD_NUMBERS)
def test_numbers_out_of_range_give_an_error_and_no_distances(kind, change, match):
    a, b = codes_of(3, 1), codes_of(2, 1, seed=1)
    done = []
    with pytest.raises(ProtocolError, match=match) as caught:
        done.extend(blocks(tampered(kind, change), a, b))
    assert not done
    assert "\n" not in str(caught.value)
