"""A hash that breaks the correlation q, q xor s of an extended oblivious transfer.

    H(x, i) = pi(pi(x) xor i) xor pi(x),      pi = AES-128 under a fixed public key

is tweakable circular correlation robust when pi is a random permutation (Guo, Katz, Wang, Yu,
"Efficient and Secure Multiparty Computation from Fixed-Key Block Ciphers", S&P 2020, Section 7.4). The
simpler pi(x) xor x, common in older code, is not. Here x is a row of 128 bits, and its output is as long
as the payload: block b of row number t uses the tweak i = (b xor t 2^20, b), 64 bits each.
"""

from __future__ import annotations

import hashlib

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

ROW_BYTES = 16
VALUES_PER_BLOCK = 8  # 16-bit values in a block of AES
_BLOCK_NUMBER_BITS = 20
MAX_BLOCKS = 1 << _BLOCK_NUMBER_BITS
MAX_ROWS = 1 << (64 - _BLOCK_NUMBER_BITS)

_FIXED_KEY = hashlib.sha256(b"jaxfed: fixed key of the correlation-robust hash").digest()[:16]


class CorrelationHash:
    """H over tiles of up to `num_rows` rows and `num_blocks` blocks each, without allocating.

    Results are valid until the next call but one: there are two output buffers, because a sender
    needs H(q) and H(q xor s) at once.

    Cost: one AES block a block of output and one a row; 1.4 us per 8 KiB of output.
    """

    def __init__(self, num_rows: int, num_blocks: int) -> None:
        self._cipher = Cipher(algorithms.AES(_FIXED_KEY), modes.ECB()).encryptor()
        words = 2 * num_rows * num_blocks
        self._tweaked = np.empty(words, np.uint64)
        self._row_images = _cipher_output(ROW_BYTES * num_rows)
        self._outputs = [_cipher_output(8 * words) for _ in range(2)]

    def __call__(
        self, rows: np.ndarray, first_row: int, first_block: int, num_blocks: int
    ) -> np.ndarray:
        """Blocks first_block ... of H for rows uint64 [r, 2], number first_row ... of the whole transfer.

        Returns:
            uint64 [num_blocks, 2 r], a row's two words side by side (blocks outermost: later
            operations then run along long contiguous lines).
        """
        num_rows = len(rows)
        if first_row + num_rows > MAX_ROWS or first_block + num_blocks > MAX_BLOCKS:
            raise ValueError("the transfer is too large for the hash's tweak")
        self._cipher.update_into(_as_bytes(rows), self._row_images.data)
        image = self._row_images[: ROW_BYTES * num_rows].view(np.uint64)
        tweaked_image = image.copy()
        numbers = np.arange(first_row, first_row + num_rows, dtype=np.uint64)
        tweaked_image[::2] ^= numbers << _BLOCK_NUMBER_BITS
        tile = self._tweaked[: num_blocks * 2 * num_rows].reshape(num_blocks, -1)
        blocks = np.arange(first_block, first_block + num_blocks, dtype=np.uint64)
        np.bitwise_xor(tweaked_image[None, :], blocks[:, None], out=tile)
        self._outputs.reverse()
        self._cipher.update_into(_as_bytes(tile), self._outputs[0].data)
        output = self._outputs[0][: tile.nbytes].view(np.uint64).reshape(tile.shape)
        return np.bitwise_xor(output, image[None, :], out=output)


def _cipher_output(num_bytes: int) -> np.ndarray:
    return np.empty(num_bytes + ROW_BYTES - 1, np.uint8)  # the slack that OpenSSL requires


def _as_bytes(array: np.ndarray) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
