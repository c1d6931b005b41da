"""FedMatch: one part of the model learns from labels, the other from consistency.

Parameters are a sum theta = sigma + psi. Labels train sigma, unlabeled examples train psi; the other part
is held fixed (sigma*, psi*). With x in B_L, u in B_U, p = softmax(f_{sigma* + psi}(u)):

    L_s(sigma) = lambda_s mean_x CE(y, f_{sigma + psi*}(x))
    L_u(psi) = lambda_ICCS mean_u [ 1/H sum_j KL(p_j(u) || p(u)) + CE(yhat(u), f_{sigma* + psi}(strong(u))) ]
               + lambda_L2 |sigma* - psi|^2 + lambda_L1 |psi|_1
    yhat = the class that most of p, p_1 .. p_H predict; the smallest of equals
    sigma <- mean_k sigma_k,   psi <- mean_k psi_k

The mean over u is over those with max p >= tau. Client k's helpers j = 1 .. H are the clients whose
models were nearest to its own when the server saw them last (Section 3.2): their outputs on one fixed random
input, found by a KD-tree, as in the authors' code. In every tenth round the server sends their psi_j; p_j =
softmax(f_{sigma + psi_j}), with sigma as the client received it. In other rounds, or if the server has not
seen the client before, the client labels alone.

Where the paper leaves details open, this follows the authors' code: psi starts as 0.2 sigma
(a given model is the sum of both); the distribution of the random input; u is not augmented in the first
term. (The code does not augment x either; here `LocalTraining.augment` decides.) The paper makes psi and
changes sparse but gives no thresholds; the code's:

    psi_threshold = 5e-6      entries of psi up to this are 0 where it is sent and evaluated
    delta_threshold = 5e-5    entries that a client changed by no more are not sent, and stay

With both 0, what is exactly 0 or unchanged is not sent either. Otherwise than the code: the client trains
on the psi that it was sent, small entries 0 (the code counts them as 0, and trains with them); clients
keep nothing between rounds, so that sigma comes down whole (the code counts what differs from what the
client had when it last took part); both gradients of a step are taken at one (sigma, psi), while the
code updates sigma first, a difference of second order in eta; the rate is the experiment's schedule,
while each of the code's clients divides its own by 3 where validation does not improve five times.

Labels at the server (its second scenario): the server trains sigma by L_s, psi held fixed, then clients train
psi by L_u, sigma held fixed, and only psi is sent back. There the code has psi_threshold = delta_threshold =
lambda_L1 = 1e-5, one server epoch, and batches of 100.

It runs in simulation only: the server compares what clients have sent, in `ServerState.clients`.

A client sends sigma and psi; it receives sigma, and what is not 0 of psi and of H psi_j: one sparse
message a part. A message of n values of b bytes, k of which are sent (those that changed, or that are not 0),
is written in the shortest of three ways:

    dense          b n                   every value
    bitmap         ceil(n / 8) + b k     one bit an entry, then the values that are sent
    coordinates    (4 + b) k             the index of each value that is sent, a uint32, and the value

Float32 goes as coordinates below n / 32 values, as a bitmap up to 31 n / 32, and dense above. Which of
the three it is would take a byte of a header; headers are not counted (`jaxfed.federation.communication`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication, num_bytes_of
from jaxfed.federation.method import EVERYWHERE, method
from jaxfed.models.model import compose
from jaxfed.settings import Count, NotNegative
from jaxfed.training.aggregate import weighted_sum
from jaxfed.training.local import losses
from jaxfed.training.local.losses import Augment, Batch, Loss, Pointwise, ValueAndState
from jaxfed.training.round.client_round import ClientRound, ClientUpdate
from jaxfed.training.round.parts import Messages
from jaxfed.training.round.round import federated_training
from jaxfed.training.server_state import (
    ServerState,
    gather,
    of_cohort,
    together,
    took_part,
    with_statistics,
)
from jaxfed.training.specification import Training

if TYPE_CHECKING:
    from jaxfed.models import Model
    from jaxfed.training.round.parts import Send

_PSI_SCALE = 0.2  # psi / sigma at the start
_NO_CLIENT = -1
_MEAN = _DEVIATION = 125 / 255  # of the random input
_INPUT_SEED = 0
_INDEX_BYTES = 4


class LossWeights(NamedTuple):
    """The lambdas of L_s and L_u, and tau."""

    supervised: float
    consistency: float
    l2: float
    l1: float
    confidence: float


class Seen(NamedTuple):
    """The server's record of one client: its psi, and its outputs on the random input, float32 [C]."""

    psi: nnx.State
    outputs: jax.Array
    is_known: jax.Array


