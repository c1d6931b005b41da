"""The clients of a cohort that train, if `Training.training_cohort_size` is less than the cohort's size.

    T subset of P,  |T| = training_cohort_size

P is the cohort, T the clients that train. T has clients with and without labels in the same shares as P. In a
round in which clients without labels have nothing to train on, T has only clients with labels.

All of P is labeled together: XCLP's graph has the points and labels of all its clients. With few labels, a
small graph gives bad pseudo-labels, because it cannot find a class of which it has no label. Training costs a
client more than labeling. A client outside T receives the model, takes part in the labeling, and sends no
model.

Measured on Fashion-MNIST with 20 labels at 100 clients: `results/fedavg_fashion_mnist/choosing/graphs`.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.data.dataset import UNLABELED
from jaxfed.federation.cohort import Cohort, chosen
from jaxfed.federation.communication import Communication, num_bytes_of
from jaxfed.random_streams import Stream
from jaxfed.training.pseudo_labels.pseudo_label import PseudoLabels
from jaxfed.training.round.parts import Parts
from jaxfed.training.round.runner import placed
from jaxfed.training.server_state import ServerState, client_draws


def divided(
    parts: Parts,
    state: ServerState,
    cohort: Cohort,
    labels: PseudoLabels,
    key: jax.Array,
    communication: Communication,
) -> tuple[Cohort, PseudoLabels]:
    """Return the clients of a labeled cohort that train, and their labels; counts the others' model."""
    places = places_of(parts, state, cohort, key)
    num_others = int(np.sum(np.asarray(cohort.client_id) >= 0)) - len(places)
    if not num_others:
        return cohort, labels
    if labels.metrics:  # a source has labeled them with the model
        parameters = nnx.split_state(state.model, nnx.Param, ...)[0]
        communication.down("parameters", num_others * num_bytes_of(parameters))
    few = placed(chosen(cohort, places), parts.training.execution)
    room = [(0, len(few.client_id) - len(places)), (0, 0)]
    return few, labels._replace(
        label=jnp.pad(labels.label[places], room, constant_values=UNLABELED),
        weight=jnp.pad(labels.weight[places], room),
    )


def places_of(parts: Parts, state: ServerState, cohort: Cohort, key: jax.Array) -> np.ndarray:
    """Return the places of the clients that train in the round after a state."""
    needs_labels = parts.course.needs_labels_in(int(state.round) + 1)
    size = parts.training.training_cohort_size
    return training_places(cohort, size, key, needs_labels=needs_labels)


def training_places(
    cohort: Cohort, size: int, key: jax.Array, *, needs_labels: bool = False
) -> np.ndarray:
    """Return the places of the clients that train, ascending: `size` or all, at least one with labels.

    The round's key and a client's number decide if it trains, in any order of clients.
    """
    ids = jnp.asarray(cohort.client_id)
    draws = np.asarray(client_draws(jax.random.fold_in(key, Stream.TRAINING_COHORT), ids))
    is_there, has_labels = np.asarray(ids) >= 0, (np.asarray(cohort.y) >= 0).any(axis=1)
    labeled, others = (np.flatnonzero(is_there & kind) for kind in (has_labels, ~has_labels))
    if needs_labels and len(labeled):
        others = others[:0]
    size = min(size, len(labeled) + len(others))
    num_labeled = math.ceil(size * len(labeled) / max(1, len(labeled) + len(others)))
    drawn = [
        places[np.argsort(draws[places], kind="stable")[:number]]
        for places, number in ((labeled, num_labeled), (others, size - num_labeled))
    ]
    return np.sort(np.concatenate(drawn))
