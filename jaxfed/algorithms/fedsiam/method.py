"""FedSiam: a mean teacher at every client.

Clients train an online network and follow it by a target network (theta_s, theta_t):

    L(theta_s) = mean_{B_L} CE(y, f_{theta_s}(a(x))) + beta J
    J = mean_B d(f_{theta_s}(a(x)), f_{theta_t}(a'(x)))
    theta_s <- theta_s - eta grad L,    theta_t <- alpha theta_t + (1 - alpha) theta_s     (each step)

a, a' are two draws of the augmentation and of dropout, d is the mean squared difference of probabilities
(for iid clients) or KL(target || online) (for others). Both weights ramp up: in round r = 1, 2, ...
beta = beta_max exp(-5 (1 - r / R)^2) until r = R; alpha = min(1 - 1 / (n + 1), alpha_max) in step n = 1, 2,
..., whose earlier rounds count as many steps each as this one has. The server takes the mean of the online
networks and that of the target networks.

Layer selection (Section 3.3, `jaxfed.algorithms.fedsiam.layer_selection`): layers of the online network that
hardly differ from the target's are not sent, and the server takes the target's. `upload_quantile` is tau, 0
sends all; `upload_rounds` is phi. The paper's schedules, which change tau over rounds, are left out.

The paper gives beta_max = 10 ("coefficient threshold"), alpha_max = 0.999, five epochs, batches of 10,
SGD with rate 0.01, momentum 0.9, decay 1e-4; not the ramps, which are those of Mean Teacher's code, nor
which network is evaluated: `evaluated`.

XCLP's authors compare with a mean teacher (their flag isMT), trained from scratch, on clients that have
labels only; theirs is

    consistency_weight=100  rampup_rounds=5  average=0.97  supervised_over="batch"  evaluated="online"

with no layer selection, and the cross-entropy's sum divided by |B|, labeled or not. What is theirs and
not here: a second head for the consistency term, held to the first by 0.01 of their squared distance;
a target that starts from its own random weights; steps n counted over all clients, one after another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.algorithms.fedsiam import layer_selection
from jaxfed.algorithms.fedsiam.layer_selection import Measured
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import method
from jaxfed.settings import Count, CountOrZero, NotNegative, Share
from jaxfed.training.local import losses
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.local_update import AfterStep, ClientUpdate
from jaxfed.training.local.losses import Augment, Batch, Loss, Pointwise
from jaxfed.training.mean_teacher import (
    Evaluated,
    followed,
    online_only,
    ramp_up,
    siamese,
    twins,
)
from jaxfed.training.round.client_round import Client, Shared, finished, local_steps
from jaxfed.training.round.round import federated_training
from jaxfed.training.round.server_hooks import Messages
from jaxfed.training.server.server_state import together
from jaxfed.training.specification import Training

if TYPE_CHECKING:
    from jaxfed.models import Model

Consistency = Literal["mse", "kl"]
Over = Literal["labeled", "batch"]


@method(
    title="FedSiam",
    cites="Long, Che, Wang, Ye, Luo, Wu, Xiao, Ma, arXiv 2012.03292",
    leaves="the changes of its target network and of selected layers of its online network",
    on_network=True,
    pseudo_label="unlabeled",
    weighting="uniform",
)
def fedsiam(
    *,
    training: Training,
    consistency: Consistency = "mse",
    consistency_weight: NotNegative = 10.0,
    rampup_rounds: CountOrZero = 10,
    average: Share = 0.999,
    supervised_over: Over = "labeled",
    upload_quantile: Share = 0.0,
    upload_rounds: Count = 3,
    evaluated: Evaluated = "target",
) -> FederatedAlgorithm:
    """FedSiam with labels at clients.

    Args:
        training: the training specification.
        consistency: d, distance of the networks' predictions: "mse" for iid clients, "kl" for others.
        consistency_weight: beta_max, weight of the consistency term after the ramp-up.
        rampup_rounds: R, rounds until this weight is full; 0 is no ramp-up.
        average: alpha_max, largest weight in [0, 1] that the target network keeps in a step.
        supervised_over: what divides the sum of cross-entropies, |B_L| or |B|.
        upload_quantile: tau in [0, 1]: layers below this quantile of divergence are not sent; 0 sends all.
        upload_rounds: phi >= 1, rounds whose measurements make the quantile.
        evaluated: which network is evaluated and embeds.

    Raises:
        UsageError: a value that is not allowed.
    """
    plain, optimizer = training.model, training.local.optimizer
    training = training.with_states(siamese(plain, evaluated), twins)
    training = training.with_local(optimizer=lambda rate: online_only(optimizer(rate)))

    def local_update(
        shared: Shared, client: Client, key: jax.Array, *, batches: Batches
    ) -> ClientUpdate:
        rounds = shared.round.astype(jnp.float32)
        loss = siamese_loss(
            plain,
            consistency_weight * ramp_up(rounds + 1, rampup_rounds),
            consistency,
            supervised_over,
            augment=training.local.augment,
            pointwise=training.local.pointwise,
        )
        trained = local_steps(
            training,
            shared,
            client,
            key,
            loss=loss,
            batches=batches,
            after_step=moving_average(average, rounds),
        )
        divergence = layer_selection.layer_divergence(trained.state)
        is_sent = divergence >= client.received.threshold
        state, sent = layer_selection.selected(trained.state, is_sent)
        update = finished(training, shared, client, trained._replace(state=state))
        return update._replace(
            client_state=Measured(divergence, client.received.round),
            sent={"parameters": sent},
            metrics={**update.metrics, "layers_sent": jnp.mean(is_sent.astype(jnp.float32))},
        )

    return federated_training(
        training,
        local_update,
        pseudo_label="unlabeled",
        init_client=lambda model, federation: layer_selection.unmeasured(
            nnx.filter_state(model, nnx.Param)["online"]
        ),
        messages=Messages(layer_selection.threshold_sender(upload_quantile, upload_rounds)),
    )


def siamese_loss(
    model: Model,
    consistency_weight: jax.Array | float,
    consistency: Consistency,
    supervised_over: Over = "labeled",
    *,
    augment: Augment | None,
    pointwise: Pointwise,
) -> Loss:
    """L(theta_s) of states {online, target}; the target is held fixed, its running statistics move."""

    def loss(
        state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, nnx.State]:
        del anchor

        def view(name: str, key: jax.Array) -> tuple[jax.Array, nnx.State]:
            logits, moved = losses.augmented_logits(model, state[name], batch.x, key, augment)
            return logits.astype(jnp.float32), moved

        online_key, target_key = jax.random.split(key)
        logits, online = view("online", online_key)
        target_logits, target = view("target", target_key)
        cross_entropy = jnp.where(batch.is_labeled, pointwise(logits, batch.label), 0)
        members = batch.used if supervised_over == "batch" else batch.used & batch.is_labeled
        supervised = losses.mean_where(cross_entropy, members)
        difference = _DIFFERENCES[consistency](logits, jax.lax.stop_gradient(target_logits))
        disagreement = losses.mean_where(difference, batch.used)
        value = supervised + consistency_weight * disagreement
        return value, together(online=online, target=target)

    return loss


def moving_average(most: float, rounds: jax.Array) -> AfterStep:
    """theta_t <- alpha theta_t + (1 - alpha) theta_s with alpha = min(1 - 1 / (n + 1), most).

    n = 1, 2, ... is the step's number over all rounds. Each of the `rounds` before, float32, counts as many
    steps as this one has.
    """

    def follow(parameters: nnx.State, step: jax.Array, num_steps: jax.Array) -> nnx.State:
        number = rounds * num_steps.astype(jnp.float32) + step.astype(jnp.float32) + 1
        alpha = jnp.minimum(1 - 1 / (number + 1), most)
        return followed(parameters, alpha)

    return follow


def _divergence(logits: jax.Array, target: jax.Array) -> jax.Array:
    """KL(softmax(target) || softmax(logits)), float32 [B] of logits [B, C] twice."""
    log_p, log_q = jax.nn.log_softmax(target), jax.nn.log_softmax(logits)
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)


def _squared_difference(logits: jax.Array, target: jax.Array) -> jax.Array:
    """1/C |softmax(logits) - softmax(target)|^2, float32 [B] of logits [B, C] twice."""
    return jnp.mean(jnp.square(jax.nn.softmax(logits) - jax.nn.softmax(target)), axis=-1)


_DIFFERENCES = {"mse": _squared_difference, "kl": _divergence}