class Helpers(NamedTuple):
    """The H helpers of a client: psi [H, ...], and bool [H], False in slots without a helper."""

    psi: nnx.State
    is_present: jax.Array


@method(
    title="FedMatch",
    cites="Jeong, Yoon, Yang, Hwang, ICLR 2021",
    leaves="the changed entries of its two parts of the model",
    pseudo_label="unlabeled",
    labels_at=EVERYWHERE,
    two_views=True,
    weighting="uniform",
)
def fedmatch(
    *,
    training: Training,
    supervised_weight: NotNegative = 10.0,
    consistency_weight: NotNegative = 0.01,
    l2_weight: NotNegative = 10.0,
    l1_weight: NotNegative = 1e-4,
    confidence: NotNegative = 0.75,
    num_helpers: Count = 2,
    helper_interval: Count = 10,
    psi_threshold: NotNegative = 0.0,
    delta_threshold: NotNegative = 0.0,
) -> FederatedAlgorithm:
    """FedMatch, in the scenario that `training.server.examples` says.

    Args:
        training: the training specification; its `local.strong_augment` is needed. The paper's rate is 1e-3
            and goes with its weights: SGD needs 2 `l2_weight` learning_rate < 2.
        supervised_weight: lambda_s, weight of the labels' term.
        consistency_weight: lambda_ICCS, weight of the terms of unlabeled examples.
        l2_weight: lambda_L2, weight of the squared distance of the two parts.
        l1_weight: lambda_L1, weight of the sum of |psi|, which makes psi sparse.
        confidence: tau, confidence from which an unlabeled example counts.
        num_helpers: H >= 1, number of helpers of a client.
        helper_interval: helpers are sent once in this number of rounds.
        psi_threshold: entries of psi up to this are 0 where it is sent and evaluated; 5e-6 in the code.
        delta_threshold: entries that a client changed by no more are not sent; 5e-5 in the code.

    Cost: two passes over a batch and one over its two views, and H + 1 in evaluation; the server keeps
    one psi a client.
    """
    weights = LossWeights(supervised_weight, consistency_weight, l2_weight, l1_weight, confidence)
    plain, strong = training.model, training.local.strong_augment
    training = training.with_states(two_part_model(plain, psi_threshold), divided)

    is_at_server, pointwise = training.server.examples is not None, training.local.pointwise
    by_labels = sigma_loss(plain, weights, weak=training.local.augment, pointwise=pointwise)

    def server_update(client: ClientRound) -> ClientUpdate:
        trained = client.steps(by_labels)
        after = with_parts_of(client.shared.model, trained.state, "psi")
        return client.update(trained._replace(state=after))

    def local_update(client: ClientRound) -> ClientUpdate:
        received = sparse(client.model, psi_threshold)
        by_agreement = psi_loss(plain, client.received, weights, strong=strong, pointwise=pointwise)
        loss = by_agreement if is_at_server else fedmatch_loss(by_labels, by_agreement)
        trained = client.steps(loss, start=received)
        after = trained.state
        if is_at_server:  # weight decay would change what is held fixed
            after = with_parts_of(received, after, "sigma")
        returned, num_bytes = changed(received, sparse(after, psi_threshold), delta_threshold)
        logits = plain.apply(composed(returned), random_input(client.data.x.shape[1:]))
        is_known = jnp.any(client.data.mask)  # without examples: no helper
        seen = Seen(returned["psi"], jax.nn.softmax(logits[0]), is_known)
        return client.update(
            trained._replace(state=returned), client_state=seen, sent={"parameters": num_bytes}
        )

    return federated_training(
        training,
        local_update,
        pseudo_label="unlabeled",
        init_client=lambda model, federation, key: Seen(
            nnx.filter_state(model, nnx.Param)["psi"],
            jnp.zeros(federation.num_classes),
            jnp.asarray(False),
        ),
        messages=Messages(
            helper_sender(num_helpers, helper_interval), received_bytes(psi_threshold)
        ),
        server_update=server_update,
    )


