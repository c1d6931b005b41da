"""FedIRM: on unlabeled examples, models match the class relations of labeled ones.

A relation matrix has a row for each class c: the mean logits of its examples, softened.

    M_c = softmax(v_c / tau),   v_c = mean of f(x) over examples of class c

After training, a client sends M^l: the rows of the classes of its labels, by its trained model on examples as
they are. For each class the server stores the mean over clients in the last round that had the class. A
client receives these means, below called M^l too, and in round t = 0, 1, ... trains on

    l(f(a(x)), y) over B_L  +  lambda(t) [ L_c + L_IRM ]
    L_c   = 1/|B_U| sum |softmax f(a(u)) - softmax f'(a'(u))|^2
    L_IRM = mean_c [ KL(M^l_c, M^u_c) + KL(M^u_c, M^l_c) ],   lambda(t) = weight exp(-5 (1 - min(t / R, 1))^2)

a, a' are two draws of the augmentation. f' is the client's mean teacher, a moving average of its models over
all rounds: in step n = 1, 2, ... the teacher keeps the weight min(1 - 1/n, average). M^u is over the batch's
reliable unlabeled examples, with the logits f(a(u)). p is the mean prediction of T passes with dropout; an
example is reliable if the entropy of p is below h, and its class is argmax p. Classes and M^l are held fixed.

Details: the mean has equal weights, as in the code. A class that either matrix lacks is left out of
L_IRM. Without dropout and BatchNorm all passes are equal, and p is the prediction. In the paper a client has
labels for all of its examples or for none; here it may have labels for some.

Differences from the authors' code:

  * The code's row of a class without examples is uniform, and is matched too. Its M^l is the mean over a
    round's batches, rows of absent classes included.
  * The code's example is reliable if its entropy is below 2.0 and its confidence at least 0.3. With five
    classes the first always holds (log 5 = 1.6). T is 11, and the class is the current prediction's.
  * The code halves L_IRM, and its lambda is 15 times larger. Clients without labels start after 20 rounds
    (`training.labeled_only_rounds`).
  * The code's p is the softmax of the mean logits, not the mean of probabilities.
  * The code's cross-entropy has smoothed labels, and is taken over both views. Each client keeps its Adam's
    moments over rounds.

The teacher stays at the client.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clients import Federation
from jaxfed.federation.method import method
from jaxfed.models.model import Model
from jaxfed.settings import Count, CountOrZero, NotNegative, Positive, Share
from jaxfed.training.local import losses
from jaxfed.training.local.batches import ClientData, usable
from jaxfed.training.local.local_training import client_logits
from jaxfed.training.local.losses import Batch, Loss, ValueAndState
from jaxfed.training.mean_teacher import Teacher, mean_teacher_steps, ramp_up
from jaxfed.training.pseudo_labels.prototypes import (
    Prototypes,
    class_means,
    joint_means,
    message_bytes,
)
from jaxfed.training.round.client_round import ClientRound, ClientUpdate
from jaxfed.training.round.parts import Messages, UploadStore, sent_to_all
from jaxfed.training.round.round import federated_training
from jaxfed.training.server_state import together
from jaxfed.training.specification import Training
from jaxfed.xclp.steps.prediction import entropy


@method(
    title="FedIRM",
    cites="Liu, Yang, Dou, Heng, MICCAI 2021",
    leaves=(
        "its model's change, and for each class of its labels a row of C probabilities, with C bits"
    ),
    on_network=True,
    pseudo_label="unlabeled",
    weighting="uniform",
)
def fedirm(
    *,
    training: Training,
    consistency_weight: NotNegative = 1.0,
    rampup_rounds: CountOrZero = 30,
    average: Share = 0.99,
    temperature: Positive = 2.0,
    max_entropy: NotNegative = math.log(2),
    passes: Count = 8,
) -> FederatedAlgorithm:
    """FedIRM with labels at clients.

    Args:
        training: the training specification.
        consistency_weight: weight of both terms of unlabeled examples after the ramp-up.
        rampup_rounds: R, rounds until the weight is full; 0: no ramp-up.
        average: largest weight that the teacher keeps in a step.
        temperature: tau, which softens the rows of relation matrices.
        max_entropy: h, in nats: examples of lower entropy are reliable. Two equal probabilities have log 2.
        passes: T, the number of passes with dropout.

    Raises:
        UsageError: clients keep their optimizers (`training.client_optimizer`).

    Cost: a step has one forward and backward pass and 1 + T forward passes; a round, one forward pass over
    a client's data. The state has one more model for each client.
    """
    training.local.require_fresh_optimizers(
        "fedirm trains beside a teacher, and keeps no optimizer of both"
    )

    def local_update(client: ClientRound) -> ClientUpdate:
        rounds = client.shared.round.astype(jnp.float32)
        loss = relation_loss(
            training,
            client.received,
            weight=consistency_weight * ramp_up(rounds, rampup_rounds),
            temperature=temperature,
            max_entropy=max_entropy,
            passes=passes,
        )
        trained, teacher = mean_teacher_steps(client, loss, average)
        trained_client = trained.state, client.data, client.key
        relations = client_relations(training.model, *trained_client, temperature)
        return client.update(
            trained,
            client_state=teacher,
            upload=relations,
            sent={"relations": message_bytes(relations)},
        )

    def nothing(model: nnx.State, federation: Federation, key: jax.Array) -> Prototypes:
        del model, key
        size = federation.num_classes
        return Prototypes(jnp.zeros((size, size)), jnp.zeros(size, bool))

    return federated_training(
        training,
        local_update,
        pseudo_label="unlabeled",
        init_client=lambda start, federation, key: Teacher(start, jnp.int32(0)),
        messages=Messages(sent_to_all("relations", lambda memory: memory, message_bytes)),
        hooks=(
            UploadStore(nothing, lambda kept, client_id, sent, *_: _renewed(kept, client_id, sent)),
        ),
    )


def client_relations(
    model: Model, state: nnx.State, data: ClientData, key: jax.Array, temperature: float
) -> Prototypes:
    """M^l of a client's labels, rows [C, C], by a model in evaluation mode; zeros for other classes."""
    logits = client_logits(model, state, data, key, None)
    means = class_means(logits, data.label, usable(data) & data.is_labeled, logits.shape[-1])
    rows = jax.nn.softmax(means.center / temperature)
    return Prototypes(jnp.where(means.is_present[:, None], rows, 0), means.is_present)


