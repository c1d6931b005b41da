"""Pseudo-labels by propagation: XCLP over a round's cohort, and label propagation inside each client.

These are the sources "xclp", "xclp_prototypes" and "per_client_lp" of
`jaxfed.training.pseudo_labels.pseudo_label`, which imports this file only where a config asks for one of
them.

Points of XCLP's graph are a cohort's embedded examples, or prototypes in place of the labeled ones:

    v_i = f(x_i)                                                          every example is a point
    c_kc = mean of f(x) over client k's labels of class c                 a point with the label c,
                                                                          in place of those examples

f is the network that the round starts from.
With prototypes (ProtoFSSL: `jaxfed.training.pseudo_labels.prototypes`) a client has at most C labeled points,
however many labels it has. It sends fewer codes, and they depend on fewer single examples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed import xclp
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import Metrics
from jaxfed.federation.clients import UNLABELED
from jaxfed.federation.cohort import Cohort, Ragged, own_examples
from jaxfed.federation.communication import Communication
from jaxfed.federation.execution import HERE, Execution, MapClients, jitted
from jaxfed.kernels import knn, lsh
from jaxfed.kernels.conjugate_gradient import Convergence, PropagationMatrix
from jaxfed.training.pseudo_labels.prototypes import class_means
from jaxfed.training.pseudo_labels.pseudo_label import Embed, PseudoLabel, PseudoLabels, completed
from jaxfed.training.server_state import ServerState
from jaxfed.xclp.one_shot.cosine_propagation import label_each, propagate_over_cosines
from jaxfed.xclp.steps.propagation_matrix import (
    SolverAccuracy,
    accuracy_of,
    scores_of,
    warn_of_solution,
)

Points = Callable[[ServerState, Cohort, jax.Array], Cohort]  # -> points of the graph, x [K, N, D]


def all_examples(embed: Embed) -> Points:
    """Every example, embedded."""

    def points(state: ServerState, cohort: Cohort, key: jax.Array) -> Cohort:
        return cohort._replace(x=embed(state, cohort, key))

    return points


def with_prototypes(embed: Embed, num_classes: int) -> Points:
    """Unlabeled examples, embedded, and each client's prototypes.

    A prototype takes the row of the first label in its mean; rows of the others are padding. If a client has
    at most one label of each class, its points are those of `all_examples`.
    """

    @jax.jit
    def of_client(
        features: jax.Array, y: jax.Array, mask: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        is_labeled = mask & (y >= 0)
        means = class_means(features, y, is_labeled, num_classes)
        of_class = is_labeled[:, None] & jax.nn.one_hot(y, num_classes, dtype=bool)
        is_first = jnp.any(of_class & (jnp.cumsum(of_class, axis=0) == 1), axis=1)
        class_mean = means.center[jnp.maximum(y, 0)]
        return (
            jnp.where(is_first[:, None], class_mean, features),
            jnp.where(is_first | (y < 0), y, UNLABELED),
            mask & (is_first | (y < 0)),
        )

    def points(state: ServerState, cohort: Cohort, key: jax.Array) -> Cohort:
        y, mask = jnp.asarray(cohort.y), jnp.asarray(cohort.mask)
        x, y, mask = jax.vmap(of_client)(jnp.asarray(embed(state, cohort, key)), y, mask)
        return cohort._replace(x=x, y=y, mask=mask)

    return points


class XclpLabels:
    """XCLP over the cohort's `points`: lines 6 and 7 of Algorithm 2.

    With plaintext protocols Algorithm 1 runs on the padded cohort in one compiled program, or in several
    if `execution` spreads a graph's points over devices. The labels are those of
    `jaxfed.xclp.cross_client_label_propagation`, which runs on the host: protocols, and `compared_clients`
    in a cohort of more clients. With `bit_epsilon` or `label_epsilon` noise is fresh every round: R rounds
    cost R times the budget. On a network clients run the protocols themselves
    (`jaxfed.training.round.network`).

    Labels at the server: the server is one more party, whose points all have labels, and knows Pi as every
    party does. In plaintext it has the clients' codes in any case. In a secure protocol it would be the
    colluding client (docs/threat-model.md, "Coalitions"), so none is run then. Counted bytes are those
    between the server and the clients: codes and contributions up, row sums down.
    """

    def __init__(
        self, points: Points, parameters: xclp.Parameters, execution: Execution = HERE
    ) -> None:
        self.points, self.parameters, self.execution = points, parameters, execution
        one_program = is_one_program(parameters)
        self._label_cohort = _InOneProgram(parameters, execution) if one_program else None

    def __call__(
        self, state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
    ) -> PseudoLabels:
        """Return labels and weights for every example of the cohort."""
        entered = self.points(state, cohort, key)
        # The seed of line 1: shared by the clients, drawn anew every round.
        seed = xclp.drawn_seed(key)
        num_clients = int(np.sum(np.asarray(entered.client_id) >= 0))
        compares_few = self.parameters.compares_few(num_clients)
        if self._label_cohort is not None and not compares_few:
            label, confidence, metrics = self._label_cohort(entered, seed)
            _count_messages(entered, self.parameters, communication)
        else:
            ids, sizes = _sizes(entered)
            if sizes[ids < UNLABELED].sum():
                raise UsageError(
                    "the server has labels and is a party of XCLP: set hamming='plaintext', "
                    "row_sums='plaintext', influence='labels', compared_clients=0, center=False, "
                    "head='none', no noise, no client prior, nothing to select and confidence='entropy'"
                )
            label, confidence, metrics = _label_on_host(
                entered, replace(self.parameters, seed=seed), communication, self.execution
            )
        labels = completed(cohort, label, confidence)
        return labels._replace(metrics={**labels.metrics, **metrics})


class _InOneProgram:
    """Algorithm 1 without protocols: a cohort's points -> labels and confidences [K, N], metrics."""

    def __init__(self, parameters: xclp.Parameters, execution: Execution) -> None:
        self._p, self._execution = parameters, execution
        self._is_spread = execution.mesh is not None
        self._label_cohort = self._compiled(self._padded_labels)
        self._label_rows = self._compiled(self._ragged_labels)

    def __call__(self, entered: Cohort, seed: int) -> tuple[Any, Any, Metrics]:
        y, projection = jnp.asarray(entered.y), xclp.setup(seed)
        if isinstance(entered.x, Ragged):
            coordinates = entered.x.coordinates(len(entered.x.rows))
            labeled = self._label_rows(entered.x, y, *coordinates, projection)
        else:
            mask = jnp.asarray(entered.mask)
            labeled = self._label_cohort(jnp.asarray(entered.x), y, mask, projection)
        label, confidence, info = labeled
        if self._is_spread:  # via the host, so that they may move to the devices that train
            label, confidence = (jnp.asarray(np.asarray(x)) for x in (label, confidence))
        accuracy = accuracy_of(info, self._p.max_steps)
        warn_of_solution(accuracy, SolverAccuracy(), self._p)
        return label, confidence, {"steps": accuracy.steps, "residual": accuracy.residual}

    def _compiled(self, program: Callable[..., Any]) -> Callable[..., Any]:
        if self._is_spread:  # a jitted program would run on one device
            return program
        return jax.jit(program)

    def _labels(
        self, vectors: jax.Array, y: jax.Array, valid: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, Convergence]:
        p, execution = self._p, self._execution
        num_points = len(y)
        # Over several devices, padded with empty rows to a multiple of their number.
        codes = execution.spread(lsh.project_bits(vectors, key, p.num_bits))
        inside = execution.spread(valid, fill=False)
        neighbors = knn.hamming_knn(codes, p.num_neighbors, valid=inside)
        graph = xclp.server_graph(*neighbors, p)
        y = jnp.pad(y, (0, len(codes) - num_points), constant_values=UNLABELED)
        one_hot = jax.nn.one_hot(y, p.num_classes, dtype=jnp.float32)
        matrix = PropagationMatrix(graph, p.alpha, p.tolerance, p.max_steps)
        z, info = scores_of(matrix, one_hot, p.label_matrix)
        label, confidence = xclp.predict(z[:num_points])
        if p.relative_confidence:
            confidence = xclp.relative(confidence)
        return label, confidence, info

    def _padded_labels(
        self, features: jax.Array, y: jax.Array, mask: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, Convergence]:
        vectors = features.reshape(mask.size, -1)
        label, confidence, info = self._labels(vectors, y.reshape(-1), mask.reshape(-1), key)
        return label.reshape(mask.shape), confidence.reshape(mask.shape), info

    def _ragged_labels(
        self, features: Ragged, y: jax.Array, client: jax.Array, number: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, Convergence]:
        valid = jnp.arange(len(client)) < jnp.sum(features.size)
        labels = jnp.where(valid, y[client, number], UNLABELED)
        label, confidence, info = self._labels(features.rows, labels, valid, key)
        return features.padded(label, UNLABELED), features.padded(confidence, 0), info


