"""FedMatch (Jeong, Yoon, Yang, Hwang, ICLR 2021), labels at clients.

Parameters are a sum theta = sigma + psi. Labels train sigma, unlabeled examples train psi; the other part
is held fixed (sigma*, psi*). With x in B_L, u in B_U, p = softmax(f_{sigma* + psi}(u)):

    L_s(sigma) = lambda_s mean_x CE(y, f_{sigma + psi*}(x))
    L_u(psi) = lambda_ICCS mean_u [ 1/H sum_j KL(p_j(u) || p(u)) + CE(yhat(u), f_{sigma* + psi}(strong(u))) ]
               + lambda_L2 |sigma* - psi|^2 + lambda_L1 |psi|_1
    yhat = the class that most of p, p_1 .. p_H predict; the smallest of equals
    sigma <- mean_k sigma_k,   psi <- mean_k psi_k

The mean over u is over those with max p >= tau. Client k's helpers j = 1 .. H are the clients whose
models were nearest to its own when the server saw them last: nearest in softmax outputs on one fixed
random input, found by a KD-tree. The server sends their psi_j; p_j = softmax(f_{sigma + psi_j}), sigma as
the client received it. A client that the server has not seen before gets no helpers, and votes alone.

The paper leaves open what only the authors' code says, and this follows the code there: psi starts as
0.2 sigma; the random input is normal with mean and deviation 0.49 (of images in [0, 1]), cut at two
deviations; u is not augmented in the first term. Switches for what the code does besides:
`helper_interval=10` (helpers in every tenth round only), `psi_threshold` (psi's entries below are 0 in
evaluation; 5e-6) and `delta_threshold` (smaller changes are not sent; 5e-5). Both gradients of a step are
taken at one (sigma, psi), while the code updates sigma first: a difference of second order in eta. The
code lowers its rate where validation stops improving; here the rate is the experiment's schedule.

Leaves a client: the changes of sigma and psi, twice what FedAvg sends; it receives H psi_j more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from scipy.spatial import cKDTree

from jaxfed.algorithms.federated_training import (
    Client,
    Send,
    Shared,
    federated_training,
    finished,
    num_bytes_of,
)
from jaxfed.algorithms.fixmatch import strong_augment
from jaxfed.communication import Communication
from jaxfed.errors import UsageError
from jaxfed.federated_algorithm import Cohort, FederatedAlgorithm
from jaxfed.federation import Federation
from jaxfed.local_update import Batches, ClientUpdate, train
from jaxfed.losses import Augment, Batch, Loss, Pointwise, labeled_mean, mean_where
from jaxfed.models.model import compose
from jaxfed.models.wrapping import as_float
from jaxfed.server_state import ServerState, gather, together, with_statistics
from jaxfed.training import Training

if TYPE_CHECKING:
    from jaxfed.models import Model

_NO_CLIENT = -1
_MEAN = _DEVIATION = 125 / 255  # of the random input
_INPUT_SEED = 0


class Weights(NamedTuple):
    """The lambdas of L_s and L_u, and tau; the paper's values."""

    supervised: float = 10.0
    consistency: float = 0.01
    l2: float = 10.0
    l1: float = 1e-4
    confidence: float = 0.75


class Seen(NamedTuple):
    """What the server remembers of a client: its psi, its outputs on the random input, float32 [C]."""

    psi: nnx.State
    outputs: jax.Array
    is_known: jax.Array


class Helpers(NamedTuple):
    """The H helpers of a client: psi [H, ...], and which of them there are, bool [H]."""

    psi: nnx.State
    is_there: jax.Array


