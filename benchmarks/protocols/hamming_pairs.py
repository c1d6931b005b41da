"""Shared code of benchmarks of distance protocols: figures per pair, and the plaintext result."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from benchmarks.protocols.loopback import Run
from jaxfed.secure.primitives.blocks import Block, bits_of


def a_pair(run: Run, seconds: float) -> dict[str, float]:
    """Cost per pair of points."""
    pairs = run.distances.size
    return {"us a pair": 1e6 * seconds / pairs, "bytes a pair": run.num_bytes / pairs}


def promised(*costs: float) -> dict[str, float]:
    """Promised upper bounds of microseconds and bytes per pair, as far as given."""
    return dict(zip(("us a pair", "bytes a pair"), costs, strict=False))


def joined(blocks: Iterable[Block], shape: tuple[int, int]) -> np.ndarray:
    """All distances between two clients, uint16 [n_j, n_k]."""
    found = np.empty(shape, np.uint16)
    for block in blocks:
        rows, columns = block.rows, block.columns
        found[rows.start : rows.stop, columns.start : columns.stop] = block.distances
    return found


def plaintext(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Distances of codes in the clear."""
    x, y = bits_of(a).astype(np.float32), bits_of(b).astype(np.float32)
    return (x.sum(axis=1)[:, None] + y.sum(axis=1) - 2 * (x @ y.T)).astype(np.uint16)


def equal(ours: Run, theirs: np.ndarray) -> str:
    """Check that a protocol's distances equal the plaintext's."""
    assert np.array_equal(ours.distances, theirs), "secure distances differ from the plaintext's"
    return "equal"
