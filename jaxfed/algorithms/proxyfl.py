"""ProxyFL: the rows of the classifier serve as proxies of the classes.

The server aggregates as in FedAvg, and then tunes the classifier's rows W_c against the clients' rows w_mc:

    W <- W - eta grad sum_c 1/M sum_m -log softmax_c'(-|W_c - w_mc'|)_c      Q steps, from the mean    (2)

Client m receives this model, and a prior of classes P, 1/C at first. P_m(c) is the share of class c among its
given labels and its sure pseudo-labels; the mean is over the round's clients that have any such example:

    P <- mean_m P_m                                                                                 (5)

p_G is the prediction of the received model, frozen, and p_L that of the model in training:

    L = 1/|B_L| sum_{B_L} l(f(weak(x)), y)
        + unlabeled_weight 1/|B_hc| sum_{B_hc} l(f(strong(u)), argmax p_G)                              (9)
        + contrast_weight [ 1/|B_hc| sum_{B_hc} l_i + 1/|B_lc| sum_{B_lc} l_i ]                         (8)

B_hc are a batch's unlabeled examples with max p_G >= tau, B_lc its other unlabeled ones. l_i pulls the
features z_i of the weak view towards the row of its class or, if p_G is not sure, towards the rows of all
classes that are likelier under p_G than under P. Its negatives are the examples that share no class with i:

    xi = {y}  with a label;   {argmax p_G}  if max p_G >= tau;   {c: p_G(c) > P(c)}  else
    s_i = cos(z_i, w_y), y in xi_i  if sure;   sum_{c in xi_i} p_L(c) cos(z_i, w_c)  else
    R_i = {j in batch: xi_i and xi_j are disjoint}
    l_i = -log [ exp(s_i) / (exp(s_i) + sum_{j in R_i} exp(cos(z_i, z_j))) ]

Details that the paper leaves open:

  * The distance is Euclidean, and (2) has the mean over clients in place of the sum, so that steps do not
    grow with their number. Tuning moves the kernel's columns; the bias stays the mean.
  * The weights p_L in s_i are probabilities, held fixed. An example whose set of classes is empty does not
    count.
  * Clients compute their class shares P_m before their first step, by the received model on one weak view.

Differences from the authors' code:

  * The code's prior is a moving average: 0.99 P plus 0.01 of the round's pooled counts in batches of the last
    epoch. Here, as in the paper, it is the round's mean alone.
  * The code's tuning has, for each client's row, a softmax over the global rows, in shuffled batches of ten
    at rate 0.01. The distance to the row's own class has a margin added: the largest distance of a row of the
    mean to its nearest row.
  * (8) has inner products. The code has cosines, of features and rows after two more layers. Here they are
    cosines of features and rows themselves.
  * In the code a labeled example has the set of its prediction p_G, as unlabeled ones have, and not its
    label's; it serves as a negative, and has no l_i of its own.
  * The code leaves out negatives with a cosine below 0, treats strong views as further examples, weighs rows
    by p_G, also counts an example as sure if p_L is, and averages over all unlabeled examples.

Labels at the server: the server trains on them, and clients train on the terms of unlabeled examples.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import EVERYWHERE, method
from jaxfed.models.head import Path, dense_head, leaf_of, with_leaf
from jaxfed.settings import CountOrZero, NotNegative, Share
from jaxfed.training.aggregate import Aggregate, in_all
from jaxfed.training.local.batches import ClientData, class_counts, usable
from jaxfed.training.local.consistency import passed
from jaxfed.training.local.losses import Batch, Loss, ValueAndState, labeled_mean, mean_where, unit
from jaxfed.training.pseudo_labels.prototypes import euclidean
from jaxfed.training.round.client_round import ClientRound, ClientUpdate, plain_update
from jaxfed.training.round.parts import Messages, UploadStore, sent_to_all
from jaxfed.training.round.round import aggregate_of, federated_training, weighted_mean
from jaxfed.training.specification import Training


@method(
    title="ProxyFL",
    cites="Chen, Wang, CVPR 2026, arXiv 2602.21078",
    leaves="its model's change, and the C class shares among its labels and sure predictions",
    on_network=True,
    pseudo_label="unlabeled",
    labels_at=EVERYWHERE,
    two_views=True,
)
def proxyfl(
    *,
    training: Training,
    threshold: Share = 0.95,
    unlabeled_weight: NotNegative = 1.0,
    contrast_weight: NotNegative = 1.0,
    tuning_steps: CountOrZero = 100,
    tuning_rate: NotNegative = 0.005,
) -> FederatedAlgorithm:
    """ProxyFL.

    Args:
        training: the training specification; its `local.strong_augment` is needed, and a network whose head
            is one dense layer.
        threshold: tau in [0, 1]: the received model is sure of an example if its confidence is at least tau.
        unlabeled_weight: weight of the pseudo-labels' term.
        contrast_weight: weight of the contrastive term.
        tuning_steps: Q, the server's steps; 10 for CIFAR-100, 100 for other data. 0 is FedAvg's aggregation.
        tuning_rate: eta, learning rate of these steps.

    Raises:
        UsageError: the network has another head.

    Cost: FixMatch's, plus a forward pass over each weak view and, each round, one over a client's data. The
    server computes Q C^2 D per client.
    """
    kernel, _, num_classes = dense_head(training.model, "proxyfl")
    tuned = with_tuned_proxies(aggregate_of(training), kernel, tuning_steps, tuning_rate)
    training = training.with_server(aggregate=tuned)

    def local_update(client: ClientRound) -> ClientUpdate:
        shares = class_shares(client.data, *client.predictions(), threshold)
        weights = unlabeled_weight, contrast_weight
        loss = proxy_loss(training, kernel, client.received, threshold, weights)
        return client.update(
            client.steps(loss), upload=shares, sent={"class_shares": share_bytes(shares)}
        )

    return federated_training(
        training,
        local_update,
        pseudo_label="unlabeled",
        messages=Messages(sent_to_all("class_prior", lambda prior: prior)),
        hooks=(prior_store(num_classes),),
        server_update=plain_update(training.loss),
    )


def proxy_loss(
    training: Training,
    kernel: Path,
    prior: jax.Array,
    threshold: float,
    weights: tuple[float, float],
) -> Loss:
    """L of a batch; `weights` are those of (9) and (8), `kernel` is the path of the classifier's rows."""
    model, local, pointwise = training.model, training.local, training.local.pointwise

    def loss(state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array) -> ValueAndState:
        seen = passed(model, local, state, anchor, batch, key, asks_received=True)
        p_client, received, strong, _ = seen.views
        sets, is_sure = class_sets(received, batch, prior, threshold)
        terms = contrast(
            seen.features.astype(jnp.float32),
            leaf_of(state, kernel).T,
            sets,
            jnp.where(is_sure[:, None], 1, p_client),
            batch.used,
        )
        sure = batch.used & is_sure
        unsure = batch.used & ~batch.is_labeled & ~is_sure & jnp.any(sets, axis=-1)
        label = jnp.argmax(received, axis=-1).astype(jnp.int32)
        value = labeled_mean(pointwise(seen.weak, batch.label), batch)
        value += weights[0] * mean_where(pointwise(strong, label), sure)
        value += weights[1] * (mean_where(terms, sure) + mean_where(terms, unsure))
        return value, seen.state

    return loss


