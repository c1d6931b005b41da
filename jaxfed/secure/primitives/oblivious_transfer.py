"""1-out-of-2 oblivious transfer: 128 base transfers of random keys, their extension, and its hash.

**Base transfers**, by Naor and Pinkas (SODA 2001), Section 3.1. In the subgroup of prime order q of
edwards25519, with generator G and a point C of unknown logarithm (a hash of the context):

    receiver, choice c:  k uniform mod q,  PK_c = k G,  PK_{1-c} = C - PK_c      --- PK_0 --->
    sender:              one r uniform mod q for all transfers                    <--- r G ----
    sender's keys:       K_0 = hash(r PK_0),  K_1 = hash(r C - r PK_0)
    receiver's key:      K_c = hash(k r G)

PK_0 is uniform whatever c is, so the sender learns nothing, unconditionally. The receiver would need
r PK_{1-c} = r C - r PK_c, a Diffie-Hellman value of C, so it learns one key only (computational
Diffie-Hellman in the random-oracle model). Parties that follow the protocol are assumed; a message that
no such party could send is refused.

**Extension**, by Ishai, Kilian, Nissim, Petrank (CRYPTO 2003), semi-honest. The 128 base transfers have
swapped roles: the extension's sender chooses with a secret s in {0,1}^128 and receives the seeds k_i^{s_i};
its receiver holds both. For m choices y in {0,1}^m, column i = 1 ... 128:

    receiver:  t^i = G(k_i^0),   u^i = t^i xor G(k_i^1) xor y             --- u, 16 m bytes --->
    sender:    q^i = G(k_i^{s_i}) xor s_i u^i,   so that row l is  q_l = t_l xor y_l s

    H(q_l) and H(q_l xor s) are the sender's two pads of transfer l; the receiver has H(t_l), the pad
    number y_l, and cannot form the other one without s.

Secure against parties that follow the protocol; there is no defense against the known attacks of others.

**Hash** that breaks the correlation q, q xor s of the extension's rows:

    H(x, i) = pi(pi(x) xor i) xor pi(x),      pi = AES-128 under a fixed public key

is tweakable circular correlation robust when pi is a random permutation (Guo, Katz, Wang, Yu,
"Efficient and Secure Multiparty Computation from Fixed-Key Block Ciphers", S&P 2020, Section 7.4). The
simpler pi(x) xor x, common in older code, is not. Here x is a row of 128 bits, and its output is as long
as the payload: block b of row number t uses the tweak i = (b xor t 2^20, b), 64 bits each.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from nacl import bindings, exceptions

from jaxfed.errors import ProtocolError
from jaxfed.secure.primitives.prg import Keystream

POINT_BYTES = bindings.crypto_core_ed25519_BYTES
KEY_BYTES = 32

RandomBytes = Callable[[int], bytes]


class TransferReceiver:
    """The side that chooses: gets K_c of every transfer. Both sides agree on `context`, never used twice."""

    def __init__(
        self,
        choices: Sequence[int],
        context: bytes,
        *,
        random_bytes: RandomBytes = secrets.token_bytes,
    ) -> None:
        common = _common_point(context)
        self._choices, self._context = list(choices), context
        self._exponents = [_scalar(random_bytes) for _ in self._choices]
        self._public = []  # PK_0 of every transfer
        for choice, exponent in zip(self._choices, self._exponents, strict=True):
            point = bindings.crypto_scalarmult_ed25519_base_noclamp(exponent)
            self._public.append(
                bindings.crypto_core_ed25519_sub(common, point) if choice else point
            )

    @property
    def request(self) -> bytes:
        """The message to the sender: PK_0 of every transfer, 32 bytes each."""
        return b"".join(self._public)

    def keys(self, response: bytes) -> list[bytes]:
        """K_c of every transfer, 32 bytes, from the sender's message."""
        _check_point(response)
        return [
            _key(
                self._context,
                number,
                choice,
                public + response,
                bindings.crypto_scalarmult_ed25519_noclamp(exponent, response),
            )
            for number, (choice, exponent, public) in enumerate(
                zip(self._choices, self._exponents, self._public, strict=True)
            )
        ]


def transfer_keys(
    request: bytes,
    num_transfers: int,
    context: bytes,
    *,
    random_bytes: RandomBytes = secrets.token_bytes,
) -> tuple[bytes, list[tuple[bytes, bytes]]]:
    """The sender's side: the message to the receiver (r G, 32 bytes) and (K_0, K_1) of every transfer.

    Cost: one multiplication of a point a transfer, 0.1 ms.
    """
    if len(request) != POINT_BYTES * num_transfers:
        raise ProtocolError(
            f"{num_transfers} transfers need {POINT_BYTES * num_transfers} bytes, "
            f"got {len(request)}"
        )
    r = _scalar(random_bytes)
    response = bindings.crypto_scalarmult_ed25519_base_noclamp(r)
    common = bindings.crypto_scalarmult_ed25519_noclamp(r, _common_point(context))
    keys = []
    for number in range(num_transfers):
        public = request[POINT_BYTES * number : POINT_BYTES * (number + 1)]
        _check_point(public)
        first = bindings.crypto_scalarmult_ed25519_noclamp(r, public)
        second = bindings.crypto_core_ed25519_sub(common, first)
        heard = public + response
        keys.append(
            (_key(context, number, 0, heard, first), _key(context, number, 1, heard, second))
        )
    return response, keys


