"""FedSiam (Long, Che, Wang, Ye, Luo, Wu, Xiao, Ma, arXiv 2012.03292): a mean teacher at every client.

Clients train an online network and follow it by a target network (theta_s, theta_t):

    L(theta_s) = mean_{B_L} CE(y, f_{theta_s}(a(x))) + beta J
    J = mean_B d(f_{theta_s}(a(x)), f_{theta_t}(a'(x)))
    theta_s <- theta_s - eta grad L,    theta_t <- alpha theta_t + (1 - alpha) theta_s     (each step)

a, a' are two draws of the augmentation and of dropout, d is the mean squared difference of probabilities
or KL(target || online). Both ramp up, as in Mean Teacher (Tarvainen, Valpola, NeurIPS 2017): with r rounds
done, beta = beta_max exp(-5 (1 - r / R)^2) until r = R; alpha = min(1 - 1 / (n + 1), alpha_max), n the
steps so far, counted as r rounds of as many steps as this one has. The server takes the mean of the
online networks and that of the target networks.

Layer selection (Section 3.3): after its steps a client measures each layer's divergence
FSM_j = |theta_t[j] - theta_s[j]| / |theta_s[j]|. Only layers with FSM_j >= the tau-quantile of what
clients measured in the last phi rounds are sent of the online network; for the others the server takes
the target's. `upload_quantile` is tau, 0 sends all. "constant" keeps it; "linear" lets it rise from 0 to
2 tau over phi rounds, again and again; "rectangle" alternates between 0 and 1, 1 in a share tau of each
phi rounds: the paper's schedules, whose mean is the share of layers that is not sent.

The paper does not say whether the online or the target network is evaluated: `evaluated`. A client that
took part more than once in phi rounds counts with its last measurement.

Leaves a client: the change of its target network, and of its online network's selected layers.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.tree_util import DictKey

from jaxfed.algorithms.federated_training import (
    Client,
    Send,
    Shared,
    federated_training,
    finished,
)
from jaxfed.communication import Communication
from jaxfed.errors import UsageError
from jaxfed.federated_algorithm import Cohort, FederatedAlgorithm
from jaxfed.federation import Federation
from jaxfed.local_update import AfterStep, Batches, ClientUpdate, train
from jaxfed.losses import Augment, Batch, Loss, Pointwise, labeled_mean, mean_where
from jaxfed.models.model import compose
from jaxfed.server_state import ServerState, together, with_statistics
from jaxfed.training import Training

if TYPE_CHECKING:
    from jaxfed.models import Model

Consistency = Literal["mse", "kl"]
Evaluated = Literal["target", "online"]
Schedule = Literal["constant", "linear", "rectangle"]
_NEVER = -1


class Measured(NamedTuple):
    """A client's last layer divergences, float32 [J], and their round, int32; -1 = none yet."""

    divergence: jax.Array
    round: jax.Array


class Asked(NamedTuple):
    """What the server sends: from which divergence on a layer is wanted, and the round's number."""

    threshold: jax.Array
    round: jax.Array


