"""Two clients and a server of `phe`, what they send, and sources that repeat themselves.

Keys are of 256 bits where nothing is said, which hide nothing and follow the same protocol.
"""

import numpy as np

from jaxfed.secure.hamming import paillier_packed
from jaxfed.secure.hamming.pair import bits_of
from jaxfed.secure.primitives import paillier
from jaxfed.secure.session.endpoint import SERVER

BITS = 256
KEY = paillier.generate_key(BITS, insecure=True)
N = KEY.public.n
VIEWS = {
    0: {"answers"},
    1: {"key", "points"},
    SERVER: {"modulus/0/1", "mask_seed/0/1", "opened/0/1"},
}


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


def parties(network, a, b, *, key=KEY, points=None, **source):
    """First (client 0, with a), Second (client 1, with b) and Server of `phe`."""
    bits, num_bits = key.public.bits, 32 * a.shape[1]
    points = points or paillier_packed.EncryptedPoints(a, key)
    return (
        paillier_packed.First(network.endpoint(0), 1, points),
        paillier_packed.Second(network.endpoint(1), 0, b, len(a), key_bits=bits, **source),
        paillier_packed.Server(network.endpoint(SERVER), 0, 1, len(a), num_bits, key_bits=bits),
    )


def blocks(network, a, b, **options):
    return paillier_packed.run_pair(*parties(network, a, b, **options), (len(a), len(b)))


def joined(blocks, a, b):
    """The distances of all blocks, each pair's once."""
    found = np.full((len(a), len(b)), -1)
    for block in blocks:
        assert (block.first, block.second) == (0, 1)
        part = found[block.rows.start : block.rows.stop, block.columns.start : block.columns.stop]
        assert np.all(part == -1)
        part[:] = block.distances
    return found


def distances(network, a, b, **options):
    found = list(blocks(network, a, b, **options))
    assert all(block.distances.dtype == np.uint16 for block in found)
    return joined(found, a, b)


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