def _common_point(context: bytes) -> bytes:
    """C: a point of the subgroup with unknown logarithm, the same for both sides."""
    digest = hashlib.sha256(b"jaxfed: Naor-Pinkas point C" + context).digest()
    return bindings.crypto_core_ed25519_from_uniform(digest)


def _scalar(random_bytes: RandomBytes) -> bytes:
    """Uniform modulo q up to 2^-259: 64 bytes reduced."""
    return bindings.crypto_core_ed25519_scalar_reduce(random_bytes(64))


def _check_point(point: bytes) -> None:
    try:
        valid = bindings.crypto_core_ed25519_is_valid_point(point)
    except exceptions.TypeError:  # PyNaCl raises it for a wrong length
        valid = False
    if not valid:
        raise ProtocolError("not a point of the prime-order subgroup of edwards25519")


def _key(context: bytes, number: int, choice: int, heard: bytes, point: bytes) -> bytes:
    digest = hashlib.sha256(b"jaxfed: Naor-Pinkas key")
    digest.update(hashlib.sha256(context).digest() + number.to_bytes(4, "big") + bytes([choice]))
    digest.update(heard + point)
    return digest.digest()


NUM_BASE = 128
_ROW_BYTES = NUM_BASE // 8


def correction_size(num_choices: int) -> int:
    """Bytes of u for `num_choices` choices (a multiple of 8)."""
    return _ROW_BYTES * num_choices


class ExtensionReceiver:
    """The side with the choices; `keys` are both seeds of every base transfer."""

    def __init__(self, keys: Sequence[tuple[bytes, bytes]]) -> None:
        self._streams = [(Keystream(zero), Keystream(one)) for zero, one in keys]
        self._rows_done = 0

    def extend(self, choices: np.ndarray) -> tuple[bytes, TransferRows]:
        """The correction u for the next choices, packed uint8 [m / 8], and the rows t."""
        columns = np.empty((NUM_BASE, len(choices)), np.uint8)
        correction = np.empty_like(columns)
        for number, (zero, one) in enumerate(self._streams):
            columns[number] = zero.take(len(choices))
            np.bitwise_xor(columns[number], one.take(len(choices)), out=correction[number])
        correction ^= choices[None, :]
        rows = TransferRows(_transposed(columns), self._rows_done)
        self._rows_done += len(rows.values)
        return correction.tobytes(), rows


class ExtensionSender:
    """The side with the payload; `keys` are the chosen seeds and `secret` is s, 128 bits of 0 or 1."""

    def __init__(self, keys: Sequence[bytes], secret: Sequence[int]) -> None:
        self._streams = [Keystream(key) for key in keys]
        self._secret = np.array(secret, np.uint8)
        self._rows_done = 0

    @property
    def secret_row(self) -> np.ndarray:
        """s as one row, uint64 [2]."""
        return np.packbits(self._secret, bitorder="little").view(np.uint64)

    def extend(self, correction: bytes, num_choices: int) -> TransferRows:
        """The rows q of the next choices."""
        if len(correction) != correction_size(num_choices):
            raise ProtocolError(
                f"{num_choices} choices need {correction_size(num_choices)} bytes, "
                f"got {len(correction)}"
            )
        columns = np.frombuffer(correction, np.uint8).reshape(NUM_BASE, -1) * self._secret[:, None]
        for number, stream in enumerate(self._streams):
            columns[number] ^= stream.take(num_choices // 8)
        rows = TransferRows(_transposed(columns), self._rows_done)
        self._rows_done += num_choices
        return rows


class TransferRows(NamedTuple):
    """Rows of the extension: uint64 [m, 2], and the number of the first in the whole extension."""

    values: np.ndarray
    first: int


def _transposed(columns: np.ndarray) -> np.ndarray:
    """Bit matrix [128, m / 8] of packed columns to rows uint64 [m, 2].

    Blocks of 8 x 8 bits, one in a 64-bit word, are transposed by three exchanges (Knuth 7.1.3).
    """
    num_bytes = columns.shape[1]
    groups = columns.reshape(_ROW_BYTES, 8, num_bytes).swapaxes(1, 2)
    x = np.ascontiguousarray(groups).view("<u8")[..., 0]
    for shift, mask in ((7, 0x00AA00AA00AA00AA), (14, 0x0000CCCC0000CCCC), (28, 0xF0F0F0F0)):
        y = (x ^ (x >> shift)) & np.uint64(mask)
        x ^= y
        y <<= shift
        x ^= y
    rows = x.view(np.uint8).reshape(_ROW_BYTES, 8 * num_bytes).T
    return np.ascontiguousarray(rows).view(np.uint64)


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