def class_sets(
    received: jax.Array, batch: Batch, prior: jax.Array, threshold: float
) -> tuple[jax.Array, jax.Array]:
    """Return xi, bool [B, C], and the unlabeled examples that p_G [B, C] is sure of, bool [B]."""
    num_classes = received.shape[-1]
    is_sure = ~batch.is_labeled & (jnp.max(received, axis=-1) >= threshold)
    surest = jnp.argmax(received, axis=-1).astype(jnp.int32)
    label = jnp.where(batch.is_labeled, batch.label, surest)
    one = jax.nn.one_hot(label, num_classes, dtype=bool)
    several = received > prior[None]
    return jnp.where((batch.is_labeled | is_sure)[:, None], one, several), is_sure


def contrast(
    features: jax.Array, rows: jax.Array, sets: jax.Array, weights: jax.Array, used: jax.Array
) -> jax.Array:
    """l_i, float32 [B]; sums over no classes or no negatives are 0.

    Args:
        features: z, float32 [B, D].
        rows: w, float32 [C, D].
        sets: xi, bool [B, C].
        weights: float32 [B, C], weights of the classes in s_i.
        used: bool [B], examples in use; only these are negatives.
    """
    features, rows = unit(features), unit(rows)
    positive = jnp.sum(jnp.where(sets, weights, 0) * (features @ rows.T), axis=-1)
    member = sets.astype(jnp.float32)
    is_negative = (member @ member.T == 0) & used[None, :]
    negatives = jnp.where(is_negative, features @ features.T, -jnp.inf)
    both = jnp.concatenate([positive[:, None], negatives], axis=-1)
    return jax.nn.logsumexp(both, axis=-1) - positive


