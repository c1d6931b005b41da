"""Execution of a round's training in one process, by one program under `jax.jit`.

The clients' computations are written for one client, and lifted to a cohort (`CohortClients`):

    updates      local updates                                         (`LocalUpdate`)
    measured     "static" statistics of the new model
    shown        uploads after the new model                           (`AfterMean`)

A cohort is sorted, and padded to a multiple of the devices (`placed`). Of large tables of clients' states,
the cohort's rows are arguments of the program, and are written back. If memory is too small for all clients
at once, the program takes some at a time. On a network each client has these computations as a program of its
own (`jaxfed.training.round.network`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.federation.cohort import Array, Cohort, Ragged, apart, arranged, joined, on_device
from jaxfed.federation.execution import (
    ClientExecution,
    MapClients,
    fitted,
    is_one_cpu,
    jitted,
    on_first_device,
)
from jaxfed.random_streams import Stream
from jaxfed.training.local.batches import ClientData, usable
from jaxfed.training.local.local_training import measured_statistics
from jaxfed.training.pseudo_labels.pseudo_label import PseudoLabels
from jaxfed.training.round.client_round import ClientRound, ClientUpdate, Shared
from jaxfed.training.round.parts import Parts
from jaxfed.training.server_state import (
    ServerState,
    client_keys,
    gather,
    of_cohort,
    scatter,
    written_back,
)


class Outcome(NamedTuple):
    """Result of the training in a round.

    Fields:
        state: the state after the server's step.
        metrics: of the clients, and of a server that trained beside them.
        sent: {kind of message: int32 [K]}, `ClientUpdate.sent`.
        uploads: `ClientUpdate.upload`, [K, ...].
        weights: `ClientUpdate.weight`, [K] or [K, S].
        client_id: int32 [K], the clients whose updates these are; on a network some may have left.
        communication: `Communication` of sums under masks; else ().
    """

    state: ServerState
    metrics: dict[str, jax.Array]
    sent: Any
    uploads: Any
    weights: jax.Array
    client_id: Array
    communication: Any = ()


# One of a run's two stages, in this process or on a network: the labeling by its source, and
# `jaxfed.training.round.round.trained` as a function of the state, the cohort, its labels, and the further
# arguments from `received` on.
Stage = tuple[Callable[..., Any], Callable[..., Outcome]]


def placed(cohort: Cohort, execution: ClientExecution) -> Cohort:
    """Return the cohort sorted and padded, with its examples on the device, once for all of a round."""
    cohort = arranged(cohort, execution.clients_multiple)
    return cohort._replace(x=on_device(cohort.x))


def simulated(parts: Parts, trained: Callable[..., Outcome]) -> list[Stage]:
    """Return the two stages of a run in this process, by `jaxfed.training.round.round.trained`."""
    return [_simulated(parts, trained, stage) for stage in (1, 2)]


def _simulated(parts: Parts, trained: Callable[..., Outcome], stage: int) -> Stage:
    execution, source = parts.training.execution, parts.source(stage)
    label = parts.training.pseudo_labels[source]
    if parts.server is not None:
        label = parts.server.label(source, label)

    def program_of(map_clients: MapClients) -> Callable[..., Outcome]:
        def whole(
            state: ServerState, cohort: Cohort, labels: PseudoLabels, *others: Any
        ) -> Outcome:
            clients = CohortClients(parts, stage, map_clients, cohort, labels)
            return trained(parts, stage, clients, state, *others)

        return jitted(whole)

    if parts.training.server.sums == "plaintext":
        program = fitted("training in a round", program_of, execution.map_clients)
    else:
        from jaxfed.training.round.masked_sums import masked

        clients_of = partial(CohortClients, parts, stage, execution.map_clients)
        program = masked(parts, trained, clients_of, stage)

    def run(state: ServerState, cohort: Cohort, *others: Any) -> Outcome:
        result = program(of_cohort(state, cohort.client_id), cohort, *others)
        if execution.clients_multiple > 1 and is_one_cpu():
            result = jax.tree.map(on_first_device, result)
        return result._replace(state=written_back(state, result.state, cohort.client_id))

    return label, run


class CohortClients:
    """The clients of a round in stage 1 or 2, with its labels, executed by `map_clients`; jit-traceable.

    Attributes:
        client_id: int32 [K]; -1 for a row without a client.
        metrics: of labels that clients make themselves, on a network.
        at_server: makes a function of the server's with these first arguments: here a part of the program.
    """

    at_server: Callable[..., Any] = partial

    def __init__(
        self,
        parts: Parts,
        stage: int,
        map_clients: MapClients,
        cohort: Cohort,
        labels: PseudoLabels,
    ) -> None:
        local = parts.training.local
        if parts.takes_all and stage == 2:
            is_without = jnp.asarray(cohort.mask) & (labels.label < 0)
            labels = labels._replace(
                label=jnp.where(is_without, 0, labels.label),
                weight=jnp.where(is_without, 0, labels.weight),
            )
        self.client_id, self.metrics = cohort.client_id, dict[str, jax.Array]()
        self._parts, self._map = parts, map_clients
        self._batches = local.labeled_batches if stage == 1 else local.batches
        # The array that rows of `_data.x` refer to.
        x = cohort.x if isinstance(cohort.x, Ragged) else jnp.asarray(cohort.x)
        self._examples, x = apart(x)
        y, mask = jnp.asarray(cohort.y), jnp.asarray(cohort.mask)
        self._data = ClientData(x, labels.label, labels.weight, y >= 0, mask)  # [K, ...]

    def updates(
        self, state: ServerState, shared: Shared, received: Any, key: jax.Array
    ) -> tuple[ClientUpdate, jax.Array]:
        """Return the local updates, [K, ...], and bool [K], False for a client with nothing to train on.

        A padding client's weight is 0.
        """
        training, batches = self._parts.training, self._batches
        local_update = self._parts.local_update

        def update(received: tuple[Shared, Any], inputs: tuple[Any, jax.Array]) -> ClientUpdate:
            (shared, examples), ((data, *others), key) = received, inputs
            data = _with(examples, data)
            return local_update(ClientRound(training, shared, key, batches, data, *others))

        ids, before = self.client_id, gather(state.clients, self.client_id)
        keeps_optimizers = training.local.client_optimizer == "kept"
        optimizers = gather(state.client_optimizers, ids) if keeps_optimizers else None
        clients = self._data, before, received, optimizers
        updates = self._map(update)((shared, self._examples), (clients, client_keys(key, ids)))
        _check_client_state(before, updates.client_state)
        weights = jax.vmap(lambda is_one, weight: jnp.where(is_one, weight, 0))(
            jnp.asarray(ids) >= 0, updates.weight
        )
        return updates._replace(weight=weights), jnp.any(usable(self._data), axis=1)

    def measured(self, state: ServerState, key: jax.Array) -> tuple[nnx.State, jax.Array]:
        """Return each client's statistics of the state's model, [K, ...], and its number of examples."""
        model, size = self._parts.training.model, self._batches.capacity

        def measure(
            received: tuple[nnx.State, Any], inputs: tuple[ClientData, jax.Array]
        ) -> nnx.State:
            (state, examples), (data, key) = received, inputs
            data = _with(examples, data)
            return measured_statistics(model, state, data.x, data.mask, key, batch_size=size)

        keys = client_keys(jax.random.fold_in(key, Stream.BATCH_STATISTICS), self.client_id)
        measured = self._map(measure)((state.model, self._examples), (self._data, keys))
        return measured, jnp.sum(self._data.mask, axis=1).astype(jnp.float32)

    def shown(self, state: ServerState, key: jax.Array) -> tuple[Any, dict[str, jax.Array]]:
        """Return the clients' uploads after they received the state's model, and their bytes."""
        after_mean = self._parts.messages.after_mean
        assert after_mean is not None

        def show(
            received: tuple[nnx.State, Any], inputs: tuple[ClientData, jax.Array]
        ) -> tuple[Any, dict[str, jax.Array]]:
            (model, examples), (data, key) = received, inputs
            return after_mean(model, _with(examples, data), key)

        keys = client_keys(jax.random.fold_in(key, Stream.AFTER_MEAN), self.client_id)
        return self._map(show)((state.model, self._examples), (self._data, keys))

    def stored(self, state: ServerState, updates: ClientUpdate) -> ServerState:
        """Return the state with the clients' new states."""
        ids = self.client_id
        return state._replace(
            clients=scatter(state.clients, ids, updates.client_state),
            client_optimizers=scatter(state.client_optimizers, ids, updates.optimizer_state),
        )


def _check_client_state(before: Any, after: Any) -> None:
    """Check, where the round is traced, that a client's new state has the form of its old one.

    A state of another form would be written over the old one: cut, repeated, or rounded to integers.
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
