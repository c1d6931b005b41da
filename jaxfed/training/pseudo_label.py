"""Which labels the clients of a round train on: given ones, and pseudo-labels with a confidence.

    pseudo_label(state, cohort, key) -> PseudoLabels(label [K, N], weight [K, N], ...)

Labeled examples always keep their label with weight 1. The makers below differ in where the other
labels come from: nowhere (`labeled_only`), XCLP over the cohort, label propagation inside each client,
the network's own predictions. Confidence is 1 - entropy / log C of the label's distribution (XCLP, line
16). All computation has the cohort's padded shape, so it compiles
once for an experiment.
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

# Names of sources that label a client's examples by its own labels alone: without any it gets none.
WITHIN_CLIENTS = frozenset({"none", "per_client_lp"})

Confidence = Literal["softmax", "logits"]
Points = Callable[[ServerState, Cohort, jax.Array], Cohort]  # -> what enters the graph, x [K, N, D]


class PseudoLabels(NamedTuple):
    """What a cohort trains on.

    Fields:
        label: int32 [K, N]; -1 keeps an example out of training.
        weight: float32 [K, N], 0 where there is no label.
        metrics: numbers about the labeling.
    """

    label: jax.Array
    weight: jax.Array
    metrics: Metrics


class PseudoLabel(Protocol):
    """Labels one cohort with the server's current state, counting what travels for it."""

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
    """No pseudo-labels, but unlabeled examples take part, with weight 0 on a label that means nothing.

    For losses that find their own use of them: FixMatch, FedMatch, FedSiam.
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
    where `execution` spreads a graph's points over devices; the labels are those of
    `jaxfed.xclp.cross_client_label_propagation`, to which protocols on the host go. With `bit_epsilon` or
    `label_epsilon` noise is fresh every round: R rounds cost R times the budget.

    Labels at the server: it is one more party, whose points all have labels, and knows Pi as every party
    does. In plaintext it has the clients' codes in any case; of protocols it would be the colluding client
    (docs/threat-model.md, "Coalitions"), so that none is run then. Bytes are those between it and the
    clients: their codes and contributions up, their row sums down.

    Raises:
        UsageError: in a round, labels at the server with protocols, noise or columns of influence.
    """
    p = parameters
    in_one_program, is_spread = is_one_program(p), execution.mesh is not None

    @cache
    def columns_at_once(num_points: int, dim: int) -> int | None:
        """Of the system; over several devices so many that memory is enough, which is said once."""
        if not (is_spread and execution.watches_memory):
            return None
        plan = planned(num_points, dim, p, execution)
        execution.take(f"labeling in a round ({plan})", plan.num_bytes)
        return plan.block_columns

    def label_points(
        vectors: jax.Array, y: jax.Array, valid: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, jax.Array, Convergence]:
        num_points, block_columns = len(y), columns_at_once(*vectors.shape)
        # Over several devices, after rows of nobody up to a multiple of them.
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
        if is_spread:  # what is traced is on one device
            return program
        return execution.sized("labeling in a round", jax.jit(program))

    label_within, label_rows_within = compiled(label_cohort), compiled(label_rows)

    def pseudo_label(
        state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
    ) -> PseudoLabels:
        entered = points(state, cohort, key)
        # The seed of line 1: agreed on by the clients, drawn anew every round.
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
            if is_spread:  # they came to one device, and are free to go to those that train
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
    """Whether XCLP labels a cohort in one compiled program: without protocols, noise, columns and choice."""
    noisy = p.bit_epsilon > 0 or p.label_epsilon > 0
    chooses = p.asks_labels or p.client_prior > 0
    return not p.has_session and p.influence == "labels" and not noisy and not chooses


def per_client_lp_labels(
    embed: Embed, propagation: xclp.Propagation, map_clients: MapClients
) -> PseudoLabel:
    """Label propagation over exact cosines inside each client; a client without labels gets none.

    With `select` every client chooses for itself, in every round and one after another; so clients go where
    they have very different sizes.
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
    divides logits by their sum instead; where one of these "probabilities" is negative the entropy is
    not a number and the weight 0, which is nearly everywhere, so that it trains on given labels only.
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
    """The same labels by the model that `ServerState.teacher` keeps, and the same in every round."""

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

    There it belongs to label propagation, given and inferred labels counting alike: XCLP's over the
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
    """Algorithm 1 with each client's own rows of x, as protocols on the host want them."""
    mask, ids = np.asarray(cohort.mask), np.asarray(cohort.client_id)
    rows = np.flatnonzero(ids >= 0)  # others are padding, and no parties
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
    """Given labels with weight 1 over inferred ones (-1: none), nothing on padding; how sure they are."""
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
