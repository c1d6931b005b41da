"""The global class prior: the mean of a round's class shares among clients' sure examples.

    P_m(c) = share of class c among client m's given labels and its sure pseudo-labels
    P <- mean_m P_m,        P = 1/C at first

The mean is over the round's clients that have any such example; without one, P stays.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication
from jaxfed.training.local.client_data import ClientData, usable
from jaxfed.training.round.server_hooks import UploadStore
from jaxfed.training.server.aggregate import weighted_mean
from jaxfed.training.server.client_rows import stacked_for
from jaxfed.training.server.server_state import ServerState


def class_shares(
    data: ClientData, p: jax.Array, is_unlabeled: jax.Array, threshold: float
) -> jax.Array:
    """P_m, float32 [C], from the received model's predictions [N, C]; zeros without any such example."""
    num_classes = p.shape[-1]
    is_sure = is_unlabeled & (jnp.max(p, axis=-1) >= threshold)
    label = jnp.where(is_sure, jnp.argmax(p, axis=-1).astype(jnp.int32), data.label)
    counted = is_sure | (usable(data) & data.is_labeled)
    member = jnp.where(counted[:, None], jax.nn.one_hot(label, num_classes), 0)
    return jnp.sum(member, axis=0) / jnp.maximum(jnp.sum(counted), 1).astype(jnp.float32)


def share_bytes(shares: jax.Array) -> jax.Array:
    """Bytes of a client's message, int32: C numbers, or none from a client that counted nothing."""
    return jnp.where(jnp.any(shares > 0), 4 * shares.shape[-1], 0).astype(jnp.int32)


def prior_store(num_classes: int) -> UploadStore:
    """The server's store of the prior."""

    def create(model: nnx.State, federation: Federation) -> jax.Array:
        del model, federation
        return jnp.full(num_classes, 1 / num_classes, jnp.float32)

    @jax.jit
    def updated(prior: jax.Array, client_id: jax.Array, shares: jax.Array) -> jax.Array:
        counts = (client_id >= 0) & jnp.any(shares > 0, axis=-1)
        mean = weighted_mean(shares, counts.astype(jnp.float32))
        return jnp.where(jnp.any(counts), mean, prior)

    def update(prior: jax.Array, client_id: jax.Array, shares: jax.Array, *_: Any) -> jax.Array:
        return updated(prior, client_id, shares)

    return UploadStore(create, update)


def prior_sent(state: ServerState, cohort: Cohort, communication: Communication) -> jax.Array:
    """Send the prior to each client of the cohort, [K, C]."""
    num_clients = int(np.sum(np.asarray(cohort.client_id) >= 0))
    communication.down("class_prior", 4 * state.memory.size * num_clients)
    sent: jax.Array = stacked_for(len(cohort.client_id), state.memory)
    return sent
