"""Thresholds by class, set at the beginning of a client's round by the received model's predictions.

    p_i = softmax(g(weak(x_i))) of the client's unlabeled examples,   m_i = max p_i,   y_i = argmax p_i

fixed       tau_c = tau                                                   FixMatch (NeurIPS 2020)
flexmatch   n_c = #{i: y_i = c, m_i >= tau},  n_0 = #{i: m_i < tau},  beta_c = n_c / max(max_c n_c, n_0)
            tau_c = tau beta_c / (2 - beta_c)                             FlexMatch (Zhang, NeurIPS 2021)
freematch   tau_c = mean_i m_i  q_c / max_c q_c,   q = mean_i p_i         FreeMatch (Wang, ICLR 2023)

FlexMatch's classes that the model finds hard, and early training, have low thresholds; so have FreeMatch's.
Both papers move their estimates on at every step: FlexMatch by the last prediction for each example,
FreeMatch by moving averages. In a federation a client's steps of one round are few, and its estimates would
be one more state to keep. Here they are those of the received model, made anew in each round. (So are
(FL)^2's, whose thresholds are FreeMatch's.) FreeMatch's fairness term is not part of a threshold.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp

from jaxfed.training.local.client_predictions import mean_over

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
    """FreeMatch's tau_c, float32 [C], of predictions float32 [N, C] for members, bool [N]; no tau is set."""
    del tau
    share = mean_over(p, member)
    confidence = mean_over(jnp.max(p, axis=-1), member)
    return confidence * share / jnp.maximum(jnp.max(share), 1e-12)


THRESHOLDS: dict[str, Callable[[jax.Array, jax.Array, float], jax.Array]] = {
    "flexmatch": flexmatch,
    "freematch": freematch,
}
