"""FedPer: a shared body, and a head for each client.

With body w and head v_k of client k:

    (w_k, v_k) <- (w, v_k);   E epochs of  (w_k, v_k) <- (w_k, v_k) - eta grad l(w_k, v_k; batch)
    w <- w + mean_k (w_k - w) as FedAvg;      v_k stays at the client

All v_k start from the initial network's head, the part that turns features into logits
(`jaxfed.models.head`). In the paper more of the last layers may stay at the client. A client receives the
body.

A new client has no head. So a central test set is evaluated with the mean of the heads of clients that have
trained; only a simulation can compute it, since the server receives no heads. Accuracy on clients' unlabeled
points (`mean_client_unlabeled_accuracy` and the like) corresponds to the paper's numbers: each client's head
is evaluated on that client's points. Clients that have not trained do not count there.

Examples without a label take no part. The method runs in simulation only: on a network no party has all
heads, which a central test set needs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.clients import Federation
from jaxfed.federation.communication import num_bytes_of
from jaxfed.federation.evaluate import over_own_points
from jaxfed.federation.method import method, with_attributes
from jaxfed.kernels.devices import in_batches, rows_at_once
from jaxfed.models.head import head_paths, split_head
from jaxfed.training.local.local_training import Trained
from jaxfed.training.round.client_round import ClientRound, ClientUpdate
from jaxfed.training.round.parts import Classifier, Messages, network_classifier
from jaxfed.training.round.round import federated_training, weighted_mean
from jaxfed.training.server_state import ServerState, whole
from jaxfed.training.specification import Training

Steps = Callable[[ClientRound, nnx.State], Trained]  # (client, start model) -> trained model


class ClientHead(NamedTuple):
    """State of a client: its head, and whether it has trained, bool."""

    head: nnx.State
    has_trained: jax.Array


@method(
    title="FedPer",
    cites="Arivazhagan, Aggarwal, Singh, Choudhary, arXiv 1912.00818",
    leaves="the change of its model's body",
    pseudo_label="none",
)
def fedper(*, training: Training) -> FederatedAlgorithm:
    """FedPer on given labels.

    Args:
        training: the training specification, of a network with a head.

    Raises:
        UsageError: a network without a head.
    """

    def steps(client: ClientRound, start: nnx.State) -> Trained:
        return client.steps(training.loss, start=start)

    return with_own_heads(training, "fedper", steps)


def with_own_heads(training: Training, name: str, steps: Steps) -> FederatedAlgorithm:
    """Return a method whose clients keep their heads and share the body, trained by `steps`.

    Raises:
        UsageError: a network without a head.
    """
    split = partial(split_head, paths=head_paths(training.model, name))

    def body_bytes(parameters: nnx.State) -> int:
        return num_bytes_of(nnx.filter_state(split(parameters)[1], nnx.Param))

    def local_update(client: ClientRound) -> ClientUpdate:
        received_head, _ = split(client.shared.model)
        _, body = split(client.model)
        trained = steps(client, nnx.merge_state(body, client.state.head))
        head, body = split(trained.state)
        return client.update(
            trained._replace(state=nnx.merge_state(body, received_head)),
            client_state=ClientHead(head, client.state.has_trained | (trained.num_steps > 0)),
            sent={"parameters": jnp.int32(body_bytes(client.shared.model))},
        )

    def with_head(state: ServerState, head: nnx.State) -> nnx.State:
        return nnx.merge_state(split(state.model)[1], head)

    plain = network_classifier(training)
    algorithm = federated_training(
        training,
        local_update,
        pseudo_label="none",
        init_client=lambda model, federation, key: ClientHead(split(model)[0], jnp.bool_(False)),
        messages=Messages(download_bytes=body_bytes),
        classifier=Classifier(
            lambda state: with_head(state, mean_head(whole(state.clients))), plain.probabilities
        ),
    )
    probabilities = jax.jit(plain.probabilities)

    def evaluate_clients(state: ServerState, federation: Federation) -> Metrics:
        def labels_by(client: int, points: np.ndarray) -> np.ndarray:
            head = jax.tree.map(lambda leaf: leaf[client], state.clients.head)
            by_own = partial(probabilities, with_head(state, head))
            shares = in_batches(by_own, federation.x[points], rows_at_once())
            return np.asarray(shares).argmax(axis=1)

        return over_own_points(labels_by, federation, np.asarray(state.clients.has_trained))

    evaluate = with_attributes(algorithm.evaluate, of_clients=evaluate_clients)
    return algorithm._replace(evaluate=evaluate)


@jax.jit
def mean_head(heads: ClientHead) -> nnx.State:
    """Mean of the heads [M, ...] of clients that have trained; of all clients if none has."""
    trained = heads.has_trained | ~jnp.any(heads.has_trained)
    mean: nnx.State = weighted_mean(heads.head, trained.astype(jnp.float32))
    return mean
