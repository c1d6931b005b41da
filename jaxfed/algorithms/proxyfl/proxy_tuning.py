"""Global proxy tuning: the server moves the classifier's rows towards the clients' rows of the same class.

    L(W) = 1/M sum_m sum_c -log [ exp(-d(W_c, w_mc)) / sum_c' exp(-d(W_c, w_mc')) ]
    W_0 = the aggregated rows;   Q steps of   W <- W - eta grad L

w_m are the rows of client m as the server received them, d is the Euclidean distance. Clients of weight 0 do
not count.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.models.head import Path, leaf_of, with_leaf
from jaxfed.training.pseudo_labels.prototypes import euclidean
from jaxfed.training.server.aggregate import Aggregate, in_all


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
    slope = jax.grad(lambda rows, own: jnp.sum(-jnp.diagonal(log_shares(rows, own))))

    def step(_: jax.Array, rows: jax.Array) -> jax.Array:
        def add(client: jax.Array, total: jax.Array) -> jax.Array:
            return total + share[client] * slope(rows, theirs[client])

        return rows - rate * jax.lax.fori_loop(0, len(theirs), add, jnp.zeros_like(rows))

    return jax.lax.fori_loop(0, steps, step, rows)


def log_shares(rows: jax.Array, own: jax.Array) -> jax.Array:
    """log softmax over c' of -d(W_c, w_c'), float32 [C, C], of two classifiers' rows [C, D]."""
    return jax.nn.log_softmax(-euclidean(rows, own), axis=-1)
