"""Oblivious transfer and its extension: what each side gets, what it sees, and what it refuses."""

import hashlib

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from nacl import bindings
from scipy import stats

from jaxfed.secure.hamming import transfer
from jaxfed.secure.hamming.transfer import ReceiverSums, SenderPoints, vectors_per_block
from jaxfed.secure.primitives import oblivious_transfer as base
from jaxfed.secure.primitives import oblivious_transfer as extension
from jaxfed.secure.primitives.oblivious_transfer import MAX_BLOCKS, CorrelationHash
from jaxfed.secure.primitives.prg import Keystream


def replayed(seed):
    stream = Keystream(bytes([seed]) * 32)
    return lambda count: stream.take(count).tobytes()


def bits_of(shape, seed=0):
    return np.random.default_rng(seed).integers(0, 2, shape, dtype=np.uint8)


def uniform_bytes(message):
    return stats.chisquare(np.bincount(np.frombuffer(message, np.uint8), minlength=256)).pvalue


# --- base transfers ------------------------------------------------------------------------------


def base_transfers(choices, context=b"test", seed=None):
    source = {} if seed is None else {"random_bytes": replayed(seed)}
    receiver = base.TransferReceiver(choices, context, **source)
    response, pairs = base.transfer_keys(receiver.request, len(choices), context, **source)
    return receiver.request, response, pairs, receiver.keys(response)


def test_receiver_gets_the_chosen_keys_only():
    choices = bits_of(40).tolist()
    _, _, pairs, keys = base_transfers(choices)
    for choice, pair, key in zip(choices, pairs, keys, strict=True):
        assert key == pair[choice]
        assert key != pair[1 - choice]
    everything = [key for pair in pairs for key in pair]
    assert len(set(everything)) == 80
    assert all(len(key) == base.KEY_BYTES for key in everything)


def test_sender_sees_the_same_whatever_is_chosen():
    """Coupling: k for choice 0 and k' with k' G = C - k G for choice 1 give the identical message.

    k' exists for every k, since C lies in the group; so PK_0 is uniform for both choices. Shown in a
    context whose C has a known logarithm c, in place of the hash: k' = c - k.
    """
    logarithm = bindings.crypto_core_ed25519_scalar_reduce(replayed(3)(64))
    common = bindings.crypto_scalarmult_ed25519_base_noclamp(logarithm)
    k = bindings.crypto_core_ed25519_scalar_reduce(replayed(4)(64))
    coupled = bindings.crypto_core_ed25519_scalar_sub(logarithm, k)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "_common_point", lambda context: common)
        views = [
            base.TransferReceiver(
                [choice], b"", random_bytes=lambda n, k=own: k + bytes(32)
            ).request
            for choice, own in ((0, k), (1, coupled))
        ]
    assert views[0] == views[1]


def test_common_point_is_in_the_subgroup_and_differs_by_context():
    points = {base._common_point(bytes([number])) for number in range(50)}
    assert len(points) == 50
    assert all(map(bindings.crypto_core_ed25519_is_valid_point, points))


def test_base_transfers_known_answer():
    """The transcript of a fixed source of bytes never changes."""
    request, response, pairs, _ = base_transfers([0, 1, 1], seed=7)
    digest = hashlib.sha256(request + response + b"".join(a + b for a, b in pairs)).hexdigest()
    assert digest == BASE_TRANSCRIPT


BASE_TRANSCRIPT = "5854deda0b552349433854de902a38224b11fb81709fa07e1c42d6f1f4a474d6"

# --- extension -----------------------------------------------------------------------------------


def extended(seed=None, secret=None):
    """Both sides of an extension, from seeds that stand for base transfers."""
    rng = np.random.default_rng(seed)
    pairs = [(rng.bytes(32), rng.bytes(32)) for _ in range(extension.NUM_BASE)]
    secret = rng.integers(0, 2, extension.NUM_BASE).tolist() if secret is None else secret
    keys = [pair[bit] for pair, bit in zip(pairs, secret, strict=True)]
    return extension.ExtensionReceiver(pairs), extension.ExtensionSender(keys, secret)


