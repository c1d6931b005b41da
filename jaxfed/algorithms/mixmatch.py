"""MixMatch: guessed labels and mixed examples, as the clients' loss in FedAvg.

    w_k <- w;  E epochs of  w_k <- w_k - eta grad l_MixMatch(w_k; B_L u B_U)
    mean as FedAvg

(The baseline MixMatch-FedAvg of ProtoFSSL's cost analysis.) With K draws a_1 .. a_K of the augmentation:

    q_u = sharpen( 1/K sum_a softmax f(a(u)) ),   sharpen(p)_c = p_c^(1/T) / sum_c' p_c'^(1/T)        (6, 7)
    rows (x, p): (a(x), onehot y) of B_L, (a_1(u), q_u) .. (a_K(u), q_u) of B_U;  (x', p') in another order
    g ~ Beta(alpha, alpha),  g' = max(g, 1 - g),  (x, p)_i <- g' (x, p)_i + (1 - g') (x', p')_i        (8-11)
    l = mean_{rows of B_L} CE(p, f(x)) + lambda_U(r) mean_{rows of B_U} 1/C |p - softmax f(x)|^2         (3-5)

The guess q is held fixed. lambda_U grows linearly: in the paper with the steps, over the first 16,000; here
with the rounds, lambda_U(r) = lambda_U min(1, r / R) in round r = 1, 2, .. of the stage, for all of its
steps. All rows go through the network together, where the code deals them to interleaved batches so that
batch statistics are of both; as there, the pass that guesses does not move running statistics. Its moving
average of parameters for evaluation is not part of the loss, and its weight decay is `training.weight_decay`.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.method import method
from jaxfed.settings import Count, CountOrZero, NotNegative, Positive
from jaxfed.training.local.losses import Batch, Loss, ValueAndState, mean_where, views
from jaxfed.training.pseudo_labels.prototypes import sharpened
from jaxfed.training.round.client_round import ClientRound, ClientUpdate
from jaxfed.training.round.round import federated_training
from jaxfed.training.specification import Training


@method(
    title="MixMatch",
    cites="Berthelot, Carlini, Goodfellow, Oliver, Papernot, Raffel, NeurIPS 2019",
    leaves="its model's change",
    on_network=True,
    pseudo_label="unlabeled",
    unread=("pointwise",),
)
def mixmatch(
    *,
    training: Training,
    num_augmentations: Count = 2,
    temperature: Positive = 0.5,
    alpha: Positive = 0.75,
    unlabeled_weight: NotNegative = 75.0,
    rampup_rounds: CountOrZero = 10,
) -> FederatedAlgorithm:
    """FedAvg on MixMatch's loss. Defaults are the paper's for CIFAR-10 but for R.

    Args:
        training: the training specification; its `local.augment` is a. Its `local.pointwise` is refused:
            labels are mixtures.
        num_augmentations: K, draws of the augmentation that an example's label is guessed from.
        temperature: T of sharpening; below 1 sharpens guessed labels.
        alpha: parameter of the Beta distribution of mixing weights.
        unlabeled_weight: lambda_U, weight of the unlabeled examples' term.
        rampup_rounds: R, rounds until this weight is full; 0 is no ramp-up.

    Cost: two passes over K views of a batch, one of them back. (Second and later views of labeled rows have
    no part: shapes are the same whatever a batch holds.)
    """

    def local_update(client: ClientRound) -> ClientUpdate:
        number = (client.shared.round + 1).astype(jnp.float32)
        share = jnp.minimum(number / rampup_rounds, 1) if rampup_rounds else jnp.float32(1)
        loss = mixmatch_loss(
            training,
            num_augmentations=num_augmentations,
            temperature=temperature,
            alpha=alpha,
            unlabeled_weight=unlabeled_weight * share,
        )
        return client.update(client.steps(loss))

    return federated_training(training, local_update, pseudo_label="unlabeled")


def mixmatch_loss(
    training: Training,
    *,
    num_augmentations: int,
    temperature: float,
    alpha: float,
    unlabeled_weight: float | jax.Array,
) -> Loss:
    """l of a batch; of its rows B, K views each are computed with, [K B, ...], view after view."""
    model, augments = training.model, (training.local.augment,) * num_augmentations

    def loss(state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array) -> ValueAndState:
        del anchor
        views_key, guess_key, mix_key, model_key = jax.random.split(key, 4)
        x = views(augments, jax.random.split(views_key, num_augmentations), batch.x)
        guesses = jax.nn.softmax(model.train_apply(state, x, guess_key)[0].astype(jnp.float32))
        num_classes = guesses.shape[-1]
        guess = jnp.mean(guesses.reshape(num_augmentations, -1, num_classes), axis=0)
        is_labeled = batch.is_labeled[:, None]
        target = jnp.where(
            is_labeled,
            jax.nn.one_hot(batch.label, num_classes),
            jax.lax.stop_gradient(sharpened(guess, temperature)),
        )
        target = jnp.tile(target, (num_augmentations, 1))
        from_labels = jnp.tile(batch.is_labeled, num_augmentations)
        is_first = jnp.arange(len(x)) < len(batch.x)
        member = jnp.tile(batch.used, num_augmentations) & (is_first | ~from_labels)
        x, target = mixed_up(mix_key, x, target, member, alpha)
        logits, moved = model.train_apply(state, x, model_key)
        log_p = jax.nn.log_softmax(logits.astype(jnp.float32))
        cross_entropy = -jnp.sum(target * log_p, axis=-1)
        brier = jnp.mean(jnp.square(target - jnp.exp(log_p)), axis=-1)
        supervised = mean_where(cross_entropy, member & from_labels)
        consistency = mean_where(brier, member & ~from_labels)
        return supervised + unlabeled_weight * consistency, moved

    return loss


def mixed_up(
    key: jax.Array, x: jax.Array, target: jax.Array, member: jax.Array, alpha: float
) -> tuple[jax.Array, jax.Array]:
    """Each row with another one's share: x [n, ...], targets [n, C].

    Partners are a random permutation of the members, bool [n]; other rows stay as they are. A row keeps its
    greater share, drawn for it alone (one for a batch is the other reading of the paper's; the code draws one
    for each row).
    """
    order_key, share_key = jax.random.split(key)
    draw = jax.random.uniform(order_key, member.shape)
    order = jnp.argsort(jnp.where(member, draw, jnp.inf))  # the members first
    partner = jnp.where(member, order[jnp.cumsum(member) - 1], jnp.arange(len(member)))
    share = jax.random.beta(share_key, alpha, alpha, member.shape)
    share = jnp.maximum(share, 1 - share)

    def mix(rows: jax.Array) -> jax.Array:
        weight = share.reshape(-1, *[1] * (rows.ndim - 1))
        return weight * rows + (1 - weight) * rows[partner]

    return mix(x), mix(target)