def class_shares(
    data: ClientData, p: jax.Array, is_unlabeled: jax.Array, threshold: float
) -> jax.Array:
    """P_m, float32 [C], from the received model's predictions [N, C]; zeros without any such example."""
    is_sure = is_unlabeled & (jnp.max(p, axis=-1) >= threshold)
    label = jnp.where(is_sure, jnp.argmax(p, axis=-1).astype(jnp.int32), data.label)
    counted = is_sure | (usable(data) & data.is_labeled)
    count = class_counts(label, counted, p.shape[-1])
    return count / jnp.maximum(jnp.sum(counted), 1).astype(jnp.float32)


def share_bytes(shares: jax.Array) -> jax.Array:
    """Bytes of a client's message, int32: C numbers, or none from a client that counted nothing."""
    return jnp.where(jnp.any(shares > 0), 4 * shares.shape[-1], 0).astype(jnp.int32)


def prior_store(num_classes: int) -> UploadStore:
    """The server's store of the prior."""

    @jax.jit
    def updated(prior: jax.Array, client_id: jax.Array, shares: jax.Array) -> jax.Array:
        counts = (client_id >= 0) & jnp.any(shares > 0, axis=-1)
        mean = weighted_mean(shares, counts.astype(jnp.float32))
        return jnp.where(jnp.any(counts), mean, prior)

    return UploadStore(
        lambda model, federation, key: jnp.full(num_classes, 1 / num_classes, jnp.float32),
        lambda prior, client_id, shares, *_: updated(prior, client_id, shares),
    )


def with_tuned_proxies(aggregate: Aggregate, kernel: Path, steps: int, rate: float) -> Aggregate:
    """Return the aggregate, followed by Q = `steps` steps at rate eta on the kernel's columns."""

    def apply(
        model: nnx.State, deltas: nnx.State, weights: jax.Array, state: Any
    ) -> tuple[nnx.State, Any]:
        mean, state = aggregate.apply(model, deltas, weights, state)
        theirs = leaf_of(model, kernel)[None] + leaf_of(deltas, kernel)  # [K, D, C]
        counts = in_all(weights) > 0
        rows = tuned(leaf_of(mean, kernel).T, jnp.swapaxes(theirs, 1, 2), counts, steps, rate)
        return with_leaf(mean, kernel, rows.T), state

    return Aggregate(aggregate.init, apply)


def tuned(
    rows: jax.Array, theirs: jax.Array, counts: jax.Array, steps: int, rate: float
) -> jax.Array:
    """Return W_Q, float32 [C, D]; W_0 if no client counts.

    Args:
        rows: W_0.
        theirs: w_m, float32 [K, C, D].
        counts: bool [K], the clients that count.
        steps: Q.
        rate: eta.
    """
    share = counts.astype(jnp.float32) / jnp.maximum(jnp.sum(counts), 1).astype(jnp.float32)
    slope = jax.grad(lambda rows, centers: jnp.sum(-jnp.diagonal(log_shares(rows, centers))))

    def step(_: jax.Array, rows: jax.Array) -> jax.Array:
        def add(client: jax.Array, total: jax.Array) -> jax.Array:
            return total + share[client] * slope(rows, theirs[client])

        return rows - rate * jax.lax.fori_loop(0, len(theirs), add, jnp.zeros_like(rows))

    return jax.lax.fori_loop(0, steps, step, rows)


def log_shares(rows: jax.Array, centers: jax.Array) -> jax.Array:
    """log softmax over c' of -d(W_c, w_c'), float32 [C, C], of two classifiers' rows [C, D]."""
    return jax.nn.log_softmax(-euclidean(rows, centers), axis=-1)