def packed(bits):
    return np.packbits(bits.reshape(-1), bitorder="little")


def test_rows_differ_by_the_secret_where_chosen():
    """q_l = t_l xor y_l s, over several calls, with rows numbered through."""
    receiver, sender = extended(0)
    for begin, count in ((0, 64), (64, 8), (72, 160)):
        y = bits_of(count, seed=begin)
        correction, t = receiver.extend(packed(y))
        assert len(correction) == extension.correction_size(count)
        q = sender.extend(correction, count)
        assert t.first == q.first == begin
        np.testing.assert_array_equal(q.values, t.values ^ y[:, None] * sender.secret_row)
        assert len(np.unique(q.values, axis=0)) == count


def test_correction_hides_the_choices():
    """Uniform; and for a sender that knows s, other choices with other k^{1 - s} give the same u."""
    receiver, _ = extended(1)
    correction, _ = receiver.extend(packed(np.zeros(1 << 14, np.uint8)))
    assert uniform_bytes(correction) > 1e-6
    again, _ = receiver.extend(packed(np.zeros(1 << 14, np.uint8)))
    assert again != correction
    # The sender lacks one seed of every pair. Column i is the xor of y, what it can compute, and the
    # stream of the seed it lacks: a one-time pad on y.
    y, other = bits_of(64, seed=2), bits_of(64, seed=3)
    receiver, _ = extended(1)
    u = np.frombuffer(receiver.extend(packed(y))[0], np.uint8).reshape(128, -1)
    pad_shift = packed(y) ^ packed(other)
    receiver, _ = extended(1)
    shifted = np.frombuffer(receiver.extend(packed(other))[0], np.uint8).reshape(128, -1)
    np.testing.assert_array_equal(u, shifted ^ pad_shift)


# --- the hash ------------------------------------------------------------------------------------


def reference_hash(row, number, block):
    """pi(pi(x) xor i) xor pi(x), one block."""
    key = hashlib.sha256(b"jaxfed: fixed key of the correlation-robust hash").digest()[:16]
    pi = Cipher(algorithms.AES(key), modes.ECB()).encryptor().update
    image = pi(row)
    tweak = ((number << 20) ^ block).to_bytes(8, "little") + block.to_bytes(8, "little")
    inner = pi(bytes(a ^ b for a, b in zip(image, tweak, strict=True)))
    return bytes(a ^ b for a, b in zip(inner, image, strict=True))


@pytest.mark.parametrize(
    ("first_row", "first_block"), [(0, 0), (5, 3), (2**43, 7), (1, MAX_BLOCKS - 4)]
)
def test_hash_is_the_published_one(first_row, first_block):
    rows = np.random.default_rng(0).integers(0, 2**63, (5, 2), dtype=np.uint64)
    tile = CorrelationHash(5, 4)(rows, first_row, first_block, 4).reshape(4, 5, 2)
    for block in range(4):
        for row in range(5):
            expected = reference_hash(rows[row].tobytes(), first_row + row, first_block + block)
            assert tile[block, row].tobytes() == expected


def test_hash_keeps_two_results_and_refuses_an_overflow():
    hashed = CorrelationHash(2, 2)
    a, b = bits_of((2, 2)).astype(np.uint64), bits_of((2, 2), seed=1).astype(np.uint64)
    first = hashed(a, 0, 0, 2)
    copy = first.copy()
    hashed(b, 0, 0, 2)
    np.testing.assert_array_equal(first, copy)
    for row, block in ((2**44 - 1, 0), (0, MAX_BLOCKS - 1)):
        with pytest.raises(ValueError, match="too large"):
            hashed(a, row, block, 2)


# --- Hamming distances ---------------------------------------------------------------------------


