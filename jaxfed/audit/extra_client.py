"""A membership-inference attacker that joins the labeling as an extra client.

It takes part with the examples under attack as unlabeled points of its own. It observes its rows of Z, or
only the labels of line 15. If an example is a labeled point of another client, that identical point is its
nearest neighbor, and its label dominates the scores. This reveals membership.

    observed   shares Z_xc / sum_c' Z_xc' of the cohort's labels;  labels argmax_c Z_xc
    shadows    the same from labelings that the attacker simulates

Shadows are the method itself, on one graph: the cohort's unlabeled points, every candidate member as a point
of some client, and the attacker's own points. Shadows differ only in which candidates are labeled. Neither
the graph nor the propagation matrix S depends on labels, so R labelings are one system:

    Z_r = S Y_r,  r = 1 ... R:        S [Y_1 ... Y_R], one block of R C columns

This attacker has more than a client receives: the cohort's graph, which the server has, except for the points
whose membership is in question. One difference from the run remains: an example that no client has is an
unlabeled point in the shadows without it, and no point in the run.

Together with the server, this client also has the Hamming distances between its points and everybody's. The
server has them with every protocol of `hamming`, whatever `row_sums` and `projection` are, because the client
computes its codes with the same hyperplanes as the others:

    observed   - min over all other clients' points of the Hamming distance

A copy has distance 0. With `bit_epsilon` both codes are randomized first, and a copy is only closer than the
rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np

from jaxfed.audit.views import CLIENT, COALITION, OF_ALL, View
from jaxfed.federation.clients import UNLABELED
from jaxfed.federation.execution import HERE, Execution
from jaxfed.kernels.conjugate_gradient import PropagationMatrix
from jaxfed.kernels.graph import Graph
from jaxfed.privacy import randomized_response
from jaxfed.random_streams import Stream
from jaxfed.xclp.heads import ClientSums
from jaxfed.xclp.one_shot.transduction import as_vectors
from jaxfed.xclp.settings.parameters import PROJECTIONS, Parameters, Propagation
from jaxfed.xclp.steps.class_scores import Rows, scores
from jaxfed.xclp.steps.codes import client_codes, randomized, setup
from jaxfed.xclp.steps.knn_graph import KnnGraphs, one_hot_labels
from jaxfed.xclp.steps.propagation_matrix import (
    SolverAccuracy,
    accuracy_of,
    label_counts,
    label_masses,
    warn_of_solution,
)

_ENTRIES = 2**25  # entries of a block's right-hand sides, 128 MiB

# Vectors of the extra client [n, d] -> its rows of Z, [n, C].
Label = Callable[[np.ndarray], np.ndarray]
# Vectors, one array per client; labelings int [R, n'] of the first points; queried rows [n] -> Z, [R, n, C].
Simulate = Callable[[Sequence[np.ndarray], np.ndarray, slice], np.ndarray]


def extra_client_views(
    label: Label, simulate: Simulate, unlabeled: Sequence[np.ndarray]
) -> list[View]:
    """Views of an extra client: the scores of its points, and their labels alone.

    Args:
        label: the labeling.
        simulate: simulated labelings, on graphs like that of the run.
        unlabeled: the cohort's points without labels, [n_j, d] a client.
    """

    def observed(x: np.ndarray) -> np.ndarray:
        return _shares(label(as_vectors(x)))[None]

    def marks(x: np.ndarray) -> np.ndarray:
        shares = observed_once(x)
        is_largest = shares.argmax(axis=-1)[..., None] == np.arange(shares.shape[-1])
        return is_largest & (shares > 0)

    def shadows(x: np.ndarray, y: np.ndarray, is_in: np.ndarray) -> np.ndarray:
        points, first = as_vectors(x), sum(map(len, unlabeled))
        number = is_in.shape[1]
        labels = np.full((len(is_in), first + number), UNLABELED, np.int32)
        labels[:, first:] = np.where(is_in, y[:number], UNLABELED)
        queried = slice(first + number, first + number + len(x))
        return _shares(simulate([*unlabeled, points[:number], points], labels, queried))

    observed_once, shadows_once = _last_answer_cached(observed), _last_answer_cached(shadows)
    return [
        View(
            "scores", "probabilities", OF_ALL, observed_once, shadows=shadows_once, adversary=CLIENT
        ),
        View("labels", "labels", OF_ALL, marks, shadows=shadows_once, adversary=CLIENT),
    ]


def coalition_view(codes: Callable[[np.ndarray], Sequence[np.ndarray]]) -> View:
    """View of the server and one client together: the distance to the nearest point of another client.

    Args:
        codes: the extra client's vectors -> packed codes of all clients, its own last, uint32 [n_j, L / 32].
    """

    def nearest(x: np.ndarray) -> np.ndarray:
        *others, extra_codes = map(np.asarray, codes(as_vectors(x)))
        other_codes = np.concatenate(others)
        least = [
            np.bitwise_count(other_codes ^ row).sum(axis=1, dtype=np.int64).min()
            for row in extra_codes
        ]
        return np.asarray(least, np.float32)[None, :, None]

    return View("distances", "distances", OF_ALL, nearest, adversary=COALITION)


def _shares(scores: np.ndarray) -> np.ndarray:
    """Positive scores of every point divided by their sum; zeros for a point without any."""
    positive = np.maximum(scores, 0)
    total = positive.sum(axis=-1, keepdims=True)
    return positive / np.where(total > 0, total, 1)


def _last_answer_cached(answer: Callable[..., np.ndarray]) -> Callable[..., np.ndarray]:
    """Cache the last answer, for calls with the very same arrays."""
    last: list[tuple[tuple[Any, ...], np.ndarray]] = []

    def cached(*asked: Any) -> np.ndarray:
        if not last or any(one is not other for one, other in zip(asked, last[0][0], strict=True)):
            last[:] = [(asked, answer(*asked))]
        return last[0][1]

    return cached


def simulated_scores(
    vectors: Sequence[np.ndarray],
    labels: np.ndarray,
    rows: slice,
    p: Parameters,
    execution: Execution = HERE,
) -> np.ndarray:
    """Scores of XCLP's points in every labeling, float32 [R, n', C], with the steps in the clear.

    Arguments and cost as `scores_of_labelings`, and of one graph over all vectors, [n_j, d] a client.
    Settings are not selected again.
    """
    p = replace(p, hamming="plaintext", row_sums="plaintext", projection="seed", presence=())
    nobody = [np.full(len(points), UNLABELED, np.int32) for points in vectors]
    codes = simulated_codes(vectors, p, execution)
    if p.label_epsilon:
        draw = randomized_response.from_key(
            jax.random.fold_in(setup(p.seed), Stream.EXTRA_CLIENT_NOISE)
        )
        answered = randomized_response.randomize_labels(
            labels.ravel(), draw, p.num_classes, p.label_epsilon
        )
        labels = answered.reshape(labels.shape)
    graph = KnnGraphs(codes, nobody, p, None, execution).graph(p)
    return scores_of_labelings(graph, labels, rows, p, label_epsilon=p.label_epsilon)


def simulated_codes(
    vectors: Sequence[np.ndarray], p: Parameters, execution: Execution = HERE
) -> list[np.ndarray]:
    """Codes of every client, uint32 [n_j, L / 32], with hyperplanes and noise from the seed."""
    if p.center:
        mean = ClientSums(len(vectors), "plaintext").mean(vectors)
        vectors = [v - mean for v in vectors]
    planes = PROJECTIONS["seed"](p.seed, p.num_bits, vectors[0].shape[1], None)
    nobody = [np.full(len(points), UNLABELED, np.int32) for points in vectors]
    plain = replace(p, hamming="plaintext", row_sums="plaintext", projection="seed", presence=())
    codes, _ = randomized(execution.once(client_codes, vectors, planes), nobody, plain, None)
    return codes


def scores_of_labelings(
    graph: Graph, labels: np.ndarray, rows: slice, p: Propagation, *, label_epsilon: float = 0.0
) -> np.ndarray:
    """Scores of some points in every labeling, float32 [R, n', C].

    Args:
        graph: of n points, with padding.
        labels: int [R, n''], of the first n'' points; -1 = unlabeled, as all others are.
        rows: the n' points whose scores are returned.
        p: the settings.
        label_epsilon: labels are randomized with this epsilon, and the bias is corrected; 0: they are exact.
            The points' client has no labels, so a client prior has no effect.

    Cost: (steps) n k R C operations with the steps of the slowest column; a few times n R C floats, in blocks
    of as many labelings as fit into 128 MiB.
    """
    m = PropagationMatrix(graph, p.alpha, p.tolerance, p.max_steps)
    num_classes, n = p.num_classes, m.num_points
    most = max(1, _ENTRIES // (n * num_classes))
    worst, all_scores = SolverAccuracy(), []
    for start in range(0, len(labels), most):
        some = labels[start : start + most]
        y = np.zeros((n, len(some), num_classes), np.float32)
        y[: labels.shape[1]] = np.moveaxis(one_hot_labels(some, num_classes), 0, 1)
        columns = y.reshape(n, -1)
        values, info = m.solved(columns)
        worst = worst.worst(accuracy_of(info, m.max_steps))
        solved = values, label_counts(columns), label_masses(m, columns)
        parts = (np.asarray(each)[rows] for each in solved)
        inputs = [np.moveaxis(each.reshape(-1, *y.shape[1:]), 0, 1) for each in parts]
        if label_epsilon:
            inputs = [
                randomized_response.unbiased(each, num_classes, label_epsilon) for each in inputs
            ]
        for labeling in map(Rows, *inputs):
            z = scores(p.label_matrix, labeling)
            all_scores.append(np.asarray(z, np.float32))
    warn_of_solution(worst, SolverAccuracy(), p)
    return np.stack(all_scores)