def fedmatch(
    *,
    training: Training,
    supervised_weight: float = Weights().supervised,
    consistency_weight: float = Weights().consistency,
    l2_weight: float = Weights().l2,
    l1_weight: float = Weights().l1,
    confidence: float = Weights().confidence,
    num_helpers: int = 2,
    helper_interval: int = 1,
    psi_scale: float = 0.2,
    psi_threshold: float = 0.0,
    delta_threshold: float = 0.0,
) -> FederatedAlgorithm:
    """FedMatch with labels at clients.

    Args:
        training: the ingredients; its `strong_augment` is needed. The paper's rate is 1e-3 and goes with
            its weights: SGD needs 2 `l2_weight` learning_rate < 2.
        supervised_weight: lambda_s.
        consistency_weight: lambda_ICCS.
        l2_weight: lambda_L2.
        l1_weight: lambda_L1.
        confidence: tau.
        num_helpers: H >= 1.
        helper_interval: helpers are sent in every so many-th round.
        psi_scale: psi starts as so many times sigma.
        psi_threshold: see above; 0 keeps all.
        delta_threshold: see above; 0 sends all.

    Raises:
        UsageError: a number out of range, or no strong augmentation.

    Cost: two passes over a batch and one over its two views, and H + 1 in evaluation; the server keeps
    one psi a client.
    """
    _check(
        at_least_0={
            "supervised_weight": supervised_weight,
            "consistency_weight": consistency_weight,
            "l2_weight": l2_weight,
            "l1_weight": l1_weight,
            "confidence": confidence,
            "psi_scale": psi_scale,
            "psi_threshold": psi_threshold,
            "delta_threshold": delta_threshold,
        },
        at_least_1={"num_helpers": num_helpers, "helper_interval": helper_interval},
    )
    weights = Weights(supervised_weight, consistency_weight, l2_weight, l1_weight, confidence)
    plain, strong = training.model, strong_augment(training, "fedmatch")
    given = training.initial_model
    training = replace(
        training,
        model=decomposed(plain, psi_scale, psi_threshold),
        initial_model=None if given is None else decompose(given, psi_scale),
    )

    def local_update(
        shared: Shared, client: Client, key: jax.Array, *, batches: Batches
    ) -> ClientUpdate:
        received = with_statistics(shared.model, client.statistics)
        loss = decomposed_loss(
            plain,
            client.received,
            weights,
            weak=training.augment,
            strong=strong,
            pointwise=training.pointwise,
        )
        trained = train(
            received,
            client.data,
            key,
            loss=loss,
            optimizer=training.optimizer(shared.learning_rate),
            batches=batches,
        )
        update = finished(training, shared, client, trained)
        if delta_threshold:
            update = update._replace(delta=_without_small(update.delta, delta_threshold))
        logits = plain.apply(composed(trained.state), random_input(client.data.x.shape[1:]))
        seen = Seen(trained.state["psi"], jax.nn.softmax(logits[0]), jnp.asarray(True))
        return update._replace(client_state=seen)

    def unseen(parameters: nnx.State, federation: Federation) -> Seen:
        nothing = jnp.zeros(federation.num_classes)
        return Seen(parameters["psi"], nothing, jnp.asarray(False))

    return federated_training(
        training,
        local_update,
        pseudo_label="unlabeled",
        init_client=unseen,
        send=helper_sender(num_helpers, helper_interval),
    )


def decompose(state: nnx.State, psi_scale: float) -> nnx.State:
    """{sigma: a model's state, psi: its parameters times `psi_scale`}."""
    parameters, _ = nnx.split_state(state, nnx.Param, ...)
    return together(sigma=state, psi=jax.tree.map(lambda w: psi_scale * w, parameters))


def composed(state: nnx.State, psi_threshold: float = 0.0) -> nnx.State:
    """The plain model's state, with parameters sigma + psi and sigma's running statistics.

    Entries of psi below `psi_threshold` in size count as 0.
    """
    sigma, statistics = nnx.split_state(state["sigma"], nnx.Param, ...)
    psi = _without_small(state["psi"], psi_threshold) if psi_threshold else state["psi"]
    return nnx.merge_state(jax.tree.map(jnp.add, sigma, psi), statistics)


