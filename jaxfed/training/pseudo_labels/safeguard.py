r"""A safeguard in each round: an inferred label stays only if it is right more often than the network.

    keep i's label  iff  q_i > rate_b(i),      rate_b = hits of the network / validation examples, in bin b

q_i is the probability that the label is right: its confidence, calibrated by leave-one-out
(`jaxfed.xclp.steps.calibration`). b(i) is the bin of the network's largest probability on i, among `NUM_BINS`
bins with equally many validation examples each. A network that is rightly sure of an example learns nothing
from a label that is less often right; an unsure network gives way to the label.

The network's accuracy on its training labels is no measure, since it has memorized them. So its rate comes
from the validation split, by which the server selects models in any case; no client's label is used. The
server sends the bins with the model: `2 * NUM_BINS - 1` numbers per client and round.

Cost: a forward pass over the cohort's examples and one over the validation split, in every round.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication, num_bytes_of
from jaxfed.kernels.devices.padding import in_batches, rows_at_once
from jaxfed.training.pseudo_labels.embedding import Embed, of_examples
from jaxfed.training.pseudo_labels.pseudo_label import PseudoLabel, PseudoLabels, completed
from jaxfed.training.server.server_state import ServerState

if TYPE_CHECKING:
    from jaxfed.models import Model

NUM_BINS = 10


class Rates(NamedTuple):
    """Accuracy of the network by its confidence, in bins.

    Fields:
        edge: float32 [NUM_BINS - 1], ascending: a confidence at an edge is in the bin above it.
        rate: float32 [NUM_BINS], in [0, 1].
    """

    edge: np.ndarray
    rate: np.ndarray

    def at(self, confidence: jax.Array | np.ndarray) -> np.ndarray:
        """The rate of each confidence's bin, float32 of its shape."""
        return self.rate[np.searchsorted(self.edge, np.asarray(confidence), side="right")]


def measured(confidence: np.ndarray, is_right: np.ndarray) -> Rates:
    """Return the rates over examples that nobody trained on: float32 [n] and bool [n], n > 0.

    An empty bin, because several edges are equal or examples are fewer than bins, has the rate over all
    examples.
    """
    ascending = np.sort(np.asarray(confidence, np.float32))
    edge = ascending[np.arange(1, NUM_BINS) * len(ascending) // NUM_BINS]
    number = np.searchsorted(edge, confidence, side="right")
    count, hits = (
        np.bincount(number, weights=weights, minlength=NUM_BINS)
        for weights in (np.ones(len(number)), np.asarray(is_right, np.float64))
    )
    rate = np.where(count > 0, hits / np.maximum(count, 1), np.mean(is_right))
    return Rates(edge, rate.astype(np.float32))


def surer_than_network(
    pseudo_label: PseudoLabel, model: Model, embed: Embed, validation: tuple[np.ndarray, np.ndarray]
) -> PseudoLabel:
    """Drop a source's labels on examples that the network is more likely right on.

    Args:
        pseudo_label: the source; weights are probabilities that labels are right.
        model: the network to compare with.
        embed: features of a cohort's examples.
        validation: x [n, ...] and labels int [n], n > 0, that no client holds.

    The metric `withheld` is the share of inferred labels that do not stay.
    """
    x, y = validation

    @jax.jit
    def confidences(state: nnx.State, features: jax.Array) -> jax.Array:
        return jnp.max(_probabilities(model, state, features), axis=-1)

    @jax.jit
    def judged(state: nnx.State, examples: jax.Array) -> tuple[jax.Array, jax.Array]:
        share = _probabilities(model, state, model.features(state, examples))
        return jnp.max(share, axis=-1), jnp.argmax(share, axis=-1)

    def labels(
        state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
    ) -> PseudoLabels:
        given = pseudo_label(state, cohort, key, communication)
        confidence, label = in_batches(lambda rows: judged(state.model, rows), x, rows_at_once())
        rates = measured(confidence, label == y)
        num_clients = int(np.sum(np.asarray(cohort.client_id) >= 0))
        communication.down("network_rates", num_clients * num_bytes_of(rates))
        own = of_examples(partial(confidences, state.model), embed(state, cohort, key))
        stays = np.asarray(given.weight) > rates.at(own)
        inferred = (np.asarray(cohort.y) < 0) & (np.asarray(given.label) >= 0)
        kept = completed(cohort, jnp.where(stays, given.label, -1), given.weight)
        withheld = np.sum(inferred & ~stays) / max(int(inferred.sum()), 1)
        return kept._replace(
            metrics={**given.metrics, **kept.metrics, "withheld": np.float32(withheld)}
        )

    return labels


def _probabilities(model: Model, state: nnx.State, features: jax.Array) -> jax.Array:
    return jax.nn.softmax(model.head(state, features).astype(jnp.float32))