def fedmatch_loss(by_labels: Loss, by_agreement: Loss) -> Loss:
    """L_s(sigma) + L_u(psi) of states {sigma, psi}: the gradient of each part is its own loss's."""

    def loss(state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array) -> ValueAndState:
        supervised_key, unsupervised_key = jax.random.split(key)
        supervised, state = by_labels(state, anchor, batch, supervised_key)
        unsupervised, state = by_agreement(state, anchor, batch, unsupervised_key)
        return supervised + unsupervised, state

    return loss


def sigma_loss(
    model: Model, weights: LossWeights, *, weak: Augment | None, pointwise: Pointwise
) -> Loss:
    """L_s(sigma) of states {sigma, psi}; psi has no gradient."""

    def loss(state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array) -> ValueAndState:
        del anchor
        fixed_psi = jax.lax.stop_gradient(state["psi"])
        theta = composed(together(sigma=state["sigma"], psi=fixed_psi))
        logits, moved = losses.augmented_logits(model, theta, batch.x, key, weak)
        value = losses.labeled_mean(pointwise(logits, batch.label), batch)
        return weights.supervised * value, with_statistics_of(state, moved)

    return loss


def psi_loss(
    model: Model,
    helpers: Helpers,
    weights: LossWeights,
    *,
    strong: Augment | None,
    pointwise: Pointwise,
) -> Loss:
    """L_u(psi) of states {sigma, psi}; sigma has no gradient."""

    def loss(state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array) -> ValueAndState:
        sigma, psi = jax.lax.stop_gradient(state["sigma"]), state["psi"]
        augment_key, model_key = jax.random.split(key)
        x = losses.views((None, strong), (augment_key,) * 2, batch.x)
        logits, moved = model.train_apply(composed(together(sigma=sigma, psi=psi)), x, model_key)
        logits, strong_logits = jnp.split(logits.astype(jnp.float32), 2)
        log_p = jax.nn.log_softmax(logits)
        log_p_j = log_probabilities(model, anchor["sigma"], helpers.psi, batch.x)
        is_sure = jnp.max(log_p, axis=-1) >= jnp.log(weights.confidence)
        member = batch.used & ~batch.is_labeled & is_sure
        label = majority(log_p_j, log_p, helpers.is_present)
        agreement = losses.mean_where(pointwise(strong_logits, label), member)
        consistency = losses.mean_where(mean_divergence(log_p_j, log_p, helpers.is_present), member)
        nearness = weights.l2 * losses.squared_distance(sigma, psi)
        sparsity = weights.l1 * losses.absolute_size(psi)
        value = weights.consistency * (consistency + agreement) + (nearness + sparsity)
        return value, with_statistics_of(state, moved)

    return loss


def mean_divergence(others: jax.Array, log_p: jax.Array, is_present: jax.Array) -> jax.Array:
    """1/H sum_j KL(p_j || p), float32 [B], of log p_j [H, B, C] and log p [B, C].

    The mean is over the j with `is_present`, bool [H]; 0 without any.
    """
    count = jnp.maximum(jnp.sum(is_present), 1).astype(jnp.float32)
    each = jnp.sum(jnp.exp(others) * (others - log_p[None]), axis=-1)
    return weighted_sum(is_present.astype(jnp.float32), each) / count


def majority(others: jax.Array, log_p: jax.Array, is_present: jax.Array) -> jax.Array:
    """The class that most of p and p_j predict, int32 [B], ties to the smallest; see `mean_divergence`."""
    num_classes = log_p.shape[-1]

    def vote(log_probability: jax.Array) -> jax.Array:
        return jax.nn.one_hot(jnp.argmax(log_probability, axis=-1), num_classes)

    votes = vote(log_p) + weighted_sum(is_present.astype(jnp.float32), vote(others))
    return jnp.argmax(votes, axis=-1).astype(jnp.int32)


def decompose(state: nnx.State) -> nnx.State:
    """{sigma: a model's state, psi: 0.2 of its parameters}."""
    parameters, _ = nnx.split_state(state, nnx.Param, ...)
    return together(sigma=state, psi=jax.tree.map(lambda w: _PSI_SCALE * w, parameters))


def divided(state: nnx.State) -> nnx.State:
    """A model's state as the sum of two parts, psi = s sigma: w / (1 + s) and s w / (1 + s), s = 0.2."""
    parameters, statistics = nnx.split_state(state, nnx.Param, ...)
    sigma = jax.tree.map(lambda w: w / (1 + _PSI_SCALE), parameters)
    return decompose(nnx.merge_state(sigma, statistics))


