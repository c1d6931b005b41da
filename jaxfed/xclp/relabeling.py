"""Many labelings of one graph: scores of its points under S different sets of labels.

    Z_s = M Y_s,  s = 1 ... S:        M [Y_1 ... Y_S], one block of S C columns

Neither the graph nor M depends on labels (`jaxfed.xclp.smoother`). So the labeled points may change without
another graph, and all such systems are solved together. The scores are those that `scores_of` makes of each
labeling by itself, up to the tolerance.

A membership-inference attacker uses it to simulate its view with and without a point among the labeled ones
(`jaxfed.xclp.asker`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
import numpy as np

from jaxfed.federation.clients import UNLABELED
from jaxfed.federation.execution import HERE, Execution
from jaxfed.privacy import randomized_response
from jaxfed.xclp.algorithm import client_codes, randomized
from jaxfed.xclp.cross_steps import PROJECTIONS, setup
from jaxfed.xclp.influence import Accuracy, accuracy_of, warn_of_cut_short
from jaxfed.xclp.label_matrix import Rows, scores
from jaxfed.xclp.neighborhoods import Neighborhoods, one_hot_labels
from jaxfed.xclp.parameters import Parameters
from jaxfed.xclp.smoother import Smoother, label_counts

_NOISE = 0x72656C61  # separates randomized labels here from those of the run
_ENTRIES = 2**25  # entries of a block's right-hand sides, 128 MiB


def relabeled_in_the_clear(
    vectors: Sequence[np.ndarray],
    labels: np.ndarray,
    rows: slice,
    p: Parameters,
    execution: Execution = HERE,
) -> np.ndarray:
    """Scores of XCLP's points in every labeling, float32 [S, n', C], with the steps in the clear.

    Arguments and cost as `relabeled_scores`, and of one graph over all vectors, [n_j, d] a client. Settings
    are not selected again.
    """
    p = replace(p, hamming="plaintext", row_sums="plaintext", projection="seed", presence=())
    nobody = [np.full(len(own), UNLABELED, np.int32) for own in vectors]
    codes = codes_in_the_clear(vectors, p, execution)
    if p.label_epsilon:
        draw = randomized_response.from_key(jax.random.fold_in(setup(p.seed), _NOISE))
        answered = randomized_response.randomize_labels(
            labels.ravel(), draw, p.num_classes, p.label_epsilon
        )
        labels = answered.reshape(labels.shape)
    m = Neighborhoods(codes, nobody, p, p.num_neighbors, None, execution).matrix(p)
    return relabeled_scores(m, labels, rows, label_epsilon=p.label_epsilon)


def codes_in_the_clear(
    vectors: Sequence[np.ndarray], p: Parameters, execution: Execution = HERE
) -> list[np.ndarray]:
    """Codes of every client, uint32 [n_j, L / 32], with hyperplanes and noise from the seed."""
    planes = PROJECTIONS["seed"](p.seed, p.num_bits, vectors[0].shape[1], None)
    nobody = [np.full(len(own), UNLABELED, np.int32) for own in vectors]
    plain = replace(p, hamming="plaintext", row_sums="plaintext", projection="seed", presence=())
    codes, _ = randomized(execution.once(client_codes, vectors, planes), nobody, plain, None)
    return codes


def relabeled_scores(
    m: Smoother, labels: np.ndarray, rows: slice, *, label_epsilon: float = 0.0
) -> np.ndarray:
    """Scores of some points in every labeling, float32 [S, n', C].

    Args:
        m: M of n points, with padding.
        labels: int [S, n''], of the first n'' points; -1 = unlabeled, as all others are.
        rows: the n' points whose scores are returned.
        label_epsilon: labels are randomized with this epsilon, and the bias is corrected; 0: they are exact.
            The points' client has no labels, so a client prior has no effect.

    Cost: (steps) n k S C operations with the steps of the slowest column; a few times n S C floats, in blocks
    of as many labelings as fit into 128 MiB.
    """
    num_classes, n = m.p.num_classes, m.num_points
    most = max(1, _ENTRIES // (n * num_classes))
    worst, found = Accuracy(), []
    for start in range(0, len(labels), most):
        some = labels[start : start + most]
        y = np.zeros((n, len(some), num_classes), np.float32)
        y[: labels.shape[1]] = np.moveaxis(one_hot_labels(some, num_classes), 0, 1)
        columns = y.reshape(n, -1)
        values, info = m.solved(columns)
        worst = worst.worst(accuracy_of(info, m.max_steps))
        parts = (np.asarray(each)[rows] for each in (values, label_counts(columns)))
        x, counts = (np.moveaxis(each.reshape(-1, *y.shape[1:]), 0, 1) for each in parts)
        if label_epsilon:
            x, counts = (
                randomized_response.unbiased(each, num_classes, label_epsilon)
                for each in (x, counts)
            )
        for own in map(Rows, x, counts):
            z = scores(m.p.label_matrix, own)
            found.append(np.asarray(z, np.float32))
    warn_of_cut_short(worst, Accuracy(), m.p.tolerance)
    return np.stack(found)
