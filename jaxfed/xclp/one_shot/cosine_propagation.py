"""Label propagation on the exact-cosine graph of some vectors, which XCLP estimates; no protocol.

    A_ij = cos(v_i, v_j),  B = k largest of each row (not its own),  W = D^-1/2 (B + B^T) D^-1/2,
    Z = (I - alpha W)^-1 Y, or as `label_matrix` says

(Iscen et al., CVPR 2019; lines 7 to 10, 15 and 16 of XCLP's Algorithm 1.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.data.dataset import UNLABELED
from jaxfed.federation.execution import HERE, Execution, size_buckets
from jaxfed.kernels import knn
from jaxfed.kernels.conjugate_gradient import PropagationMatrix
from jaxfed.kernels.devices import padded_rows, padded_to
from jaxfed.kernels.graph import normalized_graph
from jaxfed.xclp.selection.choice import Choice, select, settings_of
from jaxfed.xclp.selection.leave_one_out import Labeled, labeled_rows
from jaxfed.xclp.settings.parameters import Propagation
from jaxfed.xclp.steps.class_scores import weighed_by_prior
from jaxfed.xclp.steps.knn_graph import answers_of, one_hot_labels, positive_power
from jaxfed.xclp.steps.prediction import calibrated, predict, relative
from jaxfed.xclp.steps.propagation_matrix import (
    SolverAccuracy,
    accuracy_of,
    scores_of,
    warn_of_solution,
)

Array = jax.Array | np.ndarray

_SMALLEST_CAPACITY = 256  # points; all smaller clients are padded to it and share compiled programs


def propagate_over_cosines(
    vectors: jax.Array, y: jax.Array, valid: jax.Array | None, p: Propagation
) -> tuple[jax.Array, jax.Array]:
    """Labels int32 [n] (-1: no label arrives) and confidences f32 [n] of one client's vectors; may be traced.

    `vectors` are float32 [n, d]; `y` float32 [n, C], one-hot, zero where unlabeled; `valid` bool [n], False
    on padding. `relative_confidence` is over these n vectors. A client prior has no effect, since the
    client's frequencies are the cohort's.

    Cost: n^2 d operations; memory O(n (d + k + C)).
    """
    neighbors = knn.cosine_knn(vectors, p.num_neighbors, valid=valid)
    return _predicted(scores_of(_matrix(neighbors, p), y, p.label_matrix)[0], p)


def label_over_cosines(
    vectors: jax.Array,
    y: np.ndarray,
    owner: np.ndarray | None,
    p: Propagation,
    execution: Execution = HERE,
) -> tuple[jax.Array, jax.Array, Choice[Propagation] | None]:
    """Choose the settings in `p.select` by leave-one-out over these vectors, and propagate with them.

    Args:
        vectors: float32 [n, d], padded with zero vectors, which have no edges.
        y: float32 [n, C], one-hot, zero where unlabeled.
        owner: the client of each point, int [n]; None: one client has all, and a client prior has no effect,
            not even in leave-one-out.
        execution: may cache neighbors.

    Returns:
        Labels and confidences as `propagate_over_cosines`, the latter calibrated if `p` says so, and the
        choice; None without selection.

    Cost: n^2 d operations once, and the linear systems of all settings (`jaxfed.xclp.selection.choice`).
    """
    p = _without_prior(p) if owner is None else p
    most = max(s.num_neighbors for s in settings_of(p))
    near = execution.once(knn.cosine_knn, vectors, most)
    choice = None
    if p.asks_labels:
        answers = answers_of(y)
        owners = np.zeros(len(y), int) if owner is None else owner

        def evidence(s: Propagation) -> Labeled:
            return labeled_rows(_matrix(near, s), y, owners, answers)

        choice = select(p, evidence)
    chosen = choice.p if choice else p
    z, info = scores_of(_matrix(near, chosen), y, chosen.label_matrix)
    warn_of_solution(
        accuracy_of(info, chosen.max_steps), choice.systems if choice else SolverAccuracy(), chosen
    )
    if owner is not None:
        of_clients = np.zeros((int(owner.max(initial=0)) + 1, p.num_classes), np.float32)
        np.add.at(of_clients, owner, y)
        weighed = weighed_by_prior(
            z, of_clients[owner], y.sum(axis=0), chosen.client_prior, chosen.client_prior_labels
        )
        z = jnp.asarray(weighed)
    return *_predicted(z, chosen, choice.sharpness if choice else None), choice


def matrix_over_cosines(vectors: Sequence[np.ndarray], p: Propagation) -> PropagationMatrix:
    """Matrix S of the graph over all these vectors, [n_j, d] a client, padded; n^2 d operations."""
    points = jnp.asarray(padded_rows(np.concatenate(vectors).astype(np.float32)))
    return _matrix(knn.cosine_knn(points, p.num_neighbors), p)


def label_each(
    vectors: Sequence[np.ndarray],
    y: Array,
    mask: Array,
    p: Propagation,
    execution: Execution = HERE,
) -> tuple[np.ndarray, np.ndarray, list[Choice[Propagation]]]:
    """Label every client by itself, one after another, with few compiled programs for any client sizes.

    A client is padded to the next power of two, or to 256 points. Its numbers of hubs and of labels are
    padded likewise (`normalized_graph`, `diagonal`). So there are a few programs for each power of two, not
    for each client; padding does not take part in anything.

    Args:
        vectors: each client's, float [n_k, d] or more of them.
        y: int [K, N], labels, -1 where there is none.
        mask: bool [K, N], a client's points are its first n_k.
        execution: may cache neighbors.

    Returns:
        Labels int32 [K, N] (-1: none), confidences float32 [K, N], and the choices of clients that had to
        choose.
    """
    y, mask = np.asarray(y), np.asarray(mask)
    label = np.full(mask.shape, UNLABELED, np.int32)
    confidence = np.zeros(mask.shape, np.float32)
    choices: list[Choice[Propagation]] = []
    sizes = mask.sum(axis=1)
    for rows, capacity in size_buckets(sizes, smallest=_SMALLEST_CAPACITY):
        capacity = min(capacity, mask.shape[1])
        for row in rows:
            points = padded_to(vectors[row][: sizes[row]], capacity)
            one_hot = one_hot_labels(y[row, :capacity], p.num_classes)
            *outputs, choice = label_over_cosines(jnp.asarray(points), one_hot, None, p, execution)
            label[row, :capacity], confidence[row, :capacity] = outputs
            choices += [choice] if choice else []
    return label, confidence, choices


def _without_prior(p: Propagation) -> Propagation:
    select = tuple(entry for entry in p.select if entry != "client_prior")
    return replace(p, client_prior=0.0, client_prior_labels=0.0, select=select)


def _predicted(
    z: jax.Array, p: Propagation, sharpness: float | None = None
) -> tuple[jax.Array, jax.Array]:
    label, confidence = predict(z)
    if sharpness is not None:
        return label, jnp.asarray(calibrated(z, sharpness))
    return label, relative(confidence) if p.relative_confidence else confidence


def _matrix(near: tuple[jax.Array, jax.Array], p: Propagation) -> PropagationMatrix:
    indices, cosines = (values[:, : p.num_neighbors] for values in near)
    graph = normalized_graph(indices, positive_power(cosines, p.similarity_power))
    return PropagationMatrix(graph, p.alpha, p.tolerance, p.max_steps)