def composed(state: nnx.State) -> nnx.State:
    """The plain model's state: parameters sigma + psi, and sigma's running statistics."""
    sigma, statistics = nnx.split_state(state["sigma"], nnx.Param, ...)
    return nnx.merge_state(jax.tree.map(jnp.add, sigma, state["psi"]), statistics)


def sparse(state: nnx.State, psi_threshold: float) -> nnx.State:
    """{sigma, psi} with psi's entries of at most `psi_threshold` in absolute value set to 0."""
    return together(sigma=state["sigma"], psi=without_small(state["psi"], psi_threshold))


def changed(
    received: nnx.State, trained: nnx.State, threshold: float
) -> tuple[nnx.State, jax.Array]:
    """Return a client's model as the server receives it, from entries changed by more than `threshold`.

    Returns:
        {sigma, psi} at the server, with statistics as trained, and the bytes, int32, of one message for each
        part's parameters.
    """
    before = nnx.filter_state(received, nnx.Param)
    after, statistics = nnx.split_state(trained, nnx.Param, ...)
    sigma, sigma_bytes = where_changed(before["sigma"], after["sigma"], threshold)
    psi, psi_bytes = where_changed(before["psi"], after["psi"], threshold)
    returned = nnx.merge_state(together(sigma=sigma, psi=psi), statistics)
    return returned, sigma_bytes + psi_bytes


def received_bytes(psi_threshold: float) -> Callable[[nnx.State], int]:
    """Return a function: parameters {sigma, psi} -> bytes of all of sigma and of a sparse psi's nonzeros."""

    @jax.jit
    def psi_bytes(psi: nnx.State) -> jax.Array:
        return num_bytes_of_nonzero(without_small(psi, psi_threshold))

    return lambda parameters: num_bytes_of(parameters["sigma"]) + int(psi_bytes(parameters["psi"]))


def log_probabilities(model: Model, sigma: nnx.State, psi: nnx.State, x: jax.Array) -> jax.Array:
    """log softmax(f_{sigma + psi_j}(x)), float32 [H, B, C], of one sigma and psi_j [H, ...].

    In evaluation mode, with sigma's statistics; no gradient flows through them.
    """

    def one(psi_j: nnx.State) -> jax.Array:
        logits = model.apply(composed(together(sigma=sigma, psi=psi_j)), x)
        return jax.nn.log_softmax(logits.astype(jnp.float32))

    return jax.lax.stop_gradient(jax.lax.map(one, psi))


def with_statistics_of(state: nnx.State, moved: nnx.State) -> nnx.State:
    """{sigma, psi} with the running statistics of a plain model's state."""
    statistics = nnx.split_state(moved, nnx.Param, ...)[1]
    return together(sigma=with_statistics(state["sigma"], statistics), psi=state["psi"])


def with_parts_of(before: nnx.State, after: nnx.State, part: str) -> nnx.State:
    """{sigma, psi} as `after`, with the parameters of one part as they were."""
    statistics = nnx.split_state(after[part], nnx.Param, ...)[1]
    parts = {"sigma": after["sigma"], "psi": after["psi"]}
    return together(**parts | {part: with_statistics(before[part], statistics)})


def two_part_model(model: Model, psi_threshold: float = 0.0) -> Model:
    """The model of states {sigma, psi}: evaluated with a sparse psi, trained with all of it."""

    def evaluated(state: nnx.State) -> nnx.State:
        return composed(sparse(state, psi_threshold))

    def train_features(state: nnx.State, x: jax.Array, key: jax.Array) -> ValueAndState:
        trained, moved = model.train_features(composed(state), x, key)
        return trained, with_statistics_of(state, moved)

    return compose(
        init=lambda key: decompose(model.init(key)),
        features=lambda state, x: model.features(evaluated(state), x),
        head=lambda state, features: model.head(evaluated(state), features),
        train_features=train_features,
    )


def random_input(shape: tuple[int, ...]) -> jax.Array:
    """The input [1, ...] on which all models are compared, the same in every round.

    A normal with mean and deviation 125, truncated to 0..255 and divided by 255: an image in [0, 1].
    """
    lower, upper = (0 - _MEAN) / _DEVIATION, (1 - _MEAN) / _DEVIATION
    key = jax.random.key(_INPUT_SEED)
    normal = jax.random.truncated_normal(key, lower, upper, (1, *shape))
    return jnp.clip(_MEAN + _DEVIATION * normal, 0, 1)  # against rounding errors


