"""FedProto: clients keep networks and share prototypes.

Client k has a network f_k of its own; z_k(x) in R^D are its features. n_kc of its examples have class c.

    c_k^c = 1/n_kc sum_{y_i = c} z_k(x_i)                                        after its local steps
    c^c  <- sum_k n_kc c_k^c / sum_k n_kc          over the round's clients that have class c
    loss  = 1/|B| sum_{i in B} [ l(f_k(x_i), y_i) + prototype_weight / D |z_k(x_i) - c^{y_i}|^2 ]
    label = argmin_c |z_k(x) - c^c|                among the classes that have a prototype

A class without a prototype adds nothing to the loss. All networks begin as one, the network that the run
starts from. Running statistics stay at the client too.

Examples without a label take no part.

Quality is measured as for other methods with a model at each client (`jaxfed.learners.evaluation`): the
test accuracy is the mean over clients of their own networks' accuracy. A client that has not trained yet is
wrong everywhere. Probabilities are softmax_c(-|z_k(x) - c^c|).

Said otherwise in the paper, or in its authors' code:

  * The paper's c^c has a further factor, one over the number of these clients, which shortens it. The code's
    c^c is the plain mean of the clients' c_k^c.
  * The paper pulls the mean c_k^c to c^c, by their distance. The code pulls every example, as here.
  * The code's c_k^c are means over the last epoch's batches, while the network moves.
  * In the paper all clients take part in each round; here a class that no client of a round has keeps its
    prototype.
  * The paper's networks may differ, as long as D is the same. Here all clients have one architecture.
  * The code compares with the prototypes of a client's own classes alone, since a client is tested on these.

It runs in simulation only: on a network no party has all clients' networks, which a central test set needs.

A client receives the prototypes c^c, with C bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clients import Federation
from jaxfed.federation.method import method
from jaxfed.learners.evaluation import ClientModels, judged_by
from jaxfed.learners.learner import SPOILED
from jaxfed.learners.networks import answering, largest, network
from jaxfed.models.head import head_paths
from jaxfed.models.model import Model
from jaxfed.settings import NotNegative
from jaxfed.training.local.batches import ClientData, class_counts, usable
from jaxfed.training.local.local_training import client_logits
from jaxfed.training.local.losses import Batch, Loss, ValueAndState, mean_where, view
from jaxfed.training.pseudo_labels.prototypes import (
    Prototypes,
    class_means,
    embedding_size,
    euclidean,
    message_bytes,
    nothing_shown,
)
from jaxfed.training.round.client_round import ClientRound, ClientUpdate
from jaxfed.training.round.parts import Evaluation, Messages, UploadStore, sent_to_all
from jaxfed.training.round.round import federated_training
from jaxfed.training.server_state import ServerState, stacked_for
from jaxfed.training.specification import Training

UNREAD = ("aggregate", "batch_statistics")  # clients' changes are 0, and move nothing


class ClientNetwork(NamedTuple):
    """State of a client: its network, and whether it has trained, bool."""

    model: nnx.State
    has_trained: jax.Array


class Sent(NamedTuple):
    """Upload of a client: its prototypes [C, D], and n_kc, float32 [C]."""

    prototypes: Prototypes
    examples: jax.Array


class Memory(NamedTuple):
    """State of the server: the global prototypes [C, D], and what it makes them by."""

    prototypes: Prototypes
    maker: Any


# Memory, client_id int32 [K] (-1 is padding), `Sent` [K, ...], key -> memory; jit-traceable.
Renew = Callable[[Memory, jax.Array, Sent, jax.Array], Memory]


@method(
    title="FedProto",
    cites="Tan, Long, Liu, Zhou, Lu, Jiang, Zhang, AAAI 2022",
    leaves=(
        "the mean features of each class that it has examples of, their number, and C bits for "
        "which classes these are"
    ),
    pseudo_label="none",
    unread=UNREAD,
)
def fedproto(*, training: Training, prototype_weight: NotNegative = 1.0) -> FederatedAlgorithm:
    """FedProto on given labels.

    Args:
        training: the training specification, of a network with a head.
        prototype_weight: weight of the distance to the global prototypes; 0: each client trains alone.

    Raises:
        UsageError: a network without a head.

    Cost: FedAvg's, and in each round one forward pass over a client's data. The state has a network for
    each client.
    """
    return prototype_training(training, "fedproto", prototype_weight, with_means, needs_counts=True)


def with_means(memory: Memory, client_id: jax.Array, sent: Sent, key: jax.Array) -> Memory:
    """The memory with c^c, the clients' prototypes weighted by n_kc."""
    del client_id, key  # padding has no examples
    total = jnp.sum(sent.examples, axis=0)
    mean = jnp.einsum("kc,kcd->cd", sent.examples, sent.prototypes.center, precision="highest")
    is_new = total > 0
    mean /= jnp.where(is_new, total, 1)[:, None]
    before = memory.prototypes
    center = jnp.where(is_new[:, None], mean, before.center)
    return memory._replace(prototypes=Prototypes(center, is_new | before.is_present))


