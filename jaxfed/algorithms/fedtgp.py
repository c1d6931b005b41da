"""FedTGP: FedProto with global prototypes that the server trains.

Clients do as in FedProto (`jaxfed.algorithms.fedproto`): client k sends the class means c_k^c of its
features, and trains towards global prototypes c^c. These are a small network's outputs for trainable vectors:

    c^c = F(v_c),   v_c in R^D,   F: a hidden layer of D units with ReLU, and a linear layer to D

After each round the server trains v and F further, on the c_k^c of this round:

    q^c = mean of c_k^c over the clients that sent one
    delta = min( max_{c, c'} |q^c - q^c'|, margin_threshold )
    a_j = |c_k^c - F(v_j)|,  with delta added where j = c
    loss = mean over (k, c) of  -log [ exp(-a_c) / sum_j exp(-a_j) ]

It takes `server_epochs` epochs of SGD steps at `server_rate`, over mini-batches of `server_batch_size`
prototypes. The sum is over all classes. Clients receive c^c, and predict class c, once a client has sent a
prototype of it. All else is FedProto's: the networks' start, and how quality is measured.

Said otherwise in the authors' code:

  * Its delta takes, in place of the largest distance between two class means, the largest distance of a class
    mean to the nearest other.
  * It uses the prototypes of all classes, of those that nobody has, too.
  * Its server trains at the clients' learning rate, with their batch size. The defaults here are those of its
    script: 0.01 and 10, a weight of 10, and 100 epochs.

A client receives the prototypes c^c, with C bits.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.algorithms.fedproto import UNREAD, Memory, Sent, prototype_training
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import method
from jaxfed.models.mlp import mlp
from jaxfed.models.model import Model
from jaxfed.settings import Count, CountOrZero, NotNegative
from jaxfed.training.pseudo_labels.prototypes import Prototypes, euclidean, joint_means
from jaxfed.training.specification import Training


class Maker(NamedTuple):
    """The trained numbers: v, float32 [C, D], and the parameters of F."""

    vectors: jax.Array
    network: nnx.State


@method(
    title="FedTGP",
    cites="Zhang, Liu, Hua, Cao, AAAI 2024",
    leaves=(
        "the mean features of each class that it has examples of, and C bits for which these are"
    ),
    pseudo_label="none",
    unread=UNREAD,
)
def fedtgp(
    *,
    training: Training,
    prototype_weight: NotNegative = 10.0,
    margin_threshold: NotNegative = 100.0,
    server_epochs: CountOrZero = 100,
    server_rate: NotNegative = 0.01,
    server_batch_size: Count = 10,
) -> FederatedAlgorithm:
    """FedTGP on given labels.

    Args:
        training: the training specification, of a network with a head.
        prototype_weight: weight of the distance to the global prototypes in the clients' loss.
        margin_threshold: the largest margin; 0: no margin.
        server_epochs: epochs of the server over the round's prototypes.
        server_rate: learning rate of the server's SGD.
        server_batch_size: prototypes in one of its steps.

    Raises:
        UsageError: a network without a head.

    Cost: FedProto's. The server computes `server_epochs` passes through F for C vectors a mini-batch.
    """

    def renewed(memory: Memory, client_id: jax.Array, sent: Sent, key: jax.Array) -> Memory:
        shown = sent.prototypes
        maker = trained(
            memory.maker,
            shown,
            client_id,
            key,
            margin=margin(shown, margin_threshold),
            epochs=server_epochs,
            rate=server_rate,
            batch_size=server_batch_size,
        )
        is_present = memory.prototypes.is_present | jnp.any(shown.is_present, axis=0)
        center = jnp.where(is_present[:, None], made(maker), 0)
        return Memory(Prototypes(center, is_present), maker)

    return prototype_training(
        training, "fedtgp", prototype_weight, renewed, first_maker, needs_counts=False
    )


def first_maker(num_classes: int, size: int, key: jax.Array) -> Maker:
    """Return v and F before the first round."""
    vector_key, network_key = jax.random.split(key)
    return Maker(
        jax.random.normal(vector_key, (num_classes, size)), _network(size).init(network_key)
    )


def made(maker: Maker) -> jax.Array:
    """The global prototypes F(v_c), float32 [C, D]."""
    return _network(maker.vectors.shape[-1]).apply(maker.network, maker.vectors)


def _network(size: int) -> Model:
    return mlp((size,), size, hidden=(size,))


def margin(shown: Prototypes, threshold: float) -> jax.Array:
    """delta, float32 scalar, of the prototypes [K, C, D] of a round; 0 with fewer than two classes."""
    mean = joint_means(shown)
    both = mean.is_present[:, None] & mean.is_present[None]
    distance = jnp.where(both & ~jnp.eye(len(both), dtype=bool), euclidean(*2 * (mean.center,)), 0)
    return jnp.minimum(jnp.max(distance), threshold)


def contrastive_loss(
    maker: Maker, center: jax.Array, label: jax.Array, delta: jax.Array
) -> jax.Array:
    """The server's loss, float32 [n], of prototypes [n, D] of classes int32 [n]."""
    distance = euclidean(center, made(maker))
    is_own = jax.nn.one_hot(label, distance.shape[-1], dtype=bool)
    logits = -jnp.where(is_own, distance + delta, distance)
    return jax.nn.logsumexp(logits, axis=-1) - jnp.sum(jnp.where(is_own, logits, 0), axis=-1)


def trained(
    maker: Maker,
    shown: Prototypes,
    client_id: jax.Array,
    key: jax.Array,
    *,
    margin: jax.Array,
    epochs: int,
    rate: float,
    batch_size: int,
) -> Maker:
    """Return v and F after the server's epochs; as they are if no client has sent a prototype.

    Args:
        maker: v and F.
        shown: c_k^c, [K, C, D].
        client_id: int32 [K].
        key: typed; the order of an epoch depends on it and on the clients' numbers alone.
        margin: delta.
        epochs, rate, batch_size: as the keywords of `fedtgp`.
    """
    num_classes = shown.is_present.shape[1]
    center = shown.center.reshape(-1, shown.center.shape[-1])
    label = jnp.tile(jnp.arange(num_classes), len(shown.is_present))
    is_present = shown.is_present.reshape(-1)
    number = jnp.sum(is_present, dtype=jnp.int32)

    def loss(maker: Maker, rows: jax.Array, used: jax.Array) -> jax.Array:
        each = contrastive_loss(maker, center[rows], label[rows], margin)
        return jnp.sum(jnp.where(used, each, 0)) / jnp.sum(used).astype(jnp.float32)

    def epoch(count: jax.Array, maker: Maker) -> Maker:
        epoch_key = jax.random.fold_in(key, count)
        keys = jax.vmap(jax.random.fold_in, in_axes=(None, 0))(epoch_key, client_id)
        draws = jax.vmap(lambda class_key: jax.random.uniform(class_key, (num_classes,)))(
            keys
        ).reshape(-1)
        order = jnp.argsort(jnp.where(is_present, draws, jnp.inf))

        def step(index: jax.Array, maker: Maker) -> Maker:
            positions = index * batch_size + jnp.arange(batch_size)
            rows = order[positions]  # the last one again in place of those that there are not
            slope = jax.grad(loss)(maker, rows, positions < number)
            return jax.tree.map(lambda value, change: value - rate * change, maker, slope)

        return jax.lax.fori_loop(0, -(-number // batch_size), step, maker)

    after: Maker = jax.lax.fori_loop(0, epochs, epoch, maker)
    return after
