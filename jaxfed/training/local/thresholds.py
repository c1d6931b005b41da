"""Thresholds by class, from the received model's predictions at the start of a client's round.

    p_i = softmax(g(weak(x_i))) of the client's unlabeled examples,   m_i = max p_i,   y_i = argmax p_i

fixed       tau_c = tau                                                   FixMatch (NeurIPS 2020)
flexmatch   n_c = #{i: y_i = c, m_i >= tau},  n_0 = #{i: m_i < tau},  beta_c = n_c / max(max_c n_c, n_0)
            tau_c = tau beta_c / (2 - beta_c)                             FlexMatch (Zhang, NeurIPS 2021)
freematch   tau_c = mean_i m_i  q_c / max_c q_c,   q = mean_i p_i         FreeMatch (Wang, ICLR 2023)

Both methods have low thresholds for hard classes, and early in training. Both papers update their estimates
at every step: FlexMatch by the last prediction for each example, FreeMatch by moving averages. A client
has few steps in a round, and would have to store its estimates. Here the received model makes them
anew in each round, as in (FL)^2, which has FreeMatch's thresholds. FreeMatch's fairness term is a loss, not a
threshold, and is left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from jaxfed.training.local.losses import mean_where

Thresholds = Literal["fixed", "flexmatch", "freematch"]


def flexmatch(p: jax.Array, member: jax.Array, tau: float) -> jax.Array:
    """FlexMatch's tau_c, float32 [C], of predictions float32 [N, C] for members, bool [N]."""
    is_sure = member & (jnp.max(p, axis=-1) >= tau)
    label = jax.nn.one_hot(jnp.argmax(p, axis=-1), p.shape[-1])
    count = jnp.sum(jnp.where(is_sure[:, None], label, 0), axis=0)
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
