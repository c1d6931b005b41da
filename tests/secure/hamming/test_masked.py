"""The one-message protocol: distances, and the server's view, exactly."""

import numpy as np
import pytest
from scipy import stats

from jaxfed.secure.hamming import masked as protocol
from jaxfed.secure.primitives import ring

SEEDS = [bytes([number]) * 32 for number in range(3)]


def bits_of(shape, seed=0):
    return np.random.default_rng(seed).integers(0, 2, shape, dtype=np.int8)


def masks_of(x, y):
    """u, v and r of all points and pairs."""
    width = ring.ring_bits(x.shape[1])
    return (
        protocol.point_masks(SEEDS[0], range(len(x)), x.shape[1], width),
        protocol.point_masks(SEEDS[1], range(len(y)), y.shape[1], width),
        protocol.pair_masks(SEEDS[2], range(len(x)), range(len(y)), len(y), width),
    )


def messages(x, y, masks):
    """What the server receives: E, F, s, t."""
    width = ring.ring_bits(x.shape[1])
    u, v, r = masks
    hidden = protocol.hidden_points(y, v, width)
    return (
        protocol.hidden_points(x, u, width),
        hidden,
        protocol.first_share(x, v, r, width),
        protocol.second_share(y, hidden, u, r, width),
    )


def plain(x, y):
    return np.sum(x[:, None] != y[None], axis=2)


def coupled_masks(x, y, masks, x2, y2):
    """Masks under which (x2, y2) look as (x, y) do: the simulator's coupling, a bijection of masks.

    E and F stay if masks move with the points; s stays if r takes up the change of |x| - 2 <x, v>.
    """
    width = ring.ring_bits(x.shape[1])
    modulus = (1 << width) - 1
    u, v, r = (mask.astype(np.int64) for mask in masks)
    x, y, x2, y2 = (bits.astype(np.int64) for bits in (x, y, x2, y2))
    u2, v2 = u + x2 - x, v + y2 - y
    first = x.sum(1)[:, None] - 2 * x @ v.T + r
    r2 = first - (x2.sum(1)[:, None] - 2 * x2 @ v2.T)
    return tuple((mask & modulus).astype(np.uint16) for mask in (u2, v2, r2))


@pytest.mark.parametrize("case", ["common flip", "permuted bits", "both"])
def test_server_view_depends_on_the_distances_only(case):
    """Other points with the same distances and coupled masks: every message is bit for bit the same."""
    x, y = bits_of((6, 64)), bits_of((5, 64), seed=1)
    masks = masks_of(x, y)
    view = messages(x, y, masks)
    flip = bits_of(64, seed=2) if case != "permuted bits" else np.zeros(64, np.int8)
    order = np.random.default_rng(3).permutation(64) if case != "common flip" else np.arange(64)
    x2, y2 = (x ^ flip)[:, order], (y ^ flip)[:, order]
    assert not np.array_equal(x, x2)
    np.testing.assert_array_equal(plain(x, y), plain(x2, y2))
    for ours, theirs in zip(
        view, messages(x2, y2, coupled_masks(x, y, masks, x2, y2)), strict=True
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_server_view_shows_other_distances():
    """The coupling is no tautology: where a distance changes, t does, and nothing else."""
    x, y = bits_of((6, 64)), bits_of((5, 64), seed=1)
    masks = masks_of(x, y)
    view = messages(x, y, masks)
    y2 = y.copy()
    y2[2, 7] ^= 1
    other = messages(x, y2, coupled_masks(x, y, masks, x, y2))
    for ours, theirs in zip(view[:3], other[:3], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    changed = np.any(view[3] != other[3], axis=0)
    assert changed.tolist() == [False, False, True, False, False]


@pytest.mark.parametrize("safeguard", ["point masks", "pair masks", "large ring"])
def test_every_safeguard_is_needed(safeguard):
    """Each left out, one of the tests above fails."""
    x, y = np.zeros((128, 64), np.int8), bits_of((128, 64))
    u, v, r = masks_of(x, y)
    if safeguard == "point masks":
        sent = messages(x, y, (np.zeros_like(u), v, r))[0]
    elif safeguard == "pair masks":
        # s alone then is |x| - 2 <x, v>: 0 for the zero point, so the server knows it.
        sent = messages(x, y, (u, v, np.zeros_like(r)))[2]
    else:
        width = 6  # 2^6 = L: distance 64 becomes 0
        hidden = protocol.hidden_points(1 - x, v & 63, width)
        view = (
            protocol.hidden_points(x, u & 63, width),
            hidden,
            protocol.first_share(x, v & 63, r & 63, width),
            protocol.second_share(1 - x, hidden, u & 63, r & 63, width),
        )
        assert not protocol.combined_distances(*view, width).any()
        return
    counts = np.bincount(sent.reshape(-1), minlength=128)
    assert stats.chisquare(counts).pvalue < 1e-6