def decomposed(model: Model, psi_scale: float, psi_threshold: float = 0.0) -> Model:
    """The model of states {sigma, psi}, as it is evaluated; local steps go through `composed`."""

    def init(key: jax.Array) -> nnx.State:
        return decompose(model.init(key), psi_scale)

    def features(state: nnx.State, x: jax.Array) -> jax.Array:
        return model.features(composed(state, psi_threshold), x)

    def head(state: nnx.State, features: jax.Array) -> jax.Array:
        return model.head(composed(state, psi_threshold), features)

    def train_features(
        state: nnx.State, x: jax.Array, key: jax.Array
    ) -> tuple[jax.Array, nnx.State]:
        trained, moved = model.train_features(composed(state), x, key)
        return trained, _with_statistics_of(state, moved)

    return compose(init=init, features=features, head=head, train_features=train_features)


def decomposed_loss(
    model: Model,
    helpers: Helpers,
    weights: Weights,
    *,
    weak: Augment | None,
    strong: Augment,
    pointwise: Pointwise,
) -> Loss:
    """L_s(sigma) + L_u(psi) of states {sigma, psi}: the gradient of each part is its own loss's."""

    def loss(
        state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, nnx.State]:
        weak_key, strong_key, supervised_key, unsupervised_key = jax.random.split(key, 4)
        sigma, psi = state["sigma"], state["psi"]
        fixed_sigma, fixed_psi = jax.lax.stop_gradient((sigma, psi))
        x = batch.x if weak is None else weak(weak_key, batch.x)
        logits, moved = model.train_apply(
            composed(together(sigma=sigma, psi=fixed_psi)), x, supervised_key
        )
        supervised = labeled_mean(pointwise(logits, batch.label), batch)

        strong_x = strong(strong_key, batch.x)
        views = jnp.concatenate([as_float(batch.x), strong_x])
        state = _with_statistics_of(together(sigma=fixed_sigma, psi=psi), moved)
        logits, moved = model.train_apply(composed(state), views, unsupervised_key)
        logits, strong_logits = jnp.split(logits.astype(jnp.float32), 2)
        log_probability = jax.nn.log_softmax(logits)
        helped = helper_log_probabilities(model, anchor, helpers, batch.x)
        is_sure = jnp.max(log_probability, axis=-1) >= jnp.log(weights.confidence)
        member = batch.used & ~batch.is_labeled & is_sure
        own_label = agreed_label(log_probability, helped, helpers.is_there)
        agreement = mean_where(pointwise(strong_logits, own_label), member)
        consistency = mean_where(mean_divergence(helped, log_probability, helpers.is_there), member)
        differences = jax.tree.map(
            lambda a, b: jnp.sum(jnp.square(a - b)), nnx.filter_state(fixed_sigma, nnx.Param), psi
        )
        sizes = jax.tree.map(lambda w: jnp.sum(jnp.abs(w)), psi)
        value = (
            weights.supervised * supervised
            + weights.consistency * (consistency + agreement)
            + weights.l2 * sum(jax.tree.leaves(differences))
            + weights.l1 * sum(jax.tree.leaves(sizes))
        )
        return value, _with_statistics_of(state, moved)

    return loss


def helper_log_probabilities(
    model: Model, anchor: nnx.State, helpers: Helpers, x: jax.Array
) -> jax.Array:
    """log p_j(u), float32 [H, B, C]: in evaluation mode, sigma and statistics as received."""

    def one(psi: nnx.State) -> jax.Array:
        logits = model.apply(composed(together(sigma=anchor["sigma"], psi=psi)), x)
        return jax.nn.log_softmax(logits.astype(jnp.float32))

    return jax.lax.stop_gradient(jax.lax.map(one, helpers.psi))


