"""FedPer (Arivazhagan, Aggarwal, Singh, Choudhary, arXiv 1912.00818): a shared body, a head for each client.

With body w and head v_k of client k:

    (w_k, v_k) <- (w, v_k);   E epochs of  (w_k, v_k) <- (w_k, v_k) - eta grad l(w_k, v_k; batch)
    w <- w + mean_k (w_k - w) as FedAvg;      v_k stays at the client

FedRep (Collins, Hassani, Mokhtari, Shakkottai, ICML 2021) trains the head first, then the body:

    w_k <- w;   E_v epochs of  v_k <- v_k - eta grad_v l(w_k, v_k; batch)
                E epochs of    w_k <- w_k - eta grad_w l(w_k, v_k; batch)

All v_k start from the initial network's head, the part that turns features into logits
(`jaxfed.models.head`). In FedPer's paper more of the last layers may stay at the client.

Neither method gives a new client a head. So a central test set is evaluated with the mean of the heads of
clients that have trained; only a simulation can compute it, since the server receives no heads. Accuracy on
clients' unlabeled points (`mean_client_unlabeled_accuracy` and the like) corresponds to the papers' numbers:
each client's head, with its own statistics if they are "local", is evaluated on that client's points. Clients
that have not trained do not count there.

Differences from the papers: there all examples have labels; here a pseudo-labeler may supply them. Both
methods run in simulation only: on a network no party has all heads, which a central test set needs.

Leaves a client: the change of its model's body. It receives the body.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics
from jaxfed.federation.clients import Federation
from jaxfed.federation.communication import num_bytes_of
from jaxfed.federation.evaluate import over_clients
from jaxfed.federation.method import method
from jaxfed.kernels.devices.padding import in_batches, rows_at_once
from jaxfed.models.head import Path, head_paths, split_head
from jaxfed.settings import Count
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.local_update import ClientUpdate, Optimizer, Trained
from jaxfed.training.round.client_round import Client, Shared, finished, local_steps
from jaxfed.training.round.round import federated_training
from jaxfed.training.round.server_hooks import Classifier, Messages, network_classifier
from jaxfed.training.server.aggregate import weighted_mean
from jaxfed.training.server.client_rows import whole
from jaxfed.training.server.server_state import ServerState, cohort_statistics, with_statistics
from jaxfed.training.specification import Training

_BY_SERVER = ("network", "teacher")  # sources that label by the server's head

# broadcast, client, start model, key, batches -> the trained model
Steps = Callable[[Shared, Client, nnx.State, jax.Array, Batches], Trained]


class Own(NamedTuple):
    """State of a client: its head, and whether it has trained, bool."""

    head: nnx.State
    has_trained: jax.Array


@method()
def fedper(*, training: Training, pseudo_label: str = "none") -> FederatedAlgorithm:
    """FedPer on the labels that a pseudo-labeler finds.

    Args:
        training: the training specification, of a network with a head.
        pseudo_label: name of the pseudo-labeler, not "network" or "teacher"; "none": given labels alone.

    Raises:
        UsageError: a network without a head, or labels by the server's network.
    """

    def steps(
        shared: Shared, client: Client, start: nnx.State, key: jax.Array, batches: Batches
    ) -> Trained:
        return local_steps(
            *(training, shared, client, key), loss=training.loss, batches=batches, start=start
        )

    return _with_own_heads(training, "fedper", steps, pseudo_label)


@method(weighting="uniform")
def fedrep(
    *, training: Training, head_epochs: Count = 10, pseudo_label: str = "none"
) -> FederatedAlgorithm:
    """FedRep (Collins, Hassani, Mokhtari, Shakkottai, ICML 2021): each client trains its head, then the body.

    Args:
        training: the training specification, of a network with a head; its epochs are those of the body, E.
        head_epochs: E_v, epochs that train the head alone.
        pseudo_label: name of the pseudo-labeler, not "network" or "teacher"; "none": given labels alone.

    Raises:
        UsageError: a number out of range, a network without a head, or labels by the server's network.
    """
    paths = head_paths(training.model, "fedrep")
    head_alone, body_alone = (
        training.with_local(optimizer=_moving(part, training.local.optimizer, paths))
        for part in ("head", "body")
    )

    def steps(
        shared: Shared, client: Client, start: nnx.State, key: jax.Array, batches: Batches
    ) -> Trained:
        head_key, body_key = jax.random.split(key)
        first = local_steps(
            *(head_alone, shared, client, head_key),
            loss=training.loss,
            batches=replace(batches, epochs=head_epochs, steps=0),
            start=start,
        )
        if client.optimizer_state is not None:
            client = client._replace(optimizer_state=first.optimizer_state)
        return local_steps(
            *(body_alone, shared, client, body_key),
            loss=training.loss,
            batches=batches,
            start=first.state,
        )

    return _with_own_heads(head_alone, "fedrep", steps, pseudo_label)


def _moving(part: str, plain: Optimizer, paths: frozenset[Path]) -> Optimizer:
    """The optimizer applied to "head" or "body" alone; the other part and its state stay unchanged."""

    def split(parameters: Any) -> dict[str, Any]:
        return dict(zip(("head", "body"), split_head(parameters, paths), strict=True))

    def of_rate(rate: jax.Array) -> optax.GradientTransformation:
        optimizer = plain(rate)

        def init(parameters: Any) -> dict[str, Any]:
            return {name: optimizer.init(own) for name, own in split(parameters).items()}

        def update(gradient: Any, state: Any, parameters: Any) -> tuple[Any, Any]:
            own = split(parameters)
            updates = jax.tree.map(jnp.zeros_like, own)
            updates[part], moved = optimizer.update(split(gradient)[part], state[part], own[part])
            return nnx.merge_state(*updates.values()), {**state, part: moved}

        return optax.GradientTransformation(init, update)

    return of_rate


def _with_own_heads(
    training: Training, name: str, steps: Steps, pseudo_label: str
) -> FederatedAlgorithm:
    if pseudo_label in _BY_SERVER:
        raise UsageError(
            "the server has no trained head to label with",
            key="pseudo_label",
            owner=name,
            value=pseudo_label,
            allowed="use 'xclp', or another source of labels",
        )
    split = partial(split_head, paths=head_paths(training.model, name))

    def body_bytes(parameters: nnx.State) -> int:
        return num_bytes_of(nnx.filter_state(split(parameters)[1], nnx.Param))

    def local_update(
        shared: Shared, client: Client, key: jax.Array, *, batches: Batches
    ) -> ClientUpdate:
        received_head, _ = split(shared.model)
        _, body = split(with_statistics(shared.model, client.statistics))
        start = nnx.merge_state(body, client.state.head)
        trained = steps(shared, client, start, key, batches)
        head, body = split(trained.state)
        sent = trained._replace(state=nnx.merge_state(body, received_head))
        update = finished(training, shared, client, sent)
        return update._replace(
            client_state=Own(head, client.state.has_trained | (trained.num_steps > 0)),
            sent={"parameters": jnp.int32(body_bytes(shared.model))},
        )

    def with_head(state: ServerState, head: nnx.State) -> nnx.State:
        return nnx.merge_state(split(state.model)[1], head)

    plain = network_classifier(training)
    algorithm = federated_training(
        training,
        local_update,
        pseudo_label=pseudo_label,
        init_client=lambda model, federation: Own(split(model)[0], jnp.bool_(False)),
        messages=Messages(download_bytes=body_bytes),
        classifier=Classifier(
            lambda state: with_head(state, mean_head(whole(state.clients))), plain.probabilities
        ),
    )
    probabilities = jax.jit(plain.probabilities)

    def evaluate_clients(state: ServerState, federation: Federation) -> Metrics:
        unlabeled = [
            points if has_trained else points[:0]
            for points, has_trained in zip(
                federation.partition.unlabeled,
                np.asarray(state.clients.has_trained).tolist(),
                strict=True,
            )
        ]
        label = [np.zeros(0, np.int64)]
        kept = state.clients.head, cohort_statistics(state, np.arange(federation.num_clients))
        for client, points in enumerate(unlabeled):
            if len(points):
                own = jax.tree.map(lambda leaf, client=client: leaf[client], kept)
                by_own = partial(probabilities, with_statistics(with_head(state, own[0]), own[1]))
                found = in_batches(by_own, federation.x[points], rows_at_once())
                label.append(np.asarray(found).argmax(axis=1))
        owner = np.repeat(np.arange(federation.num_clients), list(map(len, unlabeled)))
        truth = federation.y[np.concatenate(unlabeled)]
        return over_clients(
            "unlabeled", np.concatenate(label), truth, owner, federation.num_clients
        )

    return algorithm._replace(evaluate_clients=evaluate_clients, views=None, sides=None)


@jax.jit
def mean_head(own: Own) -> nnx.State:
    """Mean of the heads [M, ...] of clients that have trained; of all clients if none has."""
    trained = own.has_trained | ~jnp.any(own.has_trained)
    mean: nnx.State = weighted_mean(own.head, trained.astype(jnp.float32))
    return mean
