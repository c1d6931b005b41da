"""Pseudo-labels by propagation: XCLP over a round's cohort, and label propagation inside each client.

These are the sources "xclp", "xclp_prototypes" and "per_client_lp" of
`jaxfed.training.pseudo_labels.label_sources`, which imports this file only where a config asks for one of
them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed import xclp
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import Metrics
from jaxfed.federation.client_map import jitted
from jaxfed.federation.clients import UNLABELED
from jaxfed.federation.clients_at_once import MapClients
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication
from jaxfed.federation.execution import HERE, Execution
from jaxfed.federation.ragged import Ragged, own_examples
from jaxfed.kernels import lsh
from jaxfed.kernels.conjugate_gradient import Convergence
from jaxfed.training.pseudo_labels.embedding import Embed
from jaxfed.training.pseudo_labels.pseudo_label import Points, PseudoLabel, PseudoLabels, completed
from jaxfed.training.server.server_state import ServerState
from jaxfed.xclp.cosine_propagation import label_each, propagate_over_cosines
from jaxfed.xclp.cross_steps import NEIGHBORS
from jaxfed.xclp.influence import Accuracy, accuracy_of, warn_of_cut_short
from jaxfed.xclp.memory_plan import planned
from jaxfed.xclp.smoother import Smoother, scores_of


def xclp_labels(
    points: Points, parameters: xclp.Parameters, execution: Execution = HERE
) -> PseudoLabel:
    """XCLP over the cohort's points in the graph: lines 6 and 7 of Algorithm 2.

    With plaintext protocols Algorithm 1 runs on the padded cohort in one compiled program, or in several
    if `execution` spreads a graph's points over devices. The labels are those of
    `jaxfed.xclp.cross_client_label_propagation`, which runs the protocols on the host. With `bit_epsilon` or
    `label_epsilon` noise is fresh every round: R rounds cost R times the budget.

    Labels at the server: the server is one more party, whose points all have labels, and knows Pi as every
    party does. In plaintext it has the clients' codes in any case. In a secure protocol it would be the
    colluding client (docs/threat-model.md, "Coalitions"), so none is run then. Counted bytes are those
    between the server and the clients: codes and contributions up, row sums down.

    Raises:
        UsageError: in a round, labels at the server with protocols, noise or columns of influence.
    """
    p = parameters
    in_one_program, is_spread = is_one_program(p), execution.mesh is not None

    @cache
    def columns_at_once(num_points: int, dim: int) -> int | None:
        """Columns of the system solved at once; over several devices as many as fit, reported once."""
        if not (is_spread and execution.watches_memory):
            return None
        plan = planned(num_points, dim, p, execution)
        execution.take(f"labeling in a round ({plan})", plan.num_bytes)
        return plan.block_columns

    def label_points(
        vectors: jax.Array, y: jax.Array, valid: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, Convergence]:
        num_points, block_columns = len(y), columns_at_once(*vectors.shape)
        # Over several devices, padded with empty rows to a multiple of their number.
        codes = execution.spread(lsh.project_bits(vectors, key, p.num_bits))
        inside = execution.spread(valid, fill=False)
        found = NEIGHBORS[p.neighbors](codes, p.num_neighbors, valid=inside)
        graph = xclp.server_graph(*found, p)
        y = jnp.pad(y, (0, len(codes) - num_points), constant_values=UNLABELED)
        one_hot = jax.nn.one_hot(y, p.num_classes, dtype=jnp.float32)
        z, info = scores_of(Smoother(graph, p, block_columns), one_hot)
        label, confidence = xclp.predict(z[:num_points])
        if p.relative_confidence:
            confidence = xclp.relative(confidence)
        return label, confidence, info

    def label_cohort(
        features: jax.Array, y: jax.Array, mask: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, Convergence]:
        vectors = features.reshape(mask.size, -1)
        label, confidence, info = label_points(vectors, y.reshape(-1), mask.reshape(-1), key)
        return label.reshape(mask.shape), confidence.reshape(mask.shape), info

    def label_rows(
        features: Ragged, y: jax.Array, client: jax.Array, number: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, Convergence]:
        valid = jnp.arange(len(client)) < jnp.sum(features.size)
        own = jnp.where(valid, y[client, number], UNLABELED)
        label, confidence, info = label_points(features.rows, own, valid, key)
        return features.padded(label, UNLABELED), features.padded(confidence, 0), info

    def compiled(program: Callable[..., Any]) -> Callable[..., Any]:
        if is_spread:  # a jitted program would run on one device
            return program
        return execution.sized("labeling in a round", jax.jit(program))

    label_within, label_rows_within = compiled(label_cohort), compiled(label_rows)

    def pseudo_label(
        state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
    ) -> PseudoLabels:
        entered = points(state, cohort, key)
        # The seed of line 1: shared by the clients, drawn anew every round.
        seed = xclp.drawn_seed(key)
        ids, sizes = np.asarray(cohort.client_id), np.asarray(entered.mask).sum(axis=1)
        at_server = int(sizes[ids < UNLABELED].sum())
        if at_server and not in_one_program:
            raise UsageError(
                "the server has labels and is a party of XCLP: set hamming='plaintext', row_sums='plaintext', "
                "influence='labels', no noise, no client prior, nothing to select and confidence='entropy'"
            )
        if in_one_program:
            y, projection = jnp.asarray(entered.y), xclp.setup(seed)
            if isinstance(entered.x, Ragged):
                whose = entered.x.places(len(entered.x.rows))
                labeled = label_rows_within(entered.x, y, *whose, projection)
            else:
                mask = jnp.asarray(entered.mask)
                labeled = label_within(jnp.asarray(entered.x), y, mask, projection)
            label, confidence, info = labeled
            if is_spread:  # via the host, so that they may move to the devices that train
                label, confidence = (jnp.asarray(np.asarray(x)) for x in (label, confidence))
            accuracy = accuracy_of(info, p.max_steps)
            warn_of_cut_short(accuracy, Accuracy(), p.tolerance)
            metrics: Metrics = {"steps": accuracy.steps, "residual": accuracy.residual}
            xclp.count_messages(
                communication,
                num_clients=int(np.sum((sizes > 0) & (ids >= 0))),
                num_labeled=int(np.sum(np.asarray(entered.y)[ids >= 0] >= 0)),
                num_points=int(sizes.sum()),
                num_at_server=at_server,
                p=p,
            )
        else:
            label, confidence, metrics = _label_on_host(
                entered, replace(p, seed=seed), communication, execution
            )
        labels = completed(cohort, label, confidence)
        return labels._replace(metrics={**labels.metrics, **metrics})

    return pseudo_label


def is_one_program(p: xclp.Parameters) -> bool:
    """True if XCLP labels a cohort in one compiled program: no protocols, noise, columns or choice."""
    noisy = p.bit_epsilon > 0 or p.label_epsilon > 0
    chooses = p.asks_labels or p.client_prior > 0
    return not p.has_session and p.influence == "labels" and not noisy and not chooses


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
            own = own_examples(features)
            return completed(cohort, *label_each(own, cohort.y, cohort.mask, propagation)[:2])
        y, mask = jnp.asarray(cohort.y), jnp.asarray(cohort.mask)
        return completed(cohort, *label_clients(None, (features, y, mask)))

    return pseudo_label


def _label_on_host(
    cohort: Cohort,
    p: xclp.Parameters,
    communication: Communication,
    execution: Execution,
) -> tuple[np.ndarray, np.ndarray, Metrics]:
    """Run Algorithm 1 on each client's rows of x, the form that protocols on the host take."""
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
