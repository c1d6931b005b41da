"""Vectors that stay on the host or on disk: codes as in one piece, a block of rows at a time."""

import tracemalloc
import weakref

import jax
import numpy as np
import pytest

from jaxfed.kernels import lsh
from jaxfed.xclp import propagate_labels

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


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int8], ids=str)
def test_any_real_numbers_are_computed_in_float32(dtype):
    vectors = (10 * np.random.default_rng(1).standard_normal((300, 33))).astype(dtype)
    expected = lsh.sign_bits(vectors.astype(np.float32), PI)
    np.testing.assert_array_equal(lsh.streamed_bits([vectors], PI), expected)


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


@pytest.mark.parametrize(("dim", "rows"), [(0, 1 << 21), (1, 1 << 21), (1280, 1792), (10**7, 256)])
def test_a_block_has_rows_whatever_their_length(dim, rows):
    assert lsh.rows_of_block(1 << 21, dim) == rows
    assert lsh.rows_of_block(100, dim) == 256


@pytest.mark.slow
def test_vectors_on_disk_are_labeled_without_being_in_memory(tmp_path):
    """64 MiB of vectors; of the host's memory a small part of that is taken (NumPy's, as it tells)."""
    rng = np.random.default_rng(2)
    centers = rng.standard_normal((4, 4096)).astype(np.float32)
    truth = rng.integers(4, size=4096)
    clients = []
    for number, own in enumerate(np.array_split(truth, 3)):
        file = np.memmap(tmp_path / f"{number}", np.float32, "w+", shape=(len(own), 4096))
        for row, of_class in enumerate(own):
            file[row] = centers[of_class] + rng.standard_normal(4096, dtype=np.float32)
        file.flush()
        clients.append(np.memmap(tmp_path / f"{number}", np.float32, "r", shape=file.shape))
    labels = [np.where(np.arange(len(own)) < 20, own, -1) for own in np.array_split(truth, 3)]
    total = sum(vectors.nbytes for vectors in clients)
    tracemalloc.start()
    found = propagate_labels(clients, labels, num_classes=4, num_bits=32, tolerance=1e-3)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 0.6 * total
    assert np.mean(np.concatenate([own.labels for own in found]) == truth) > 0.9
