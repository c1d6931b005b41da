"""Algorithm 1 of XCLP as printed, dense, in NumPy, to compare the fast one with; clients for both."""

import numpy as np

from jaxfed import xclp
from jaxfed.kernels import lsh


def clustered_clients(sizes, num_classes=3, dim=16, labeled=0.3, seed=0, centers=None):
    """Vectors around one center a class, drawn first or by the seed `centers`; labels for some of them."""
    rng = np.random.default_rng(seed)
    of_centers = rng if centers is None else np.random.default_rng(centers)
    centers = of_centers.standard_normal((num_classes, dim)) * 2
    truth = [rng.integers(num_classes, size=size) for size in sizes]
    vectors = [centers[y] + rng.standard_normal((len(y), dim)) for y in truth]
    labels = [np.where(rng.random(len(y)) < labeled, y, -1) for y in truth]
    return [v.astype(np.float32) for v in vectors], labels, truth


def dense_algorithm_1(vectors, labels, p, *, with_graph=False):
    """Lines 3 to 16 as printed but without A's diagonal, dense, float64; only Pi is shared."""
    v = np.concatenate(vectors).astype(np.float64)
    y = (np.concatenate(labels)[:, None] == np.arange(p.num_classes)).astype(np.float64)
    pi = np.asarray(lsh.hyperplanes(xclp.setup(p.seed), p.num_bits, v.shape[1]), np.float64)
    b = v @ pi.T >= 0
    h = (b[:, None, :] != b[None, :, :]).sum(-1) if len(b) <= 300 else _hamming(b)
    a = np.cos(np.pi * h / p.num_bits)
    n, k = len(v), min(p.num_neighbors, len(v) - 1)
    np.fill_diagonal(a, -np.inf)
    nearest = np.argsort(-a, axis=1, kind="stable")[:, :k]
    kept = np.zeros((n, n))
    rows = np.arange(n)[:, None]
    kept[rows, nearest] = np.maximum(a[rows, nearest], 0) ** p.similarity_power
    w = kept + kept.T
    z = dense_scores(w, y, p)
    total = z.sum(1)
    share = z / np.where(total > 0, total, 1)[:, None]
    entropy = -np.sum(share * np.log(np.where(share > 0, share, 1)), axis=1)
    confidence = np.where(total > 0, 1 - entropy / np.log(p.num_classes), 0)
    found = np.where(total > 0, z.argmax(1), -1), confidence, z
    return (*found, normalized(w)) if with_graph else found


def dense_scores(b, y, p):
    """Z of the weights B + B^T [n, n] as `p.label_matrix` is defined."""
    s, degree = np.linalg.inv(np.eye(len(b)) - p.alpha * normalized(b)), b.sum(1)
    if p.label_matrix == "plain":
        return s @ y
    per_class = y.sum(0) if p.label_matrix == "class_balanced" else np.sqrt(degree) @ y
    return s @ (y / np.where(y.any(0), per_class, 1))


def normalized(b):
    """D^-1/2 (B + B^T) D^-1/2, of the weights B + B^T."""
    degree = b.sum(1)
    scale = np.where(degree > 0, degree, np.inf) ** -0.5
    return scale[:, None] * b * scale[None, :]


def _hamming(b):
    signs = np.where(b, 1.0, -1.0)
    return np.rint((b.shape[1] - signs @ signs.T) / 2)
