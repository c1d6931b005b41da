"""Labels that the clients of a round train on: given ones, and pseudo-labels with a confidence.

    pseudo_label(state, cohort, key) -> PseudoLabels(label [K, N], weight [K, N], ...)

Labeled examples always keep their label with weight 1. The makers below differ in where the other
labels come from: nowhere (`labeled_only`), XCLP over the cohort, label propagation inside each client,
the network's own predictions. Confidence is 1 - entropy / log C of the label's distribution (XCLP, line
16). All computation has the cohort's padded shape, so it compiles once for an experiment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed import xclp
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import Metrics
from jaxfed.federation.client_map import jitted
from jaxfed.federation.clients import UNLABELED
from jaxfed.federation.clients_at_once import MapClients as MapClients
from jaxfed.federation.cohort import Array, Cohort
from jaxfed.federation.communication import Communication
from jaxfed.federation.execution import HERE, Execution
from jaxfed.federation.ragged import Ragged, own_examples
from jaxfed.kernels import lsh
from jaxfed.kernels.conjugate_gradient import Convergence
from jaxfed.training.embedding import Embed as Embed
from jaxfed.training.embedding import embedding as embedding
from jaxfed.training.embedding import of_examples
from jaxfed.training.server_state import ServerState
from jaxfed.xclp.cosine_propagation import label_each, propagate_over_cosines
from jaxfed.xclp.cross_steps import NEIGHBORS
from jaxfed.xclp.influence import Accuracy, accuracy_of, warn_of_cut_short
from jaxfed.xclp.memory_plan import planned
from jaxfed.xclp.smoother import Smoother, scores_of

if TYPE_CHECKING:
    from jaxfed.models import Model

# Sources that label a client's examples by its own labels alone: a client without labels gets none.
WITHIN_CLIENTS = frozenset({"none", "per_client_lp"})

Confidence = Literal["softmax", "logits"]
Points = Callable[[ServerState, Cohort, jax.Array], Cohort]  # -> points of the graph, x [K, N, D]


class PseudoLabels(NamedTuple):
    """Labels and weights that a cohort trains on.

    Fields:
        label: int32 [K, N]; -1 keeps an example out of training.
        weight: float32 [K, N], 0 where there is no label.
        metrics: numbers about the labeling.
    """

    label: jax.Array
    weight: jax.Array
    metrics: Metrics


class PseudoLabel(Protocol):
    """Function that labels one cohort with the server's current state, and counts the bytes sent for it."""

    def __call__(
        self, state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
    ) -> PseudoLabels:
        """Return labels and weights for every example of the cohort."""
        ...


def labeled_only() -> PseudoLabel:
    """No pseudo-labels: FedAvg (labeled only) in Tables 4 and 5 of XCLP."""

    def pseudo_label(
        state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
    ) -> PseudoLabels:
        del state, key, communication
        label = jnp.asarray(cohort.y)
        return PseudoLabels(label, (label >= 0).astype(jnp.float32), {})

    return pseudo_label


def with_unlabeled() -> PseudoLabel:
    """No pseudo-labels, but unlabeled examples take part, with a placeholder label of weight 0.

    For losses that use them in their own way: FixMatch, FedMatch, FedSiam.
    """

    def pseudo_label(
        state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
    ) -> PseudoLabels:
        del state, key, communication
        y, mask = jnp.asarray(cohort.y), jnp.asarray(cohort.mask)
        nothing = jnp.zeros(y.shape, jnp.int32)
        return _complete(y, mask, nothing, nothing.astype(jnp.float32))._replace(metrics={})

    return pseudo_label


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
                "labels_at='server': the server is a party of XCLP then; allowed are hamming='plaintext', "
                "row_sums='plaintext', influence='labels', no noise, no client prior, nothing to select and "
                "confidence='entropy'"
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


