"""Indecisive-categories proxy learning: a contrast of features with the classifier's rows.

Every example of a batch has a set of classes xi. The received model predicts p_G, the one in training p_L:

    xi = {y}  with a label;   {argmax p_G}  if max p_G >= tau;   {c: p_G(c) > P(c)}  else
    s_i = sim(z_i, w_y), y in xi_i  if sure;   sum_{c in xi_i} p_L(c) sim(z_i, w_c)  else
    R_i = {j in batch: xi_i and xi_j are disjoint}
    l_i = -log [ exp(s_i) / (exp(s_i) + sum_{j in R_i} exp(sim(z_i, z_j))) ]

z are features of the weak views, w the classifier's rows in training, P the prior of classes. `sim` is the
inner product, or the cosine.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxfed.training.local.losses import Batch
from jaxfed.training.local.similarity import unit


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
    features: jax.Array,
    rows: jax.Array,
    sets: jax.Array,
    weights: jax.Array,
    used: jax.Array,
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
