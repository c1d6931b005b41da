"""The clients of a cohort that train, where `Training.training_cohort_size` is less than the cohort.

    T subset of P,  |T| = training_cohort_size,  clients with and without labels in their shares of P;
    only clients with labels in a round in which the others have nothing to train on

All of P are labeled together: XCLP's graph has their points and labels. Labels of a small graph are bad where
labels are few, since a class without a label in it is never found; training is what costs a client most. A
client out of T receives the model and takes part in the labeling, and sends no model.

Measured on Fashion-MNIST with 20 labels at 100 clients: `results/fedavg_fashion_mnist/choosing/graphs`.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.data.dataset import UNLABELED
from jaxfed.federation.cohort import Cohort, arranged, chosen
from jaxfed.federation.communication import Communication, num_bytes_of
from jaxfed.federation.ragged import on_device
from jaxfed.random_streams import Stream
from jaxfed.training.pseudo_labels.pseudo_label import PseudoLabels
from jaxfed.training.server.server_state import client_draws


def divided(
    cohort: Cohort,
    labels: PseudoLabels,
    places: np.ndarray,
    communication: Communication,
    model: nnx.State,
    multiple: int = 1,
) -> tuple[Cohort, PseudoLabels]:
    """Return the clients that train, and their labels; the arguments if they are all.

    Args:
        cohort: the clients that have been labeled, arranged.
        labels: the labels of all of them.
        places: of the clients that train.
        communication: the model that the other clients receive is added.
        model: this model.
        multiple: number of devices, to a multiple of which clients are padded.
    """
    num_others = int(np.sum(np.asarray(cohort.client_id) >= 0)) - len(places)
    if not num_others:
        return cohort, labels
    if labels.metrics:  # a source has labeled them with the model
        parameters = nnx.split_state(model, nnx.Param, ...)[0]
        communication.down("parameters", num_others * num_bytes_of(parameters))
    few = arranged(chosen(cohort, places), multiple)
    room = [(0, len(few.client_id) - len(places)), (0, 0)]
    return few._replace(x=on_device(few.x)), labels._replace(
        label=jnp.pad(labels.label[places], room, constant_values=UNLABELED),
        weight=jnp.pad(labels.weight[places], room),
    )


def training_places(
    cohort: Cohort, size: int, key: jax.Array, *, needs_labels: bool = False
) -> np.ndarray:
    """Places of the clients that train, ascending, `size` of them or all; at least one with labels.

    Args:
        cohort: the clients that are labeled.
        size: number of clients that train.
        key: the round's; with a client's number it says whether it trains, whatever the order of clients.
        needs_labels: True if clients without labels have nothing to train on.
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