def helper_sender(num_helpers: int, interval: int) -> Send:
    """Return the hook that sends each client its helpers' psi, in every `interval`-th round.

    Other rounds send nothing. Zeros of psi are not sent.
    """

    @jax.jit
    def collect(known: nnx.State, helper_id: jax.Array) -> tuple[Helpers, jax.Array]:
        psi = gather(known, helper_id)
        sizes = jax.vmap(jax.vmap(num_bytes_of_nonzero))(psi)
        return Helpers(psi, helper_id >= 0), sizes

    def send(state: ServerState, cohort: Cohort, communication: Communication) -> Helpers:
        client_id, known = np.asarray(cohort.client_id), state.clients
        helper_id = np.full((len(client_id), num_helpers), _NO_CLIENT, np.int32)
        if (int(state.round) + 1) % interval == 0:
            seen_id = took_part(known.is_known)
            seen_id = seen_id[np.asarray(gather(known.is_known, seen_id))]
            outputs = np.asarray(gather(known.outputs, seen_id))
            helper_id = nearest_clients(outputs, seen_id, client_id, num_helpers)
        helpers, sizes = collect(of_cohort(known.psi, helper_id), jnp.asarray(helper_id))
        if (helper_id >= 0).any():
            sent = np.where(helper_id >= 0, sizes, 0)
            communication.down("helpers", int(np.sum(sent, dtype=np.int64)))
        return helpers

    return send


def nearest_clients(
    outputs: np.ndarray, seen_id: np.ndarray, client_id: np.ndarray, num_helpers: int
) -> np.ndarray:
    """Each client's nearest others by Euclidean distance of outputs, int32 [K, H].

    Empty slots hold -1: all slots of a client that the server has not seen yet, and some if fewer than H
    others are.

    Args:
        outputs: [N, C], of the clients that the server has seen.
        seen_id: their numbers, int [N], ascending.
        client_id: the cohort's numbers, int [K]; -1 for padding.
        num_helpers: H.
    """
    from scipy.spatial import cKDTree  # here, because it takes a tenth of a second to import

    helper_id = np.full((len(client_id), num_helpers), _NO_CLIENT, np.int32)
    asking = np.flatnonzero(np.isin(client_id, seen_id))
    if len(asking) and len(seen_id) > 1:
        client_outputs = outputs[np.searchsorted(seen_id, client_id[asking])]
        _, neighbors = cKDTree(outputs).query(client_outputs, k=min(num_helpers + 1, len(seen_id)))
        for row, nearest in zip(asking, seen_id[neighbors], strict=True):
            others = nearest[nearest != client_id[row]][:num_helpers]
            helper_id[row, : len(others)] = others
    return helper_id


def without_small(tree: Any, threshold: float) -> Any:
    """Set entries of at most `threshold` in absolute value to 0, in float32 pytrees; 0 changes nothing."""
    return jax.tree.map(lambda leaf: jnp.where(jnp.abs(leaf) > threshold, leaf, 0), tree)


def where_changed(before: Any, after: Any, threshold: float) -> tuple[Any, jax.Array]:
    """Update `before` by the entries that changed by more than `threshold`, as the receiver does.

    Returns:
        `after` in the entries that are sent and `before` in the others, and the message's bytes, int32.
    """
    is_sent = jax.tree.map(lambda a, b: jnp.abs(b - a) > threshold, before, after)
    return jax.tree.map(jnp.where, is_sent, after, before), num_bytes(after, is_sent)


def num_bytes_of_nonzero(tree: Any) -> jax.Array:
    """Bytes, int32, of a pytree whose zeros are not sent."""
    return num_bytes(tree, jax.tree.map(lambda leaf: leaf != 0, tree))


def num_bytes(tree: Any, is_sent: Any) -> jax.Array:
    """Bytes, int32, of one message with the pytree's sent entries; `is_sent` is bool, of its form."""
    leaves = jax.tree.leaves(tree)
    counts = [jnp.sum(sent, dtype=jnp.int32) for sent in jax.tree.leaves(is_sent)]
    pairs = zip(counts, leaves, strict=True)
    values = sum((count * leaf.dtype.itemsize for count, leaf in pairs), jnp.int32(0))
    bitmap = -(-sum(leaf.size for leaf in leaves) // 8) + values
    coordinates = _INDEX_BYTES * sum(counts, jnp.int32(0)) + values
    return jnp.minimum(jnp.minimum(num_bytes_of(leaves), bitmap), coordinates)
