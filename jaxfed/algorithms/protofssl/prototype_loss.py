"""The loss of an episode: labeled queries by the support's prototypes, unlabeled ones by given targets.

    c_k = mean of f(x) over S_k,    p(z; c)_k = exp(-d(z, c_k)) / sum_k' exp(-d(z, c_k'))
    mean_{x in Q_L} CE(y, p(f(x); c)) + lambda mean_{u in Q_U} w(u) CE(target(u), p(f(u); c))

(ProtoFSSL's equation 8, `jaxfed.algorithms.protofssl`, which has w = 1.)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.training.local.episodes import Episodes
from jaxfed.training.local.losses import Batch, Loss, mean_where
from jaxfed.training.pseudo_labels.prototypes import (
    Distance,
    Prototypes,
    joint_means,
    log_probabilities,
    mean_probabilities,
    sharpened,
    support_means,
)

if TYPE_CHECKING:
    from jaxfed.models import Model

MissingClass = Literal["leave_out", "mean"]
TargetSource = Literal["helpers", "xclp"]


def prototype_loss(
    model: Model,
    helpers: Prototypes,
    sizes: Episodes,
    *,
    unlabeled_weight: float | jax.Array,
    temperature: float,
    distance: Distance,
    by_helpers: bool = False,
    missing_class: MissingClass = "leave_out",
    targets: TargetSource = "helpers",
) -> Loss:
    """Eq. 8 on the rows of an episode, all of them embedded in one pass.

    Args:
        model: a model without its last layer.
        helpers: prototypes [H, C, D] that the client received.
        sizes: of the episode.
        unlabeled_weight: lambda.
        temperature: T.
        distance: d.
        by_helpers: use the mean of the helpers' prototypes in place of the support's.
        missing_class: treatment of a class without a prototype (`jaxfed.algorithms.protofssl`).
        targets: source of the unlabeled examples' targets: predictions by the helpers' prototypes, or the
            batch's labels with their weights.
    """

    def loss(
        state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array
    ) -> tuple[jax.Array, nnx.State]:
        del anchor
        embedding, moved = model.train_features(state, batch.x, key)
        embedding = embedding.astype(jnp.float32)
        first, second = sizes.ends
        label, used = batch.label, batch.used
        own = (
            joint_means(helpers)
            if by_helpers
            else support_means(embedding[:first], used[:first], sizes.num_classes)
        )
        log_p = log_probabilities(embedding[first:], own, distance)
        log_p_labeled, log_p_unlabeled = log_p[: second - first], log_p[second - first :]
        if targets == "helpers":
            target = mean_probabilities(embedding[second:], helpers, distance)
            weight = jnp.ones(sizes.unlabeled)
        else:
            target = jax.nn.one_hot(label[second:], sizes.num_classes)
            weight = batch.weight[second:]
        if missing_class == "leave_out":
            target = sharpened(jnp.where(own.is_there, target, 0), temperature)
        else:
            target = jnp.where(own.is_there, sharpened(target, temperature), 0)
        target = jax.lax.stop_gradient(target)
        is_known = own.is_there[label[first:second]]  # False only if helpers lack a class
        supervised = -jnp.take_along_axis(log_p_labeled, label[first:second, None], axis=1)[:, 0]
        # 0 log 0 = 0, in the gradient too.
        unsupervised = -jnp.sum(target * jnp.where(own.is_there, log_p_unlabeled, 0), axis=-1)
        has_target = jnp.sum(target, axis=-1) > 0
        value = mean_where(supervised, used[first:second] & is_known)
        value += unlabeled_weight * mean_where(weight * unsupervised, used[second:] & has_target)
        return value, moved

    return loss
