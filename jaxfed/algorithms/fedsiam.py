"""FedSiam: a mean teacher at every client.

Clients train an online network and follow it by a target network (theta_s, theta_t):

    L(theta_s) = mean_{B_L} CE(y, f_{theta_s}(a(x))) + beta J
    J = mean_B d(f_{theta_s}(a(x)), f_{theta_t}(a'(x)))
    theta_s <- theta_s - eta grad L,    theta_t <- alpha theta_t + (1 - alpha) theta_s     (each step)

a, a' are two draws of the augmentation and of dropout, d is the mean squared difference of probabilities.
Both weights ramp up: in round r = 1, 2, ... beta = beta_max exp(-5 (1 - r / R)^2) until r = R;
alpha = min(1 - 1 / (n + 1), alpha_max) in step n = 1, 2, ..., whose earlier rounds count as many steps each
as this one has. The server takes the mean of the online networks and that of the target networks.

Left out are the paper's KL(target || online) as d, for clients that are not iid, and its layer selection
(Section 3.3), which sends only layers of the online network that differ from the target's.

The paper gives beta_max = 10 ("coefficient threshold"), alpha_max = 0.999, five epochs, batches of 10,
SGD with rate 0.01, momentum 0.9, decay 1e-4; not the ramps, which are those of Mean Teacher's code, nor
which network is evaluated: `evaluated`.

XCLP's authors compare with a mean teacher (their flag isMT), trained from scratch, on clients that have
labels only; theirs is

    consistency_weight=100  rampup_rounds=5  average=0.97  supervised_over="batch"  evaluated="online"

with the cross-entropy's sum divided by |B|, labeled or not. What is theirs and not here: a
second head for the consistency term, held to the first by 0.01 of their squared distance; a target that
starts from its own random weights; steps n counted over all clients, one after another.
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import method
from jaxfed.models.model import Model
from jaxfed.settings import CountOrZero, NotNegative, Share
from jaxfed.training import mean_teacher
from jaxfed.training.local.local_training import LocalTraining
from jaxfed.training.local.losses import (
    Batch,
    Loss,
    ValueAndState,
    augmented_logits,
    fixed_softmax,
    mean_where,
)
from jaxfed.training.mean_teacher import Evaluated
from jaxfed.training.round.client_round import ClientRound, ClientUpdate
from jaxfed.training.round.round import federated_training
from jaxfed.training.server_state import together
from jaxfed.training.specification import Training

Over = Literal["labeled", "batch"]


@method(
    title="FedSiam",
    cites="Long, Che, Wang, Ye, Luo, Wu, Xiao, Ma, arXiv 2012.03292",
    leaves="the changes of its two networks",
    on_network=True,
    pseudo_label="unlabeled",
    weighting="uniform",
)
def fedsiam(
    *,
    training: Training,
    consistency_weight: NotNegative = 10.0,
    rampup_rounds: CountOrZero = 10,
    average: Share = 0.999,
    supervised_over: Over = "labeled",
    evaluated: Evaluated = "target",
) -> FederatedAlgorithm:
    """FedSiam with labels at clients.

    Args:
        training: the training specification.
        consistency_weight: beta_max, weight of the consistency term after the ramp-up.
        rampup_rounds: R, rounds until this weight is full; 0 is no ramp-up.
        average: alpha_max, largest weight in [0, 1] that the target network keeps in a step.
        supervised_over: what divides the sum of cross-entropies, |B_L| or |B|.
        evaluated: which network is evaluated and embeds.
    """
    model, plain = training.model, training.local.optimizer
    training = training.with_states(mean_teacher.siamese(model, evaluated), mean_teacher.twins)
    training = training.with_local(optimizer=lambda rate: mean_teacher.online_only(plain(rate)))

    def local_update(client: ClientRound) -> ClientUpdate:
        rounds = client.shared.round.astype(jnp.float32)
        weight = consistency_weight * mean_teacher.ramp_up(rounds + 1, rampup_rounds)

        def follow(parameters: nnx.State, step: jax.Array, num_steps: jax.Array) -> nnx.State:
            number = rounds * num_steps.astype(jnp.float32) + step.astype(jnp.float32) + 1
            return mean_teacher.followed(parameters, jnp.minimum(1 - 1 / (number + 1), average))

        loss = siamese_loss(model, training.local, weight, supervised_over)
        return client.update(client.steps(loss, after_step=follow))

    return federated_training(training, local_update, pseudo_label="unlabeled")


def siamese_loss(
    model: Model, local: LocalTraining, consistency_weight: jax.Array | float, supervised_over: Over
) -> Loss:
    """L(theta_s) of states {online, target}; the target is held fixed, its running statistics move."""

    def loss(state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array) -> ValueAndState:
        del anchor

        def seen(name: str, key: jax.Array) -> ValueAndState:
            logits, moved = augmented_logits(model, state[name], batch.x, key, local.augment)
            return logits.astype(jnp.float32), moved

        online_key, target_key = jax.random.split(key)
        logits, online = seen("online", online_key)
        target_logits, target = seen("target", target_key)
        cross_entropy = jnp.where(batch.is_labeled, local.pointwise(logits, batch.label), 0)
        members = batch.used if supervised_over == "batch" else batch.used & batch.is_labeled
        supervised = mean_where(cross_entropy, members)
        difference = jax.nn.softmax(logits) - fixed_softmax(target_logits)
        distance = jnp.mean(jnp.square(difference), axis=-1)
        value = supervised + consistency_weight * mean_where(distance, batch.used)
        return value, together(online=online, target=target)

    return loss