def test_a_block_holds_a_vector_however_long_it_is():
    assert [vectors_per_block(bits) for bits in (1 << 13, 1 << 14, 1 << 15)] == [2, 1, 1]


class Shifted(CorrelationHash):
    """H, shifted where one row of every vector enters: a bijection of the pads of these rows.

    Attributes:
        rows: which rows, as (word, word).
        shift: what is added for every point, uint16 [n].
    """

    rows: frozenset = frozenset()
    shift = np.zeros(0, np.uint16)

    def __call__(self, rows, first_row, first_block, num_blocks):
        hashed = super().__call__(rows, first_row, first_block, num_blocks)
        values = hashed.view(np.uint16).reshape(num_blocks, -1, 8)
        for number, row in enumerate(rows.tolist()):
            if tuple(row) in self.rows:
                values[:, number] += np.resize(self.shift, 8 * num_blocks).reshape(-1, 8)
        return hashed


def test_server_sees_the_distances_only(monkeypatch):
    """Coupling: other inputs of the same distances give the server bit for bit the same R and T.

    Randomness moves with the inputs: t'_l = t_l xor (y_l xor y'_l) s, which keeps all q_l, and the pads
    of q_0 by |x'_i| - |x_i|, which keeps R_i = sum_l H(q_l)_i - |x_i|. T follows from R and h.
    """
    x, y = bits_of((16, 64)), bits_of((3, 64), seed=1)
    flip = bits_of(64, seed=2)
    receiver, sender = extended(0)
    q = sender.extend(receiver.extend(packed(y))[0], y.size)
    first_rows = frozenset(map(tuple, q.values[::64].tolist()))
    seen, sent = [], []
    for points, vectors in ((x, y), (x ^ flip, y ^ flip)):
        monkeypatch.setattr(Shifted, "rows", first_rows)
        moved = points.sum(axis=1, dtype=np.uint16) - x.sum(axis=1, dtype=np.uint16)
        monkeypatch.setattr(Shifted, "shift", moved)
        monkeypatch.setattr(transfer, "CorrelationHash", Shifted)
        t = q._replace(values=q.values ^ vectors.reshape(-1, 1) * sender.secret_row)
        tau, r_sums = SenderPoints(points, 0).transfer(q, sender.secret_row)
        t_sums = ReceiverSums(16, 64, 0).sums(t, vectors, tau)
        np.testing.assert_array_equal(t_sums - r_sums, np.sum(y[:, None] != x[None], axis=2))
        seen.append(r_sums.tobytes() + t_sums.tobytes())
        sent.append(tau)
    assert seen[0] == seen[1]
    assert moved.any()
    assert sent[0] != sent[1]


def test_receiver_view_is_the_same_for_other_points():
    """Coupling: pads shifted by the change of x, on the side that the receiver has not, hide it.

    With y_l = 0 the receiver knows H(q_l); tau = H(q_l) - H(q_l xor s) + 1 - 2 x is a one-time pad of
    1 - 2 x under H(q_l xor s), which does not enter anything else.
    """
    x, y = bits_of((8, 32)), np.zeros((1, 32), np.uint8)
    receiver, sender = extended(5)
    correction, _ = receiver.extend(packed(y))
    q = sender.extend(correction, 32)
    hashed = CorrelationHash(32, 1)
    known = hashed(q.values, 0, 0, 1).view(np.uint16).reshape(32, 8)
    hidden = hashed(q.values ^ sender.secret_row, 0, 0, 1).view(np.uint16).reshape(32, 8)
    tau = np.frombuffer(SenderPoints(x, 0).transfer(q, sender.secret_row)[0], np.uint16)
    for other in (1 - x, bits_of((8, 32), seed=9)):
        shifted = hidden + (1 - 2 * other.T.astype(np.uint16)) - (1 - 2 * x.T.astype(np.uint16))
        view = known - shifted + (1 - 2 * other.T.astype(np.uint16))
        np.testing.assert_array_equal(view, tau.reshape(32, 8))
