"""Labels that the clients of a round train on: given ones, and pseudo-labels with a confidence.

    pseudo_label(state, cohort, key, communication) -> PseudoLabels(label [K, N], weight [K, N], ...)

Labeled examples always keep their label with weight 1. The makers differ in where the other labels
come from: nowhere (`labeled_only`), the network's own predictions, or propagation
(`jaxfed.training.pseudo_labels.propagated_labels`); `LabelSources` has their names. Confidence is
1 - entropy / log C of the label's distribution (XCLP, line 16). All computation has the cohort's padded
shape, so it compiles once for an experiment.

Graphs, heads and confidences are computed from features by the network that the round starts from:

    v_ki = f(x_ki)

With very unequal client sizes no feature of padding is computed: the rows of all clients go through the
network in batches that ignore client borders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import Metrics
from jaxfed.federation.clients import UNLABELED
from jaxfed.federation.cohort import ROWS_AT_ONCE, Array, Cohort, Ragged, length_for
from jaxfed.federation.communication import Communication
from jaxfed.federation.execution import MapClients, jitted
from jaxfed.training.local.losses import Augment, view
from jaxfed.training.server_state import ServerState, client_keys

if TYPE_CHECKING:
    from jaxfed.models import Model


# -> float32 [K, N, D], or the same as a `Ragged`
Embed = Callable[[ServerState, Cohort, jax.Array], jax.Array | Ragged]
Outputs = TypeVar("Outputs")


def embedding(model: Model, map_clients: MapClients, *, augment: Augment | None = None) -> Embed:
    """Return the function that computes a cohort's features, in evaluation mode, `ROWS_AT_ONCE` at a time.

    `augment` changes the examples first. The authors' code computes features with the training augmentation
    on; the paper does not say so. Features of a `Ragged` cohort are `Ragged`.
    """

    def embed_client(state: nnx.State, client: tuple[jax.Array, jax.Array]) -> jax.Array:
        x, key = client

        def embed_one(example: tuple[jax.Array, jax.Array]) -> jax.Array:
            number, one = example
            seen = view(augment, jax.random.fold_in(key, number), one[None])
            return model.features(state, seen)[0]

        numbers = jnp.arange(x.shape[0])
        return jax.lax.map(embed_one, (numbers, x), batch_size=min(ROWS_AT_ONCE, x.shape[0]))

    def embed_rows(shared: Any, part: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        state, keys, rows = shared

        def embed_one(example: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            row, client, number = example
            seen = view(augment, jax.random.fold_in(keys[client], number), rows[row][None])
            return model.features(state, seen)[0]

        return jax.vmap(embed_one)(part)

    embed_clients = jitted(map_clients(embed_client))
    embed_parts = jitted(map_clients(embed_rows))

    def embed_ragged(state: ServerState, cohort: Cohort, keys: jax.Array) -> Ragged:
        x = cohort.x
        assert isinstance(x, Ragged)
        length = length_for(x.num_rows, len(x.rows), parts=jax.device_count())
        row = np.minimum(np.arange(length), len(x.rows) - 1)
        parts = tuple(of_row.reshape(-1, ROWS_AT_ONCE) for of_row in (row, *x.coordinates(length)))
        features = embed_parts((state.model, keys, jnp.asarray(x.rows)), parts)
        return replace(x, rows=features.reshape(length, *features.shape[2:]))

    def embed(state: ServerState, cohort: Cohort, key: jax.Array) -> jax.Array | Ragged:
        keys = client_keys(key, cohort.client_id)
        if isinstance(cohort.x, Ragged):
            return embed_ragged(state, cohort, keys)
        return embed_clients(state.model, (jnp.asarray(cohort.x), keys))

    return embed


def of_examples(compute: Callable[[jax.Array], Outputs], features: jax.Array | Ragged) -> Outputs:
    """Apply `compute` to each example's features, [K, N, ...] of [K, N, D]; zeros on a `Ragged`'s padding.

    `compute` maps P parts of n examples each, [P, n, D], to arrays [P, n, ...].
    """
    if not isinstance(features, Ragged):
        return compute(features)
    rows = features.rows
    parts = compute(rows.reshape(-1, ROWS_AT_ONCE, *rows.shape[1:]))
    return jax.tree.map(
        lambda part: features.padded(part.reshape(len(rows), *part.shape[2:]), 0), parts
    )


Confidence = Literal["softmax", "logits"]


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


# state, cohort, key, communication -> labels of the cohort; the bytes sent for them are counted
PseudoLabel = Callable[[ServerState, Cohort, jax.Array, Communication], PseudoLabels]


def labeled_only(
    state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
) -> PseudoLabels:
    """No pseudo-labels: FedAvg (labeled only) in Tables 4 and 5 of XCLP."""
    del state, key, communication
    label = jnp.asarray(cohort.y)
    return PseudoLabels(label, (label >= 0).astype(jnp.float32), {})


def with_unlabeled(
    state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
) -> PseudoLabels:
    """No pseudo-labels, but unlabeled examples take part, with a placeholder label of weight 0.

    For losses that use them in their own way: FixMatch, FedMatch, FedSiam.
    """
    del state, key, communication
    y, mask = jnp.asarray(cohort.y), jnp.asarray(cohort.mask)
    nothing = jnp.zeros(y.shape, jnp.int32)
    return _complete(y, mask, nothing, nothing.astype(jnp.float32))._replace(metrics={})


def network_labels(
    model: Model, embed: Embed, *, confidence: Confidence = "softmax"
) -> PseudoLabel:
    """The network's own predictions: FedAvg+network of XCLP, and FedSem+ with a frozen model.

    `confidence` "softmax": 1 - entropy / log C of softmax(logits). "logits": the authors' code, which
    divides logits by their sum instead. If one of these "probabilities" is negative, the entropy is NaN
    and the weight 0. That is the case nearly everywhere, so training uses given labels only.
    """

    @jax.jit
    def predicted(state: nnx.State, features: jax.Array) -> tuple[jax.Array, jax.Array]:
        from jaxfed.xclp.steps.prediction import predict

        logits = jax.lax.map(lambda rows: model.head(state, rows), features)
        logits = logits.astype(jnp.float32)
        if confidence == "softmax":
            return predict(jax.nn.softmax(logits))
        share = logits / logits.sum(axis=-1, keepdims=True)
        is_distribution = jnp.all(share > 0, axis=-1)
        label, weight = predict(jnp.where(is_distribution[..., None], share, 1.0))
        return (
            jnp.where(is_distribution, label, jnp.argmax(logits, axis=-1).astype(jnp.int32)),
            jnp.where(is_distribution, weight, 0),
        )

    def pseudo_label(
        state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
    ) -> PseudoLabels:
        del communication
        label, weight = of_examples(partial(predicted, state.model), embed(state, cohort, key))
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
    """Multiply weights by (n / C) / n_c, n_c the labels of class c: the authors' code of label propagation.

    Given and inferred labels count alike: over the cohort, or each client's own (`within_clients`).
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


def completed(cohort: Cohort, label: Array, confidence: Array) -> PseudoLabels:
    """Combine given labels (weight 1) and inferred ones (-1: none) by confidence; none on padding."""
    _check_form(cohort, label, confidence)
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


def _check_form(cohort: Cohort, label: Array, weight: Array) -> None:
    shape = tuple(np.shape(cohort.y))
    for what, values in (("labels", label), ("weights", weight)):
        if tuple(np.shape(values)) != shape:
            raise UsageError(f"{what} of shape {tuple(np.shape(values))} for examples {shape}")
    if not jnp.issubdtype(label.dtype, jnp.integer):
        raise UsageError(f"labels of type {label.dtype}; use int32, such as from `argmax`")
