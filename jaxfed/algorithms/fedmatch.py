"""FedMatch (Jeong, Yoon, Yang, Hwang, ICLR 2021), labels at clients.

Parameters are a sum theta = sigma + psi. Labels train sigma, unlabeled examples train psi; the other part
is held fixed (sigma*, psi*). With x in B_L, u in B_U, p = softmax(f_{sigma* + psi}(u)):

    L_s(sigma) = lambda_s mean_x CE(y, f_{sigma + psi*}(x))
    L_u(psi) = lambda_ICCS mean_u [ 1/H sum_j KL(p_j(u) || p(u)) + CE(yhat(u), f_{sigma* + psi}(strong(u))) ]
               + lambda_L2 |sigma* - psi|^2 + lambda_L1 |psi|_1
    yhat = the class that most of p, p_1 .. p_H predict; the smallest of equals
    sigma <- mean_k sigma_k,   psi <- mean_k psi_k

The mean over u is over those with max p >= tau. Client k's helpers j = 1 .. H are the clients whose
models were nearest to its own when the server saw them last (`jaxfed.training.helper_selection`), sent in
every tenth round. The server sends their psi_j; p_j = softmax(f_{sigma + psi_j}), sigma as the client
received it. In other rounds, and where the server has not seen the client before, it votes alone.

The paper leaves open what only the authors' code says, and this follows the code there: psi starts as
0.2 sigma; the random input's distribution; u is not augmented in the first term, and x is not either
(here: `Training.augment`, the config's choice). The paper has psi and changes sparse without numbers;
switches for the code's:

    psi_threshold = 5e-6      entries of psi up to this are 0 where it is sent and evaluated
    delta_threshold = 5e-5    entries that a client changed by no more are not sent, and stay

With both 0, what is exactly 0 or unchanged is not sent either. Otherwise than the code: the client trains
on the psi that it was sent, small entries 0 (the code counts them as 0, and trains with them); clients
keep nothing between rounds, so that sigma comes down whole (the code counts what differs from what the
client had when it last took part); both gradients of a step are taken at one (sigma, psi), while the
code updates sigma first, a difference of second order in eta; the rate is the experiment's schedule,
while each of the code's clients divides its own by 3 where validation does not improve five times.

Leaves a client: the changed entries of sigma and psi; it receives sigma, and what is not 0 of psi and of
H psi_j. Bytes: `jaxfed.training.sparse_message`, one message a part.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.algorithms.fixmatch import strong_augment
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clients import Federation
from jaxfed.federation.communication import num_bytes_of
from jaxfed.models.wrapping import as_float
from jaxfed.training.helper_selection import Helpers, Seen, helper_sender, random_input
from jaxfed.training.ingredients import Training
from jaxfed.training.local_update import Batches, ClientUpdate, train
from jaxfed.training.losses import Augment, Batch, Loss, Pointwise, labeled_mean, mean_where
from jaxfed.training.round import Client, Shared, federated_training, finished
from jaxfed.training.server_state import together, with_statistics
from jaxfed.training.sparse_message import num_bytes_of_nonzero, where_changed, without_small
from jaxfed.training.two_part_model import (
    composed,
    decompose,
    sparse,
    two_part_model,
    with_statistics_of,
)

if TYPE_CHECKING:
    from jaxfed.models import Model


class Weights(NamedTuple):
    """The lambdas of L_s and L_u, and tau; the paper's values."""

    supervised: float = 10.0
    consistency: float = 0.01
    l2: float = 10.0
    l1: float = 1e-4
    confidence: float = 0.75


def fedmatch(
    *,
    training: Training,
    supervised_weight: float = Weights().supervised,
    consistency_weight: float = Weights().consistency,
    l2_weight: float = Weights().l2,
    l1_weight: float = Weights().l1,
    confidence: float = Weights().confidence,
    num_helpers: int = 2,
    helper_interval: int = 10,
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
        psi_threshold: see above.
        delta_threshold: see above.

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
        model=two_part_model(plain, psi_scale, psi_threshold),
        initial_model=None if given is None else decompose(given, psi_scale),
    )

    def local_update(
        shared: Shared, client: Client, key: jax.Array, *, batches: Batches
    ) -> ClientUpdate:
        received = sparse(with_statistics(shared.model, client.statistics), psi_threshold)
        trained = train(
            received,
            client.data,
            key,
            loss=fedmatch_loss(
                plain,
                client.received,
                weights,
                weak=training.augment,
                strong=strong,
                pointwise=training.pointwise,
            ),
            optimizer=training.optimizer(shared.learning_rate),
            batches=batches,
        )
        returned, sent = as_sent(received, sparse(trained.state, psi_threshold), delta_threshold)
        update = finished(training, shared, client, trained._replace(state=returned))
        logits = plain.apply(composed(returned), random_input(client.data.x.shape[1:]))
        seen = Seen(returned["psi"], jax.nn.softmax(logits[0]), jnp.asarray(True))
        return update._replace(client_state=seen, sent=sent)

    def unseen(parameters: nnx.State, federation: Federation) -> Seen:
        nothing = jnp.zeros(federation.num_classes)
        return Seen(parameters["psi"], nothing, jnp.asarray(False))

    @jax.jit
    def psi_bytes(psi: nnx.State) -> jax.Array:
        return num_bytes_of_nonzero(without_small(psi, psi_threshold))

    def download_bytes(parameters: nnx.State) -> int:
        return num_bytes_of(parameters["sigma"]) + int(psi_bytes(parameters["psi"]))

    return federated_training(
        training,
        local_update,
        pseudo_label="unlabeled",
        init_client=unseen,
        send=helper_sender(num_helpers, helper_interval),
        download_bytes=download_bytes,
    )


