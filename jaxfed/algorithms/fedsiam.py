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

Layer selection (Section 3.3): layers of the online network that hardly differ from the target's are not sent,
and the server takes the target's. Clients send the layers j with

    FSM_j = |theta_t[j] - theta_s[j]| / |theta_s[j]|

of at least the tau-quantile of all values that clients measured in the last phi rounds: tau is the share of
layers that is not sent. A client that took part more than once in these counts with its last measurement.
`upload_quantile` is tau, 0 sends all; `upload_rounds` is phi. The paper's schedules, which change tau over
rounds, are left out.

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

from itertools import groupby
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.tree_util import DictKey

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication, num_bytes_of
from jaxfed.federation.method import method
from jaxfed.models.model import Model
from jaxfed.settings import Count, CountOrZero, NotNegative, Share
from jaxfed.training.local.local_training import LocalTraining
from jaxfed.training.local.local_update import AfterStep
from jaxfed.training.local.losses import Batch, Loss, ValueAndState, augmented_logits, mean_where
from jaxfed.training.mean_teacher import Evaluated, followed, ramp_up, siamese, twins
from jaxfed.training.round.client_round import ClientRound, ClientUpdate
from jaxfed.training.round.round import federated_training
from jaxfed.training.round.server_hooks import Messages, Send
from jaxfed.training.server.client_rows import gather, took_part
from jaxfed.training.server.server_state import ServerState, together
from jaxfed.training.specification import Training

Consistency = Literal["mse", "kl"]
Over = Literal["labeled", "batch"]

_NEVER = -1
_ABOVE_ALL = float(np.finfo(np.float32).max)  # messages must be finite


class Measured(NamedTuple):
    """A client's last layer divergences, float32 [J], and their round, int32; -1 = none yet."""

    divergence: jax.Array
    round: jax.Array


class Asked(NamedTuple):
    """The server's message: the least divergence of a layer to be sent, and the round's number."""

    threshold: jax.Array
    round: jax.Array


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
    """
    plain, optimizer = training.model, training.local.optimizer
    training = training.with_states(siamese(plain, evaluated), twins)
    training = training.with_local(optimizer=lambda rate: optax.masked(optimizer(rate), _is_online))

    def local_update(client: ClientRound) -> ClientUpdate:
        rounds = client.shared.round.astype(jnp.float32)
        weight = consistency_weight * ramp_up(rounds + 1, rampup_rounds)
        trained = client.steps(
            siamese_loss(plain, training.local, weight, consistency, supervised_over),
            after_step=moving_average(average, rounds),
        )
        divergence = layer_divergence(trained.state)
        is_sent = divergence >= client.received.threshold
        state, sent = selected(trained.state, is_sent)
        return client.update(
            trained._replace(state=state),
            client_state=Measured(divergence, client.received.round),
            sent={"parameters": sent},
            metrics={"layers_sent": jnp.mean(is_sent.astype(jnp.float32))},
        )

    return federated_training(
        training,
        local_update,
        pseudo_label="unlabeled",
        init_client=lambda model, federation: unmeasured(
            nnx.filter_state(model, nnx.Param)["online"]
        ),
        messages=Messages(threshold_sender(upload_quantile, upload_rounds)),
    )


def _is_online(parameters: nnx.State) -> Any:
    return jax.tree_util.tree_map_with_path(
        lambda path, _: path[0] == DictKey("online"), parameters
    )


def siamese_loss(
    model: Model,
    local: LocalTraining,
    consistency_weight: jax.Array | float,
    consistency: Consistency,
    supervised_over: Over = "labeled",
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
        difference = _DIFFERENCES[consistency](logits, jax.lax.stop_gradient(target_logits))
        value = supervised + consistency_weight * mean_where(difference, batch.used)
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


def unmeasured(network: nnx.State) -> Measured:
    """Return the record of a client that has not measured the network's layers yet."""
    return Measured(jnp.zeros(len(layers(network))), jnp.int32(_NEVER))


def layers(parameters: nnx.State) -> list[list[int]]:
    """Positions of the leaves of each layer; paths of one layer's leaves differ in their last part only."""
    paths = [path for path, _ in jax.tree_util.tree_leaves_with_path(parameters)]
    parents = [[key for key in path if isinstance(key, DictKey)][:-1] for path in paths]
    return [
        [position for position, _ in group]
        for _, group in groupby(enumerate(parents), key=lambda item: item[1])
    ]


def layer_divergence(state: nnx.State) -> jax.Array:
    """FSM, float32 [J], of a state {online, target}."""
    online, target = (
        jax.tree.leaves(nnx.filter_state(state[name], nnx.Param)) for name in ("online", "target")
    )

    def norm(leaves: list[jax.Array]) -> jax.Array:
        return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in leaves))

    return jnp.stack(
        [
            norm([target[i] - online[i] for i in layer])
            / jnp.maximum(norm([online[i] for i in layer]), 1e-12)
            for layer in layers(nnx.filter_state(state["online"], nnx.Param))
        ]
    )


def selected(state: nnx.State, is_sent: jax.Array) -> tuple[nnx.State, jax.Array]:
    """Return the networks as the server receives them, and the bytes sent, int32.

    Online layers that are not sent are replaced by the target's.
    """
    online, statistics = nnx.split_state(state["online"], nnx.Param, ...)
    leaves, structure = jax.tree.flatten(online)
    target = jax.tree.leaves(nnx.filter_state(state["target"], nnx.Param))
    sent = jnp.int32(num_bytes_of(target))
    for number, layer in enumerate(layers(online)):
        num_bytes = num_bytes_of([leaves[i] for i in layer])
        sent += jnp.where(is_sent[number], num_bytes, 0).astype(jnp.int32)
        for i in layer:
            leaves[i] = jnp.where(is_sent[number], leaves[i], target[i])
    online = nnx.merge_state(jax.tree.unflatten(structure, leaves), statistics)
    return together(online=online, target=state["target"]), sent


def threshold_sender(quantile: float, period: int) -> Send:
    """Return the hook that sends the threshold: a quantile of divergences measured in the last rounds."""

    def send(state: ServerState, cohort: Cohort, communication: Communication) -> Asked:
        measured, done, num_rows = state.clients, int(state.round), len(cohort.client_id)
        ids = took_part(measured)
        divergences, rounds = (np.asarray(gather(rows, ids)) for rows in measured)
        recent = divergences[(rounds >= 0) & (rounds >= done - period)]
        threshold = quantile_of(recent, quantile)
        if quantile:
            communication.down("threshold", 4 * int(np.sum(np.asarray(cohort.client_id) >= 0)))
        return Asked(
            jnp.full(num_rows, threshold, jnp.float32), jnp.full(num_rows, done, jnp.int32)
        )

    return send


def quantile_of(values: np.ndarray, share: float) -> float:
    """Return the quantile; for share 0 or no values the lowest float32, for share 1 the highest."""
    if share <= 0 or not values.size:
        return -_ABOVE_ALL
    return _ABOVE_ALL if share >= 1 else float(np.quantile(values, share))