def fedsiam(
    *,
    training: Training,
    consistency: Consistency = "mse",
    consistency_weight: float = 10.0,
    rampup_rounds: int = 10,
    average: float = 0.999,
    upload_quantile: float = 0.0,
    upload_schedule: Schedule = "constant",
    upload_rounds: int = 3,
    evaluated: Evaluated = "target",
) -> FederatedAlgorithm:
    """FedSiam with labels at clients.

    The run of XCLP's authors looks like `consistency_weight=100`, `rampup_rounds=5`, `average=0.97`, no
    layer selection (their flag isMT).

    Args:
        training: the ingredients.
        consistency: d, "mse" for iid clients, "kl" for others.
        consistency_weight: beta_max.
        rampup_rounds: R; 0 is no ramp-up.
        average: alpha_max, in [0, 1].
        upload_quantile: tau, in [0, 1].
        upload_schedule: of tau.
        upload_rounds: phi >= 1, of the schedule and of the measurements that make the quantile.
        evaluated: which network is evaluated and embeds.

    Raises:
        UsageError: a value that is not allowed.
    """
    for name, value, holds, allowed in (
        ("consistency", consistency, consistency in get_args(Consistency), "'mse', 'kl'"),
        ("consistency_weight", consistency_weight, consistency_weight >= 0, "numbers from 0 on"),
        ("rampup_rounds", rampup_rounds, rampup_rounds >= 0, "integers from 0 on"),
        ("average", average, 0 <= average <= 1, "0 to 1"),
        ("upload_quantile", upload_quantile, 0 <= upload_quantile <= 1, "0 to 1"),
        (
            "upload_schedule",
            upload_schedule,
            upload_schedule in get_args(Schedule),
            "'constant', 'linear', 'rectangle'",
        ),
        ("upload_rounds", upload_rounds, upload_rounds >= 1, "integers from 1 on"),
        ("evaluated", evaluated, evaluated in get_args(Evaluated), "'target', 'online'"),
    ):
        if not holds:
            raise UsageError(f"fedsiam.{name}={value!r}: allowed are {allowed}")
    plain, given = training.model, training.initial_model
    training = replace(
        training,
        model=siamese(plain, evaluated),
        initial_model=None if given is None else twins(given),
    )

    def local_update(
        shared: Shared, client: Client, key: jax.Array, *, batches: Batches
    ) -> ClientUpdate:
        rounds = shared.round.astype(jnp.float32)
        trained = train(
            with_statistics(shared.model, client.statistics),
            client.data,
            key,
            loss=siamese_loss(
                plain,
                consistency_weight * ramp_up(rounds, rampup_rounds),
                consistency,
                augment=training.augment,
                pointwise=training.pointwise,
            ),
            optimizer=online_only(training.optimizer(shared.learning_rate)),
            batches=batches,
            after_step=moving_average(average, rounds),
        )
        divergence = layer_divergence(trained.state)
        is_sent = divergence >= client.received.threshold
        state, unsent = selected(trained.state, is_sent)
        update = finished(training, shared, client, trained._replace(state=state))
        measured = Measured(divergence, client.received.round)
        return update._replace(
            client_state=measured,
            unsent=unsent,
            metrics={**update.metrics, "layers_sent": jnp.mean(is_sent.astype(jnp.float32))},
        )

    def unmeasured(parameters: nnx.State, federation: Federation) -> Measured:
        del federation
        return Measured(jnp.zeros(len(layers(parameters["online"]))), jnp.int32(_NEVER))

    return federated_training(
        training,
        local_update,
        pseudo_label="unlabeled",
        init_client=unmeasured,
        send=threshold_sender(upload_quantile, upload_schedule, upload_rounds),
    )


def twins(state: nnx.State) -> nnx.State:
    """{online, target}: two networks that are alike."""
    return together(online=state, target=state)


def siamese(model: Model, evaluated: Evaluated) -> Model:
    """The model of states {online, target}, one of which is evaluated; training runs both."""

    def init(key: jax.Array) -> nnx.State:
        return twins(model.init(key))

    def features(state: nnx.State, x: jax.Array) -> jax.Array:
        return model.features(state[evaluated], x)

    def head(state: nnx.State, features: jax.Array) -> jax.Array:
        return model.head(state[evaluated], features)

    def train_features(
        state: nnx.State, x: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, nnx.State]:
        trained = {name: model.train_features(state[name], x, key) for name in state}
        moved = together(**{name: after for name, (_, after) in trained.items()})
        return trained[evaluated][0], moved

    return compose(init=init, features=features, head=head, train_features=train_features)


