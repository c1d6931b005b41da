"""Predictions of one model for all examples of one client, outside its training steps, and their thresholds.

    p_i = softmax(f(weak(x_i))),   f in evaluation mode;   m_i = max p_i,   y_i = argmax p_i

Predictions give estimates of a client's class shares, labels that are fixed for a round, and thresholds by
class, by the received model on the client's unlabeled examples:

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
from typing import TYPE_CHECKING, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.federation.ragged import by_extent
from jaxfed.training.local.client_data import ClientData, class_counts, extent, usable
from jaxfed.training.local.losses import Augment, mean_where, taken, view

if TYPE_CHECKING:
    from jaxfed.models import Model


_AT_ONCE = 256


def client_logits(
    model: Model, state: nnx.State, data: ClientData, key: jax.Array, weak: Augment | None
) -> jax.Array:
    """Logits float32 [N, C] for each of the client's examples, on one weak view; 0 on padding behind them.

    An example's view depends on its number and the key alone. Cost: one forward pass over the client's data.
    """

    def classify(number: jax.Array) -> jax.Array:
        x = view(weak, jax.random.fold_in(key, number), taken(data.x, number[None]))
        return model.apply(state, x)[0].astype(jnp.float32)

    def of_length(length: int) -> jax.Array:
        numbers = jnp.arange(length)
        own = jax.lax.map(classify, numbers, batch_size=min(_AT_ONCE, length))
        return jnp.pad(own, ((0, len(data.mask) - length), (0, 0)))

    return by_extent(data.x, extent(data), of_length)


def is_unlabeled(data: ClientData) -> jax.Array:
    """bool [N]: the client's examples that train without a given label."""
    return usable(data) & ~data.is_labeled


Thresholds = Literal["fixed", "flexmatch", "freematch"]


def flexmatch(p: jax.Array, member: jax.Array, tau: float) -> jax.Array:
    """FlexMatch's tau_c, float32 [C], of predictions float32 [N, C] for members, bool [N]."""
    is_sure = member & (jnp.max(p, axis=-1) >= tau)
    count = class_counts(jnp.argmax(p, axis=-1), is_sure, p.shape[-1])
    unsure = jnp.sum(member & ~is_sure).astype(jnp.float32)
    beta = count / jnp.maximum(jnp.maximum(jnp.max(count), unsure), 1)
    return tau * beta / (2 - beta)


def freematch(p: jax.Array, member: jax.Array, tau: float = 0.0) -> jax.Array:
    """FreeMatch's tau_c, float32 [C], of predictions float32 [N, C] for members, bool [N]; without `tau`."""
    del tau
    share = mean_where(p, member)
    confidence = mean_where(jnp.max(p, axis=-1), member)
    return confidence * share / jnp.maximum(jnp.max(share), 1e-12)


THRESHOLDS: dict[str, Callable[[jax.Array, jax.Array, float], jax.Array]] = {
    "flexmatch": flexmatch,
    "freematch": freematch,
}