def _sizes(entered: Cohort) -> tuple[np.ndarray, np.ndarray]:
    """Ids [K] of the cohort's rows, and each row's number of points; ids below -1 are the server's."""
    return np.asarray(entered.client_id), np.asarray(entered.mask).sum(axis=1)


def _count_messages(
    entered: Cohort, parameters: xclp.Parameters, communication: Communication
) -> None:
    ids, sizes = _sizes(entered)
    xclp.count_messages(
        communication,
        num_clients=int(np.sum((sizes > 0) & (ids >= 0))),
        num_labeled=int(np.sum(np.asarray(entered.y)[ids >= 0] >= 0)),
        num_points=int(sizes.sum()),
        num_at_server=int(sizes[ids < UNLABELED].sum()),
        p=parameters,
    )


def is_one_program(p: xclp.Parameters) -> bool:
    """True if XCLP labels a cohort in one compiled program: no protocols, noise, mean, choice or head."""
    noisy = p.bit_epsilon > 0 or p.label_epsilon > 0
    more = p.asks_labels or p.client_prior > 0 or p.center or p.head != "none"
    return not p.has_session and p.influence == "labels" and not noisy and not more


def per_client_lp_labels(
    embed: Embed, propagation: xclp.Propagation, map_clients: MapClients
) -> PseudoLabel:
    """Label propagation over exact cosines inside each client; a client without labels gets none.

    With `select` every client chooses its own settings in every round, and clients are computed one after
    another. So are clients of very unequal sizes.
    """

    def label_client(shared: Any, client: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        del shared
        features, y, mask = client
        one_hot = jax.nn.one_hot(y, propagation.num_classes, dtype=jnp.float32)
        return propagate_over_cosines(features, one_hot, mask, propagation)

    label_clients = jitted(map_clients(label_client))

    def pseudo_label(
        state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
    ) -> PseudoLabels:
        del communication
        features = embed(state, cohort, key)
        if isinstance(features, Ragged) or propagation.asks_labels:
            examples = own_examples(features)
            return completed(cohort, *label_each(examples, cohort.y, cohort.mask, propagation)[:2])
        y, mask = jnp.asarray(cohort.y), jnp.asarray(cohort.mask)
        return completed(cohort, *label_clients(None, (features, y, mask)))

    return pseudo_label


def _label_on_host(
    cohort: Cohort, p: xclp.Parameters, communication: Communication, execution: Execution
) -> tuple[np.ndarray, np.ndarray, Metrics]:
    mask, ids = np.asarray(cohort.mask), np.asarray(cohort.client_id)
    rows = np.flatnonzero(ids >= 0)  # other rows are padding, not parties
    x, y = own_examples(cohort.x), np.asarray(cohort.y)
    vectors = [x[row][mask[row, : len(x[row])]] for row in rows.tolist()]
    labels = [y[row][mask[row]] for row in rows]
    result = xclp.cross_client_label_propagation(
        vectors, labels, p, execution, client_ids=ids[rows].tolist()
    )
    communication.add(result.communication)
    label = np.full(mask.shape, UNLABELED, np.int32)
    confidence = np.zeros(mask.shape, np.float32)
    for row, prediction in zip(rows, result.predictions, strict=True):
        label[row, mask[row]] = prediction.labels
        confidence[row, mask[row]] = prediction.confidences
    metrics: Metrics = {"steps": result.steps, "residual": result.residual}
    return label, confidence, {**metrics, **(result.choice.metrics() if result.choice else {})}
