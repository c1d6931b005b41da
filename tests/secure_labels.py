"""XCLP's input of a few clients, and how its labels over protocols compare with those in the clear."""

import numpy as np
from sklearn.datasets import load_digits

from jaxfed.secure.primitives.ring import FixedPoint


def digits(num_clients, num_points, labeled=0.2, seed=0):
    data = load_digits()
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(data.data))[:num_points]
    parts = np.array_split(chosen, num_clients)
    vectors = [data.data[part].astype(np.float32) - 5 for part in parts]
    labels = [np.where(rng.random(len(p)) < labeled, data.target[p], -1) for p in parts]
    return vectors, labels


def disagreement(secure, plain, num_clients):
    """Labels equal; how much scores differ beyond fixed-point error and float32's rounding.

    Both solve to a relative residual of 1e-6, for other right-hand sides: with hyperplanes by chance, 4
    units of float32's last place were exceeded once in thirty runs, by a quarter; 16 are 2e-6.
    """
    scale = max(np.max(np.abs(theirs.scores), initial=0) for theirs in plain)
    allowed = FixedPoint(num_clients).error + 16 * np.finfo(np.float32).eps * scale
    worst = 0.0
    for ours, theirs in zip(secure, plain, strict=True):
        np.testing.assert_array_equal(ours.labels, theirs.labels)
        np.testing.assert_allclose(ours.confidences, theirs.confidences, atol=2e-6)
        worst = max(worst, np.max(np.abs(ours.scores - theirs.scores), initial=0) / allowed)
    return worst