def agreed_label(own: jax.Array, helped: jax.Array, is_there: jax.Array) -> jax.Array:
    """yhat, int32 [B], by own log-probabilities [B, C] and helpers' [H, B, C]."""
    num_classes = own.shape[-1]

    def vote(log_probability: jax.Array) -> jax.Array:
        return jax.nn.one_hot(jnp.argmax(log_probability, axis=-1), num_classes)

    votes = vote(own) + jnp.tensordot(is_there.astype(jnp.float32), vote(helped), axes=1)
    return jnp.argmax(votes, axis=-1).astype(jnp.int32)


def mean_divergence(helped: jax.Array, own: jax.Array, is_there: jax.Array) -> jax.Array:
    """1/H sum_j KL(p_j || p), float32 [B], over the helpers that there are; 0 without any."""
    divergence = jnp.sum(jnp.exp(helped) * (helped - own[None]), axis=-1)
    count = jnp.maximum(jnp.sum(is_there), 1).astype(jnp.float32)
    return jnp.tensordot(is_there.astype(jnp.float32), divergence, axes=1) / count


def random_input(shape: tuple[int, ...]) -> jax.Array:
    """The one input [1, ...] by whose outputs models are compared, the same in every round."""
    normal = jax.random.truncated_normal(jax.random.key(_INPUT_SEED), -2.0, 2.0, (1, *shape))
    return _MEAN + _DEVIATION * normal


def helper_sender(num_helpers: int, interval: int) -> Send:
    """Who helps whom, and the psi that the server sends for it."""

    @jax.jit
    def collect(seen: Seen, helper_id: jax.Array) -> Helpers:
        psi = gather(seen.psi, helper_id)
        return Helpers(psi, helper_id >= 0)

    def send(state: ServerState, cohort: Cohort, communication: Communication) -> Helpers:
        client_id, seen = np.asarray(cohort.client_id), state.clients
        helper_id = np.full((len(client_id), num_helpers), _NO_CLIENT, np.int32)
        if (int(state.round) + 1) % interval == 0:
            helper_id = nearest_clients(
                np.asarray(seen.outputs), np.asarray(seen.is_known), client_id, num_helpers
            )
        num_bytes = num_bytes_of(seen.psi) // len(seen.is_known)
        communication.down("helpers", int(np.sum(helper_id >= 0)) * num_bytes)
        return collect(seen, jnp.asarray(helper_id))

    return send


def nearest_clients(
    outputs: np.ndarray, is_known: np.ndarray, client_id: np.ndarray, num_helpers: int
) -> np.ndarray:
    """Each client's nearest others by Euclidean distance of outputs [M, C], int32 [K, H].

    -1 stands where there is none: for a client that is not known, and where fewer than H others are.
    """
    helper_id = np.full((len(client_id), num_helpers), _NO_CLIENT, np.int32)
    known = np.flatnonzero(is_known)
    asking = np.flatnonzero((client_id >= 0) & is_known[client_id])
    if len(asking) and len(known) > 1:
        count = min(num_helpers + 1, len(known))
        _, neighbors = cKDTree(outputs[known]).query(outputs[client_id[asking]], k=count)
        for row, found in zip(asking, known[neighbors], strict=True):
            others = found[found != client_id[row]][:num_helpers]
            helper_id[row, : len(others)] = others
    return helper_id


def _with_statistics_of(state: nnx.State, moved: nnx.State) -> nnx.State:
    """{sigma, psi} with the running statistics of a plain model's state."""
    statistics = nnx.split_state(moved, nnx.Param, ...)[1]
    return together(sigma=with_statistics(state["sigma"], statistics), psi=state["psi"])


def _without_small(tree: nnx.State, threshold: float) -> nnx.State:
    return jax.tree.map(lambda w: jnp.where(jnp.abs(w) < threshold, 0, w), tree)


def _check(at_least_0: dict[str, float], at_least_1: dict[str, int]) -> None:
    for least, values in ((0, at_least_0), (1, at_least_1)):
        for name, value in values.items():
            if value < least:
                raise UsageError(f"fedmatch.{name}={value}: allowed are numbers from {least} on")