def fedmatch_loss(
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
        supervised_key, unsupervised_key = jax.random.split(key)
        sigma, psi = state["sigma"], state["psi"]
        fixed_sigma, fixed_psi = jax.lax.stop_gradient((sigma, psi))
        by_labels, moved = supervised(together(sigma=sigma, psi=fixed_psi), batch, supervised_key)
        state = with_statistics_of(together(sigma=fixed_sigma, psi=psi), moved)
        by_agreement, moved = unsupervised(state, anchor, batch, unsupervised_key)
        state = with_statistics_of(state, moved)
        return by_labels + by_agreement + regularization(fixed_sigma, psi, weights), state

    def supervised(state: nnx.State, batch: Batch, key: jax.Array) -> tuple[jax.Array, nnx.State]:
        augment_key, model_key = jax.random.split(key)
        x = batch.x if weak is None else weak(augment_key, batch.x)
        logits, moved = model.train_apply(composed(state), x, model_key)
        return weights.supervised * labeled_mean(pointwise(logits, batch.label), batch), moved

    def unsupervised(
        state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, nnx.State]:
        augment_key, model_key = jax.random.split(key)
        views = jnp.concatenate([as_float(batch.x), strong(augment_key, batch.x)])
        logits, moved = model.train_apply(composed(state), views, model_key)
        logits, strong_logits = jnp.split(logits.astype(jnp.float32), 2)
        log_p = jax.nn.log_softmax(logits)
        log_p_j = helper_log_probabilities(model, anchor, helpers, batch.x)
        is_sure = jnp.max(log_p, axis=-1) >= jnp.log(weights.confidence)
        member = batch.used & ~batch.is_labeled & is_sure
        label = agreed_label(log_p, log_p_j, helpers.is_there)
        agreement = mean_where(pointwise(strong_logits, label), member)
        consistency = mean_where(mean_divergence(log_p_j, log_p, helpers.is_there), member)
        return weights.consistency * (consistency + agreement), moved

    return loss


def regularization(sigma: nnx.State, psi: nnx.State, weights: Weights) -> jax.Array:
    """lambda_L2 |sigma - psi|^2 + lambda_L1 |psi|_1."""
    parameters = nnx.filter_state(sigma, nnx.Param)
    squares = jax.tree.map(lambda a, b: jnp.sum(jnp.square(a - b)), parameters, psi)
    # |w| whose gradient at 0 is 0, not JAX's 1: what is 0 stays.
    sizes = jax.tree.map(lambda w: jnp.sum(w * jax.lax.stop_gradient(jnp.sign(w))), psi)
    square, size = (sum(jax.tree.leaves(tree), jnp.float32(0)) for tree in (squares, sizes))
    return weights.l2 * square + weights.l1 * size


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


def as_sent(
    received: nnx.State, trained: nnx.State, delta_threshold: float
) -> tuple[nnx.State, jax.Array]:
    """{sigma, psi} as the server gets them, and the bytes, int32, of the parameters' changes."""
    before = nnx.filter_state(received, nnx.Param)
    after, statistics = nnx.split_state(trained, nnx.Param, ...)
    sigma, sigma_bytes = where_changed(before["sigma"], after["sigma"], delta_threshold)
    psi, psi_bytes = where_changed(before["psi"], after["psi"], delta_threshold)
    returned = nnx.merge_state(together(sigma=sigma, psi=psi), statistics)
    return returned, sigma_bytes + psi_bytes


def _check(at_least_0: dict[str, float], at_least_1: dict[str, int]) -> None:
    for least, values in ((0, at_least_0), (1, at_least_1)):
        for name, value in values.items():
            if value < least:
                raise UsageError(f"fedmatch.{name}={value}: allowed are numbers from {least} on")