def relation_loss(
    training: Training,
    shared: Prototypes,
    *,
    weight: jax.Array | float,
    temperature: float,
    max_entropy: float,
    passes: int,
) -> Loss:
    """The loss on states {online, target}; `shared` is M^l. The target moves in its statistics only."""
    model, local = training.model, training.local

    def loss(state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array) -> ValueAndState:
        del anchor
        first_key, second_key, online_key, target_key, passes_key = jax.random.split(key, 5)
        x = losses.view(local.augment, first_key, batch.x)
        other = losses.view(local.augment, second_key, batch.x)
        logits, online = model.train_apply(state["online"], x, online_key)
        teacher_logits, target = model.train_apply(state["target"], other, target_key)
        logits = logits.astype(jnp.float32)
        difference = jax.nn.softmax(logits) - losses.fixed_softmax(teacher_logits)
        consistency = losses.unlabeled_mean(jnp.sum(jnp.square(difference), axis=-1), batch)

        fixed = jax.lax.stop_gradient(state["online"])  # passes without derivatives

        def add(number: jax.Array, total: jax.Array) -> jax.Array:
            again, _ = model.train_apply(fixed, x, jax.random.fold_in(passes_key, number))
            return total + jax.nn.softmax(again.astype(jnp.float32))

        p = jax.lax.fori_loop(0, passes, add, jnp.zeros_like(logits)) / passes
        is_reliable = batch.used & ~batch.is_labeled & (entropy(p) < max_entropy)
        label = jnp.argmax(p, axis=-1).astype(jnp.int32)
        client_means = class_means(logits, label, is_reliable, logits.shape[-1])
        supervised = losses.labeled_mean(local.pointwise(logits, batch.label), batch)
        value = supervised + weight * (consistency + mismatch(client_means, shared, temperature))
        return value, together(online=online, target=target)

    return loss


def mismatch(client_means: Prototypes, shared: Prototypes, temperature: float) -> jax.Array:
    """L_IRM of mean logits v_c and rows M^l_c: a mean over the classes that both have; 0 without any."""
    log_means = jax.nn.log_softmax(client_means.center / temperature)
    log_shared = jnp.log(jnp.maximum(shared.center, 1e-12))
    both_ways = jnp.sum((shared.center - jnp.exp(log_means)) * (log_shared - log_means), axis=-1)
    return losses.mean_where(both_ways, client_means.is_present & shared.is_present)


@jax.jit
def _renewed(kept: Prototypes, client_id: jax.Array, sent: Prototypes) -> Prototypes:
    """The mean of each class over the clients that sent it; a class that nobody sent stays."""
    is_sent = sent.is_present & (client_id >= 0)[:, None]
    mean = joint_means(sent._replace(is_present=is_sent))
    center = jnp.where(mean.is_present[:, None], mean.center, kept.center)
    return Prototypes(center, mean.is_present | kept.is_present)
