"""Vectors that stay on the host or on disk: codes as in one piece, a block of rows at a time."""

import weakref

import jax
import numpy as np
import pytest

from jaxfed.kernels import lsh

PI = lsh.hyperplanes(jax.random.key(0), 64, 33)


def cut(vectors, sizes):
    return np.split(vectors, np.cumsum(sizes)[:-1])


@pytest.mark.parametrize("block_bytes", [1, 512 * 4 * 33, 1 << 23], ids=str)
@pytest.mark.parametrize(
    "sizes",
    [(1300,), (0, 1, 255, 256, 0, 788), (512, 512), (3,), (0, 0)],
    ids=str,
)
def test_codes_are_those_of_one_piece_however_the_rows_come(block_bytes, sizes, monkeypatch):
    monkeypatch.setattr(lsh, "_BLOCK_BYTES", block_bytes)
    vectors = np.random.default_rng(0).standard_normal((sum(sizes), 33), dtype=np.float32)
    codes = lsh.streamed_bits(cut(vectors, sizes), PI)
    np.testing.assert_array_equal(codes, lsh.sign_bits(vectors, PI))
    assert isinstance(codes, np.ndarray)
    assert codes.dtype == np.uint32


def test_the_device_gets_a_block_at_a_time_and_has_two(monkeypatch):
    rows, there, most = [], set(), []

    def sign_bits(block, planes):
        codes = np.zeros((len(block), 2), np.uint32)
        number = len(rows)
        rows.append(len(block))
        there.add(number)
        weakref.finalize(codes, there.discard, number)
        most.append(len(there))
        return codes

    monkeypatch.setattr(lsh, "sign_bits", sign_bits)
    monkeypatch.setattr(lsh, "_BLOCK_BYTES", 512 * 4 * 33)
    lsh.streamed_bits([np.zeros((2000, 33)), np.zeros((500, 33))], PI)
    assert rows == [512] * 5
    assert max(most) == 2