def network_labels(
    model: Model, embed: Embed, *, confidence: Confidence = "softmax"
) -> PseudoLabel:
    """The network's own predictions: FedAvg+network of XCLP, and FedSem+ with a frozen model.

    `confidence` "softmax": 1 - entropy / log C of softmax(logits). "logits": the authors' code, which
    divides logits by their sum instead. If one of these "probabilities" is negative, the entropy is NaN
    and the weight 0. That is the case nearly everywhere, so training uses given labels only.
    """

    @jax.jit
    def predict(state: nnx.State, features: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = jax.lax.map(lambda rows: model.head(state, rows), features)
        logits = logits.astype(jnp.float32)
        if confidence == "softmax":
            return xclp.predict(jax.nn.softmax(logits))
        share = logits / logits.sum(axis=-1, keepdims=True)
        is_distribution = jnp.all(share > 0, axis=-1)
        label, weight = xclp.predict(jnp.where(is_distribution[..., None], share, 1.0))
        return (
            jnp.where(is_distribution, label, jnp.argmax(logits, axis=-1).astype(jnp.int32)),
            jnp.where(is_distribution, weight, 0),
        )

    def pseudo_label(
        state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
    ) -> PseudoLabels:
        del communication
        label, weight = of_examples(partial(predict, state.model), embed(state, cohort, key))
        return completed(cohort, label, weight)

    return pseudo_label


def from_teacher(pseudo_label: PseudoLabel) -> PseudoLabel:
    """Label with the model in `ServerState.teacher`; labels are the same in every round."""

    def labels(
        state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
    ) -> PseudoLabels:
        del key
        teacher = state.teacher
        return pseudo_label(state._replace(model=teacher.model), cohort, teacher.key, communication)

    return labels


def class_weighted(
    pseudo_label: PseudoLabel, num_classes: int, *, within_clients: bool = False
) -> PseudoLabel:
    """Multiply weights by (n / C) / n_c, n_c the round's labels of class c: the authors' code only.

    The code applies it to label propagation, with given and inferred labels counting alike: XCLP's over the
    cohort, per-client LP's over each client's own (`within_clients`). Network labels have no such weights.
    """

    @jax.jit
    def weigh(label: jax.Array, weight: jax.Array) -> jax.Array:
        counts = jax.nn.one_hot(label, num_classes).sum(axis=1)  # [K, C]
        if not within_clients:
            counts = jnp.broadcast_to(counts.sum(axis=0, keepdims=True), counts.shape)
        share = counts.sum(axis=1, keepdims=True) / num_classes / jnp.maximum(counts, 1)
        return weight * jnp.take_along_axis(share, jnp.maximum(label, 0), axis=1)

    def weighted(
        state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
    ) -> PseudoLabels:
        labels = pseudo_label(state, cohort, key, communication)
        return labels._replace(weight=weigh(labels.label, labels.weight))

    return weighted


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


def completed(cohort: Cohort, label: Array, confidence: Array) -> PseudoLabels:
    """Combine given labels (weight 1) and inferred ones (-1: none) by confidence; none on padding."""
    return _complete(jnp.asarray(cohort.y), jnp.asarray(cohort.mask), label, confidence)


@jax.jit
def _complete(y: jax.Array, mask: jax.Array, label: Array, confidence: Array) -> PseudoLabels:
    is_labeled, is_inferred = y >= 0, mask & (y < 0)
    label = jnp.where(is_labeled, y, jnp.where(is_inferred, label, UNLABELED))
    weight = jnp.where(is_labeled, 1.0, jnp.where(is_inferred & (label >= 0), confidence, 0.0))
    count = jnp.maximum(is_inferred.sum(), 1).astype(jnp.float32)
    return PseudoLabels(
        label,
        weight,
        {
            "pseudo_labeled": jnp.sum(is_inferred & (label >= 0), dtype=jnp.float32) / count,
            "pseudo_label_weight": jnp.sum(weight, where=is_inferred) / count,
        },
    )
