"""Features of a cohort's examples by the network that a round starts from.

    v_ki = f(x_ki)

Graphs, heads and confidences are computed from these features. With very unequal client sizes no feature of
padding is computed: the rows of all clients go through the network in batches that ignore client borders.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.federation.cohort import Cohort
from jaxfed.federation.execution.client_map import MapClients, jitted
from jaxfed.federation.ragged import ROWS_AT_ONCE, Ragged, length_for
from jaxfed.training.local.losses import Augment, view
from jaxfed.training.server.server_state import ServerState, client_keys

if TYPE_CHECKING:
    from jaxfed.models import Model

# -> float32 [K, N, D], or the same as a `Ragged`
Embed = Callable[[ServerState, Cohort, jax.Array], jax.Array | Ragged]
Outputs = TypeVar("Outputs")


def embedding(
    model: Model,
    map_clients: MapClients,
    *,
    augment: Augment | None = None,
) -> Embed:
    """Return the function that computes a cohort's features, each client's by its own model.

    The model runs in evaluation mode.

    Args:
        model: its `features` are used.
        map_clients: lifts one client's computation to the cohort (`jaxfed.federation.execution.client_map`).
        augment: changes the examples first. The authors' code computes features with the training
            augmentation on; the paper does not say so.

    It computes `ROWS_AT_ONCE` examples at a time. Features of a `Ragged` cohort are `Ragged`.
    """

    def embed_client(state: nnx.State, client: tuple[jax.Array, jax.Array]) -> jax.Array:
        x, key = client

        def embed_one(example: tuple[jax.Array, jax.Array]) -> jax.Array:
            number, one = example
            seen = view(augment, jax.random.fold_in(key, number), one[None])
            return model.features(state, seen)[0]

        numbers = jnp.arange(x.shape[0])
        return jax.lax.map(embed_one, (numbers, x), batch_size=min(ROWS_AT_ONCE, x.shape[0]))

    def embed_rows(shared: Any, part: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        state, keys, rows = shared

        def embed_one(place: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
            row, client, number = place
            seen = view(augment, jax.random.fold_in(keys[client], number), rows[row][None])
            return model.features(state, seen)[0]

        return jax.vmap(embed_one)(part)

    embed_clients = jitted(map_clients(embed_client))
    embed_parts = jitted(map_clients(embed_rows))

    def embed_ragged(state: ServerState, cohort: Cohort, keys: jax.Array) -> Ragged:
        x = cohort.x
        assert isinstance(x, Ragged)
        length = length_for(x.num_rows, len(x.rows), parts=jax.device_count())
        row = np.minimum(np.arange(length), len(x.rows) - 1)
        places = tuple(of_row.reshape(-1, ROWS_AT_ONCE) for of_row in (row, *x.places(length)))
        features = embed_parts((state.model, keys, jnp.asarray(x.rows)), places)
        return replace(x, rows=features.reshape(length, *features.shape[2:]))

    def embed(state: ServerState, cohort: Cohort, key: jax.Array) -> jax.Array | Ragged:
        keys = client_keys(key, cohort.client_id)
        if isinstance(cohort.x, Ragged):
            return embed_ragged(state, cohort, keys)
        return embed_clients(state.model, (jnp.asarray(cohort.x), keys))

    return embed


def of_examples(compute: Callable[[jax.Array], Outputs], features: jax.Array | Ragged) -> Outputs:
    """Apply `compute` to each example's features, [K, N, ...] of [K, N, D]; zeros on a `Ragged`'s padding.

    `compute` maps P parts of n examples each, [P, n, D], to arrays [P, n, ...].
    """
    if not isinstance(features, Ragged):
        return compute(features)
    rows = features.rows
    parts = compute(rows.reshape(-1, ROWS_AT_ONCE, *rows.shape[1:]))
    return jax.tree.map(
        lambda part: features.padded(part.reshape(len(rows), *part.shape[2:]), 0), parts
    )
