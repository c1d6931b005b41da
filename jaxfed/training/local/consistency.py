"""Consistency of two views of unlabeled examples: the loss of FixMatch and its relatives.

    1 / |B_L| sum_{i in B_L} l(f(weak(x_i)), y_i)  +  unlabeled_weight / |B_U| sum_{i in B_U} term_i

f is the model in training, g the model that the client received in this round, frozen. Methods differ in
term_i, a function of

    p_L = softmax(f(weak(x_i))),   p_G = softmax(g(weak(x_i))),   f(strong(x_i))

with p_L and p_G held fixed. `consistency` builds a loss from a term: a new method is a new term.

Predictions for all of a client's examples, outside its steps, give estimates of its class shares, labels that
are fixed for a round, and thresholds by class, by the received model on the client's unlabeled examples:

    p_i = softmax(g(weak(x_i))),   g in evaluation mode;   m_i = max p_i,   y_i = argmax p_i

fixed       tau_c = tau                                                   FixMatch (NeurIPS 2020)
flexmatch   n_c = #{i: y_i = c, m_i >= tau},  n_0 = #{i: m_i < tau},  beta_c = n_c / max(max_c n_c, n_0)
            tau_c = tau beta_c / (2 - beta_c)                             FlexMatch (Zhang, NeurIPS 2021)
freematch   tau_c = mean_i m_i  q_c / max_c q_c,   q = mean_i p_i         FreeMatch (Wang, ICLR 2023)

FlexMatch and FreeMatch have low thresholds for hard classes, and early in training. Both papers update their
estimates at every step, by the last prediction for each example or by moving averages. A client has few steps
in a round, and would have to store its estimates: here the received model makes them anew in each round, as
in (FL)^2, which has FreeMatch's thresholds. FreeMatch's fairness term is a loss, no threshold, and left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.training.local.batches import class_counts
from jaxfed.training.local.losses import (
    Batch,
    Loss,
    Pointwise,
    ValueAndState,
    fixed_softmax,
    labeled_mean,
    mean_where,
    softmax_cross_entropy,
    unlabeled_mean,
)
from jaxfed.xclp.steps.prediction import entropy

if TYPE_CHECKING:
    from jaxfed.models import Model
    from jaxfed.training.local.local_training import LocalTraining


LabeledBy = Literal["own", "received"]


class Views(NamedTuple):
    """Predictions for a batch: the input of a term.

    Fields:
        current: float32 [B, C], p_L: by the model in training, held fixed.
        received: float32 [B, C], p_G: by the received model in evaluation mode; p_L unless `asks_received`.
        strong: [B, C], logits of the model in training on the strong view; differentiated.
        batch: the batch; terms of labeled and unused examples are not counted.
    """

    current: jax.Array
    received: jax.Array
    strong: jax.Array
    batch: Batch


Term = Callable[[Views], jax.Array]  # float32 [B]


class Passed(NamedTuple):
    """Result of a step's forward pass over both views.

    Fields:
        views: the predictions that terms depend on.
        weak: [B, C], logits on the weak view; differentiated.
        features: [B, D], on the weak view; differentiated.
        state: the state in training, with its batch statistics moved on.
    """

    views: Views
    weak: jax.Array
    features: jax.Array
    state: nnx.State


def passed(
    model: Model,
    local: LocalTraining,
    state: nnx.State,
    anchor: nnx.State,
    batch: Batch,
    key: jax.Array,
    *,
    asks_received: bool = False,
) -> Passed:
    """Return the model's outputs for both views of a batch, in a step with this key.

    Both views go through the network together, as in FixMatch's code: batch statistics cover both.
    """
    *view_keys, model_key = jax.random.split(key, 3)
    x = local.two_views(view_keys, batch.x)
    features, moved = model.train_features(state, x, model_key)
    weak, strong = jnp.split(model.head(state, features), 2)
    p = received = fixed_softmax(weak)
    if asks_received:
        received = fixed_softmax(model.apply(anchor, jnp.split(x, 2)[0]))
    return Passed(Views(p, received, strong, batch), weak, jnp.split(features, 2)[0], moved)


def consistency(
    model: Model,
    local: LocalTraining,
    term: Term,
    *,
    asks_received: bool = False,
    unlabeled_weight: float = 1.0,
) -> Loss:
    """Build the loss at the top of this file from a term, the loss of each unlabeled example.

    `asks_received`: the term uses `Views.received`, for one more forward pass over the weak view.
    """

    def loss(state: nnx.State, anchor: nnx.State, batch: Batch, key: jax.Array) -> ValueAndState:
        seen = passed(model, local, state, anchor, batch, key, asks_received=asks_received)
        supervised = labeled_mean(local.pointwise(seen.weak, batch.label), batch)
        return supervised + unlabeled_weight * unlabeled_mean(term(seen.views), batch), seen.state

    return loss


def confident(
    threshold: float | jax.Array,
    *,
    labeled_by: LabeledBy = "own",
    pointwise: Pointwise = softmax_cross_entropy,
) -> Term:
    """FixMatch's term (Sohn et al., NeurIPS 2020, eq. 4): 1[max p >= threshold] l(f(strong(x)), argmax p).

    Args:
        threshold: one number, or float32 [C], one for each predicted class.
        labeled_by: "own": p = p_L; "received": p = p_G.
        pointwise: l.
    """

    def term(views: Views) -> jax.Array:
        p = views.current if labeled_by == "own" else views.received
        label = jnp.argmax(p, axis=-1).astype(jnp.int32)
        least = jnp.asarray(threshold, jnp.float32)
        is_sure = jnp.max(p, axis=-1) >= (least[label] if least.ndim else least)
        return is_sure.astype(jnp.float32) * pointwise(views.strong, label)

    return term


def graph_where_unsure(
    term: Term, threshold: float, pointwise: Pointwise = softmax_cross_entropy
) -> Term:
    """A term that falls back on the round's pseudo-labels (XCLP's, say) where no network is sure:

        term_i                                 if max p_L >= threshold or max p_G >= threshold
        weight_i l(f(strong(x_i)), label_i)    else

    label_i and its confidence weight_i are the batch's; a source of labels sets them once a round. Where the
    graph is unsure too, weight_i is small, and 0 where it has no label.
    """

    def either(views: Views) -> jax.Array:
        surest = jnp.maximum(jnp.max(views.current, axis=-1), jnp.max(views.received, axis=-1))
        by_graph = views.batch.weight * pointwise(views.strong, views.batch.label)
        return jnp.where(surest >= threshold, term(views), by_graph)

    return either


def soft_cross_entropy(logits: jax.Array, target: jax.Array) -> jax.Array:
    """-sum_c target_c log softmax(logits)_c, float32 [...], of logits and probabilities [..., C].

    Its gradient in the logits is that of KL(target, softmax(logits)); the two differ by target's entropy.
    """
    return -jnp.sum(target * jax.nn.log_softmax(logits.astype(jnp.float32)), axis=-1)


def divergence(logits: jax.Array, target: jax.Array) -> jax.Array:
    """KL(target, softmax(logits)), float32 [...], of logits and probabilities [..., C]; 0 log 0 = 0."""
    return soft_cross_entropy(logits, target) - entropy(target)


Thresholds = Literal["fixed", "flexmatch", "freematch"]


def flexmatch(p: jax.Array, member: jax.Array, tau: float) -> jax.Array:
    """FlexMatch's tau_c, float32 [C], of predictions float32 [N, C] for members, bool [N]."""
    is_sure = member & (jnp.max(p, axis=-1) >= tau)
    count = class_counts(jnp.argmax(p, axis=-1), is_sure, p.shape[-1])
    unsure = jnp.sum(member & ~is_sure).astype(jnp.float32)
    beta = count / jnp.maximum(jnp.maximum(jnp.max(count), unsure), 1)
    return tau * beta / (2 - beta)


def freematch(p: jax.Array, member: jax.Array) -> jax.Array:
    """FreeMatch's tau_c, float32 [C], of predictions float32 [N, C] for members, bool [N]."""
    share = mean_where(p, member)
    confidence = mean_where(jnp.max(p, axis=-1), member)
    return confidence * share / jnp.maximum(jnp.max(share), 1e-12)


THRESHOLDS: dict[str, Callable[[jax.Array, jax.Array, float], jax.Array]] = {
    "flexmatch": flexmatch,
    "freematch": lambda p, member, tau: freematch(p, member),
}