def prototype_training(
    training: Training,
    name: str,
    prototype_weight: float,
    renewed: Renew,
    first: Callable[[int, int, jax.Array], Any] = lambda num_classes, size, key: (),
    *,
    needs_counts: bool,
) -> FederatedAlgorithm:
    """Build a method whose clients keep their networks and share prototypes.

    Args:
        training: the training specification.
        name: the method's.
        prototype_weight: weight of the distance to the global prototypes in the clients' loss.
        renewed: the server's memory after a round.
        first: number of classes C, size of features D, key -> the first `Memory.maker`.
        needs_counts: True if clients send n_kc.
    """
    head_paths(training.model, name)
    send = sent_to_all("prototypes", lambda memory: memory.prototypes, message_bytes)
    renew = jax.jit(renewed)

    def create(state: nnx.State, federation: Federation, key: jax.Array) -> Memory:
        sizes = federation.num_classes, embedding_size(training.model, state, federation)
        nothing = jax.tree.map(lambda leaf: leaf[0], nothing_shown(1, *sizes))
        return Memory(nothing, first(*sizes, key))

    def update(
        memory: Memory, client_id: jax.Array, sent: Sent, rounds: jax.Array, key: jax.Array, _: Any
    ) -> Memory:
        return renew(memory, client_id, sent, key)

    def local_update(client: ClientRound) -> ClientUpdate:
        loss = prototype_loss(training, client.received, prototype_weight)
        trained = client.steps(loss, start=client.state.model)
        num_classes = len(client.received.is_present)
        sent = own_prototypes(training.model, trained.state, client.data, client.key, num_classes)
        num_bytes = message_bytes(sent.prototypes)
        if needs_counts:
            num_bytes += 4 * jnp.sum(sent.prototypes.is_present, dtype=jnp.int32)
        return client.update(
            trained._replace(state=client.shared.model),
            client_state=ClientNetwork(
                trained.state, client.state.has_trained | (trained.num_steps > 0)
            ),
            upload=sent,
            sent={"prototypes": num_bytes},
        )

    algorithm = federated_training(
        training,
        local_update,
        pseudo_label="none",
        init_client=lambda model, federation, key: ClientNetwork(model, jnp.bool_(False)),
        messages=Messages(send, shares_model=False),
        hooks=(UploadStore(create, update),),
    )
    return algorithm._replace(**_judged_by_prototypes(training)._asdict())


def prototype_loss(training: Training, prototypes: Prototypes, prototype_weight: float) -> Loss:
    """The loss at the top of this file; `prototypes` are the global ones."""
    model, local = training.model, training.local

    def loss(state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array) -> ValueAndState:
        del anchor
        augment_key, model_key = jax.random.split(key)
        x = view(local.augment, augment_key, batch.x)
        features, moved = model.train_features(state, x, model_key)
        value = local.pointwise(model.head(state, features), batch.label)
        difference = features.astype(jnp.float32) - prototypes.center[batch.label]
        distance = jnp.mean(jnp.square(difference), axis=-1)
        value += prototype_weight * jnp.where(prototypes.is_present[batch.label], distance, 0)
        return mean_where(value, batch.used), moved

    return loss


def own_prototypes(
    model: Model, state: nnx.State, data: ClientData, key: jax.Array, num_classes: int
) -> Sent:
    """The mean features of each class of a client's examples, by its network in evaluation mode."""
    features = client_logits(model._replace(apply=model.features), state, data, key, None)
    those = data.label, usable(data), num_classes
    return Sent(class_means(features, *those), class_counts(*those))


class _Networks(NamedTuple):
    """Networks in the form that `answering` reads: each is a client's, together with the prototypes."""

    model: tuple[nnx.State, Prototypes]
    fits: jax.Array


def _judged_by_prototypes(training: Training) -> Evaluation:
    """The evaluation of clients' networks that classify by the nearest prototype."""
    model = training.model

    def by_distance(classifier: Any, x: jax.Array) -> jax.Array:
        state, prototypes = classifier
        logits = -euclidean(model.features(state, x).astype(jnp.float32), prototypes.center)
        # Finite, as `answering` takes other logits for a network that has failed.
        return jnp.where(prototypes.is_present, logits, jnp.finfo(jnp.float32).min)

    using = Training(model._replace(apply=by_distance), execution=training.execution)
    learner = network(training=training)._replace(
        predict=answering(using, largest, -1, SPOILED),
        predict_proba=answering(using, jax.nn.softmax, 0, np.nan),
        scores=None,
    )

    def read(state: ServerState) -> ClientModels:
        clients, prototypes = state.clients, state.memory.prototypes
        num_clients = len(clients.has_trained)
        networks = clients.model, stacked_for(num_clients, prototypes)
        models = _Networks(networks, jnp.asarray(clients.has_trained, jnp.int32))
        return ClientModels(models, num_clients, len(prototypes.is_present))

    return judged_by(learner, read)
