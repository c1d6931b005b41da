"""AES-256 in counter mode as a pseudorandom generator: bytes, and normals, from a seed of 32 bytes.

    G(seed) = AES_seed(0) || AES_seed(1) || ...          (NIST SP 800-38A, Section 6.5, counter from 0)

Every seed must be used for one purpose only; it comes from a key derivation with its own label.
Distinguishing q blocks from uniform ones costs an attack on AES or has advantage q^2 / 2^129: 2^-69
for the at most 2^30 blocks (16 GiB) of one `Keystream`.

XCLP's Pi (Algorithm 1, lines 1 to 3) is drawn from a seed, too. Entry (l, i) is Phi^-1((m + 1/2) / 2^53), Phi
the normal distribution function and m the upper 53 bits of word l d' + i of the keystream, d' = d rounded up
to a whole number of AES blocks. If AES-256 in counter mode is indistinguishable from random bytes, Pi is
indistinguishable from independent normals (rounded to 53 bits, |z| < 8.3). A key of `jax.random` would be too
short: it has 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from scipy import special

SEED_BYTES = 32
_AES_BLOCK = 16
_MAX_BYTES = 1 << 34
_ZEROS = bytes(1 << 16)


def derived_seed(secret: bytes, label: str) -> bytes:
    """A seed derived from a secret for one purpose: HKDF with SHA-256 (RFC 5869), no salt, info = label."""
    return HKDF(hashes.SHA256(), SEED_BYTES, salt=None, info=label.encode()).derive(secret)


def buffer_size(num_bytes: int) -> int:
    """Size of a buffer for `num_bytes` of a stream, with the slack that OpenSSL requires."""
    return num_bytes + _AES_BLOCK - 1


def replayable_bytes(seed: bytes) -> Callable[[int], bytes]:
    """A source of randomness that a party can draw from once more, from the beginning: G(seed)."""
    stream = Keystream(seed)
    return lambda count: stream.take(count).tobytes()


class Keystream:
    """The bytes of G(seed), one after another, from byte `start` on, a multiple of 16.

    Cost: about 0.2 ns a byte with AES instructions, and 6 us a stream, too slow for one stream per point.
    """

    def __init__(self, seed: bytes, *, start: int = 0) -> None:
        if len(seed) != SEED_BYTES:
            raise ValueError(f"a seed has {SEED_BYTES} bytes, got {len(seed)}")
        if start < 0 or start % _AES_BLOCK:
            raise ValueError(f"a stream starts at a multiple of {_AES_BLOCK}, got {start}")
        counter = (start // _AES_BLOCK).to_bytes(_AES_BLOCK, "big")
        self._cipher = Cipher(algorithms.AES(seed), modes.CTR(counter)).encryptor()
        self._left = _MAX_BYTES

    def take(self, num_bytes: int, *, buffer: np.ndarray | None = None) -> np.ndarray:
        """The next bytes, uint8 [num_bytes], writable; in a `buffer` of `buffer_size(num_bytes)`."""
        self._left -= num_bytes
        if self._left < 0:
            raise ValueError(f"one stream gives at most {_MAX_BYTES} bytes")
        stream = np.empty(buffer_size(num_bytes), np.uint8) if buffer is None else buffer
        for begin in range(0, num_bytes, len(_ZEROS)):
            size = min(len(_ZEROS), num_bytes - begin)
            zeros = _ZEROS if size == len(_ZEROS) else _ZEROS[:size]
            self._cipher.update_into(zeros, stream[begin:].data)
        return stream[:num_bytes]

    def words(self, count: int, dtype: str = "<u8") -> np.ndarray:
        """The next `count` little-endian unsigned words ("<u2", "<u4", "<u8"), each uniform."""
        return self.take(count * np.dtype(dtype).itemsize).view(dtype)


_ROWS = 256  # made at a time
_WORDS_PER_BLOCK = 2  # words of 8 bytes in an AES block


def hyperplanes(seed: bytes, num_bits: int, dim: int) -> np.ndarray:
    """Pi, float32 [num_bits, dim]: independent standard normals.

    Row l depends on the seed, l and `dim` only. Parties on different machines may differ in an entry's
    last place. This matters only to vectors that are as close to a hyperplane.

    Args:
        seed: 32 bytes, used for nothing else.
        num_bits: L.
        dim: d.

    Raises:
        ValueError: a seed of another length.

    Cost: 20 ns an entry.
    """
    stream = Keystream(seed)
    padded = -(-dim // _WORDS_PER_BLOCK) * _WORDS_PER_BLOCK
    planes = np.empty((num_bits, dim), np.float32)
    for start in range(0, num_bits, _ROWS):
        rows = planes[start : start + _ROWS]
        words = stream.words(len(rows) * padded).reshape(len(rows), padded)[:, :dim]
        rows[:] = special.ndtri(((words >> np.uint64(11)) + 0.5) * 2.0**-53)
    return planes
