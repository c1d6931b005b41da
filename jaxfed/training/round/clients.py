"""The clients' computations in a round, written for one client and lifted to a cohort.

    updates      local updates                                         (`LocalUpdate`)
    measured     "static" statistics of the new model
    shown        uploads after the new model                           (`AfterMean`)

They are traced as parts of a program: in a simulation that of the round (`jaxfed.training.round.round`), on a
network a program of each client (`jaxfed.training.round.network.client_side`).
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.federation.cohort import Array, Cohort
from jaxfed.federation.execution.client_map import MapClients
from jaxfed.federation.ragged import Ragged, apart, joined
from jaxfed.random_streams import Stream
from jaxfed.training.local.batch_statistics import measured_statistics
from jaxfed.training.local.client_data import ClientData, usable
from jaxfed.training.pseudo_labels.pseudo_label import PseudoLabels
from jaxfed.training.round.client_round import (
    AfterMean,
    ClientRound,
    ClientUpdate,
    LocalUpdate,
    Shared,
)
from jaxfed.training.server.client_rows import gather, scatter
from jaxfed.training.server.server_state import (
    ServerState,
    client_keys,
    cohort_statistics,
    with_statistics,
)
from jaxfed.training.specification import Training


class CohortClients:
    """The clients of a round, executed by `map_clients`; all methods are jit-traceable.

    Attributes:
        client_id: int32 [K]; -1 for a row without a client.
        metrics: of labels that clients make themselves, on a network.
    """

    client_id: Array
    _examples: Any  # the array that rows of `_data.x` refer to (`jaxfed.federation.ragged.apart`)
    _data: ClientData  # [K, ...]

    def __init__(
        self,
        training: Training,
        local_update: LocalUpdate,
        after_mean: AfterMean | None,
        map_clients: MapClients,
        *,
        stage: int,
        takes_all: bool = False,
    ) -> None:
        """Lift the computations to a cohort.

        Stage 1 is on given labels alone; in stage 2, with `takes_all`, all examples take part.
        """
        local = training.local
        batches = local.labeled_batches if stage == 1 else local.batches
        self._keeps_optimizers = local.client_optimizer == "kept"
        self._keeps_statistics = local.batch_statistics == "local"
        self._takes_all = takes_all and stage == 2

        def update(received: tuple[Shared, Any], inputs: tuple[Any, jax.Array]) -> ClientUpdate:
            (shared, examples), ((data, *others), key) = received, inputs
            data = _with(examples, data)
            return local_update(ClientRound(training, shared, key, batches, data, *others))

        def measure(
            received: tuple[nnx.State, Any], inputs: tuple[ClientData, jax.Array]
        ) -> nnx.State:
            (model, examples), (data, key) = received, inputs
            data = _with(examples, data)
            return measured_statistics(
                training.model, model, data.x, data.mask, key, batch_size=batches.capacity
            )

        def show(
            received: tuple[nnx.State, Any], inputs: tuple[ClientData, nnx.State, jax.Array]
        ) -> tuple[Any, dict[str, jax.Array]]:
            (model, examples), (data, statistics, key) = received, inputs
            assert after_mean is not None
            return after_mean(with_statistics(model, statistics), _with(examples, data), key)

        self.metrics: dict[str, jax.Array] = {}
        self._update = map_clients(update)
        self._measure = map_clients(measure)
        self._show = map_clients(show)

    def of(self, cohort: Cohort, labels: PseudoLabels) -> CohortClients:
        """Return the clients of this cohort, with the round's labels.

        If all examples take part, those without a label have a placeholder of weight 0.
        """
        if self._takes_all:
            is_without = jnp.asarray(cohort.mask) & (labels.label < 0)
            labels = labels._replace(
                label=jnp.where(is_without, 0, labels.label),
                weight=jnp.where(is_without, 0, labels.weight),
            )
        there = copy(self)
        there.client_id, x = cohort.client_id, cohort.x
        there._examples, x = apart(x if isinstance(x, Ragged) else jnp.asarray(x))
        y, mask = jnp.asarray(cohort.y), jnp.asarray(cohort.mask)
        there._data = ClientData(x, labels.label, labels.weight, y >= 0, mask)
        return there

    def at_server(self, function: Callable[..., Any], *fixed: Any) -> Callable[..., Any]:
        """Return the server's function with these first arguments: here a part of the round's program."""
        return partial(function, *fixed)

    def updates(
        self, state: ServerState, shared: Shared, received: Any, key: jax.Array
    ) -> tuple[ClientUpdate, jax.Array]:
        """Return the local updates, [K, ...], and bool [K], False for a client with nothing to train on.

        A padding client's weight is 0.
        """
        ids, before = self.client_id, gather(state.clients, self.client_id)
        optimizers = gather(state.client_optimizers, ids) if self._keeps_optimizers else None
        clients = self._data, before, cohort_statistics(state, ids), received, optimizers
        updates = self._update((shared, self._examples), (clients, client_keys(key, ids)))
        _check_client_state(before, updates.client_state)
        weights = jax.vmap(lambda is_one, weight: jnp.where(is_one, weight, 0))(
            jnp.asarray(ids) >= 0, updates.weight
        )
        return updates._replace(weight=weights), jnp.any(usable(self._data), axis=1)

    def measured(self, state: ServerState, key: jax.Array) -> tuple[nnx.State, jax.Array]:
        """Return each client's statistics of the state's model, [K, ...], and its number of examples."""
        keys = client_keys(jax.random.fold_in(key, Stream.BATCH_STATISTICS), self.client_id)
        measured = self._measure((state.model, self._examples), (self._data, keys))
        return measured, jnp.sum(self._data.mask, axis=1).astype(jnp.float32)

    def shown(self, state: ServerState, key: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        """Return the clients' uploads after they received the state's model, and their bytes."""
        keys = client_keys(jax.random.fold_in(key, Stream.AFTER_MEAN), self.client_id)
        inputs = self._data, cohort_statistics(state, self.client_id), keys
        return self._show((state.model, self._examples), inputs)

    def stored(self, state: ServerState, before: ServerState, updates: ClientUpdate) -> ServerState:
        """Return the state with the clients' new states, after a round that began with `before`.

        With local statistics a client keeps its latest running statistics.
        """
        ids, statistics = self.client_id, state.statistics
        if self._keeps_statistics:
            received = nnx.split_state(before.model, nnx.Param, ...)[1]
            moved = nnx.split_state(updates.delta, nnx.Param, ...)[1]
            new = jax.tree.map(lambda a, b: a[None] + b, received, moved)
            statistics = scatter(statistics, ids, new)
        return state._replace(
            statistics=statistics,
            clients=scatter(state.clients, ids, updates.client_state),
            client_optimizers=scatter(state.client_optimizers, ids, updates.optimizer_state),
        )


def _check_client_state(before: Any, after: Any) -> None:
    """Check, where the round is traced, that a client's new state has the form of its old one.

    A state of another form would be stored at the old one's place: cut, repeated, or rounded to integers.
    """
    forms: list[Any] = [jax.tree.structure(state) for state in (before, after)]
    if forms[0] != forms[1]:
        wrong = "its structure differs from that of `init_client`"
        raise UsageError(wrong, key="client_state", owner="ClientUpdate")
    for was, now in zip(jax.tree.leaves(before), jax.tree.leaves(after), strict=True):
        is_rounded = was.dtype != now.dtype and not jnp.issubdtype(was.dtype, jnp.floating)
        if was.shape != now.shape or is_rounded:
            wrong = f"{now.dtype}{list(now.shape[1:])} in place of {was.dtype}{list(was.shape[1:])}"
            raise UsageError(wrong, key="client_state", owner="ClientUpdate")


def _with(examples: Any, data: ClientData) -> ClientData:
    return data._replace(x=joined(examples, data.x))