def siamese_loss(
    model: Model,
    consistency_weight: jax.Array | float,
    consistency: Consistency,
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
            augment_key, model_key = jax.random.split(key)
            x = batch.x if augment is None else augment(augment_key, batch.x)
            logits, moved = model.train_apply(state[name], x, model_key)
            return logits.astype(jnp.float32), moved

        online_key, target_key = jax.random.split(key)
        logits, online = view("online", online_key)
        target_logits, target = view("target", target_key)
        supervised = labeled_mean(pointwise(logits, batch.label), batch)
        difference = DIFFERENCES[consistency](logits, jax.lax.stop_gradient(target_logits))
        value = supervised + consistency_weight * mean_where(difference, batch.used)
        return value, together(online=online, target=target)

    return loss


def squared_difference(logits: jax.Array, target: jax.Array) -> jax.Array:
    """Mean over classes of the squared difference of probabilities, [B] of [B, C] twice."""
    return jnp.mean(jnp.square(jax.nn.softmax(logits) - jax.nn.softmax(target)), axis=-1)


def divergence_from(logits: jax.Array, target: jax.Array) -> jax.Array:
    """KL(softmax(target) || softmax(logits)), [B] of [B, C] twice."""
    log_p, log_q = jax.nn.log_softmax(target), jax.nn.log_softmax(logits)
    return jnp.sum(jnp.exp(log_p) * (log_p - log_q), axis=-1)


DIFFERENCES = {"mse": squared_difference, "kl": divergence_from}


def ramp_up(rounds: jax.Array, length: int) -> jax.Array:
    """exp(-5 (1 - r / R)^2) until R, then 1."""
    share = jnp.minimum(rounds / length, 1) if length else jnp.ones_like(rounds)
    return jnp.exp(-5 * jnp.square(1 - share))


def moving_average(most: float, rounds: jax.Array) -> AfterStep:
    """theta_t <- alpha theta_t + (1 - alpha) theta_s, alpha ramping up to `most`."""

    def follow(parameters: nnx.State, step: jax.Array, num_steps: jax.Array) -> nnx.State:
        so_far = rounds * num_steps.astype(jnp.float32) + step.astype(jnp.float32)
        alpha = jnp.minimum(1 - 1 / (so_far + 1), most)
        online = parameters["online"]
        target = jax.tree.map(
            lambda t, s: alpha * t + (1 - alpha) * s, parameters["target"], online
        )
        return together(online=online, target=target)

    return follow


def online_only(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """The optimizer on the online network; the target, whose gradient is 0, is left alone by it."""

    def is_online(parameters: nnx.State) -> Any:
        return jax.tree_util.tree_map_with_path(
            lambda path, _: path[0] == DictKey("online"), parameters
        )

    return optax.masked(optimizer, is_online)


def layers(parameters: nnx.State) -> list[list[int]]:
    """Positions of the leaves of each layer: of those that differ in the last part of their path only."""
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
    """The networks as the server gets them: unsent online layers are the target's; bytes not sent."""
    online, statistics = nnx.split_state(state["online"], nnx.Param, ...)
    leaves, structure = jax.tree.flatten(online)
    target = jax.tree.leaves(nnx.filter_state(state["target"], nnx.Param))
    unsent = jnp.int32(0)
    for number, layer in enumerate(layers(online)):
        num_bytes = sum(leaves[i].size * leaves[i].dtype.itemsize for i in layer)
        unsent += jnp.where(is_sent[number], 0, num_bytes).astype(jnp.int32)
        for i in layer:
            leaves[i] = jnp.where(is_sent[number], leaves[i], target[i])
    online = nnx.merge_state(jax.tree.unflatten(structure, leaves), statistics)
    return together(online=online, target=state["target"]), unsent


def threshold_sender(quantile: float, schedule: Schedule, period: int) -> Send:
    """The divergence from which on a layer is sent: a quantile of what clients measured of late."""

    def send(state: ServerState, cohort: Cohort, communication: Communication) -> Asked:
        measured, done, num_rows = state.clients, int(state.round), len(cohort.client_id)
        rounds = np.asarray(measured.round)
        recent = np.asarray(measured.divergence)[(rounds >= 0) & (rounds >= done - period)]
        threshold = quantile_of(recent, scheduled(quantile, schedule, period, done))
        if quantile:
            communication.down("threshold", 4 * int(np.sum(np.asarray(cohort.client_id) >= 0)))
        return Asked(
            jnp.full(num_rows, threshold, jnp.float32), jnp.full(num_rows, done, jnp.int32)
        )

    return send


def scheduled(quantile: float, schedule: Schedule, period: int, rounds: int) -> float:
    """tau in the round after `rounds` of them."""
    phase = rounds % period
    if schedule == "linear":
        return min(2 * quantile * phase / max(period - 1, 1), 1.0)
    if schedule == "rectangle":
        return float(phase >= period * (1 - quantile))
    return quantile


def quantile_of(values: np.ndarray, share: float) -> float:
    """The quantile; below all values for the share 0 and without any, above all for the share 1."""
    if share <= 0 or not values.size:
        return float("-inf")
    return float("inf") if share >= 1 else float(np.quantile(values, share))
