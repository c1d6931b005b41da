"""The cohort's computations in a round, written for one client and lifted to all.

    local updates                                  (`updates`: `local_update`, one client's view)
    measurements on the new model                  (`measured`: "static" statistics)
    uploads after the new model                    (`shown`: `AfterMean`)

They are traced as parts of one compiled program (`jaxfed.training.round.round`); `executed` runs that program
within the memory limit.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from jaxfed.data.dataset import UNLABELED
from jaxfed.errors import UsageError
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.execution.client_map import MapClients, is_one_cpu, on_first_device
from jaxfed.federation.ragged import Ragged, apart, joined
from jaxfed.random_streams import Stream
from jaxfed.training.client_execution import ClientExecution
from jaxfed.training.local.batch_statistics import measured_statistics
from jaxfed.training.local.client_data import ClientData
from jaxfed.training.local.local_update import ClientUpdate
from jaxfed.training.pseudo_labels.pseudo_label import PseudoLabels
from jaxfed.training.round.client_round import AfterMean, Client, LocalUpdate, Shared
from jaxfed.training.server.aggregate import in_all, weighted_mean
from jaxfed.training.server.client_rows import gather, scatter
from jaxfed.training.server.server_state import (
    ServerState,
    client_keys,
    cohort_statistics,
    is_finite,
    with_statistics,
)
from jaxfed.training.server.stored_models import Start, model_at, scaled, starts_of
from jaxfed.training.specification import Training


class CohortData(NamedTuple):
    """The cohort's examples and labels in the form that clients share.

    Fields:
        cohort: ids and mask.
        examples: the array that rows of `data.x` refer to (`jaxfed.federation.ragged.apart`).
        data: each client's data [K, ...].
    """

    cohort: Cohort
    examples: Any
    data: ClientData


def labeled_cohort(cohort: Cohort, labels: PseudoLabels) -> CohortData:
    """Return the cohort's data with the round's labels."""
    examples, x = apart(cohort.x if isinstance(cohort.x, Ragged) else jnp.asarray(cohort.x))
    y, mask = jnp.asarray(cohort.y), jnp.asarray(cohort.mask)
    return CohortData(cohort, examples, ClientData(x, labels.label, labels.weight, y >= 0, mask))


class CohortStep:
    """The clients' computations in one stage, each executed by `map_clients`."""

    def __init__(
        self,
        training: Training,
        local_update: LocalUpdate,
        after_mean: AfterMean | None,
        map_clients: MapClients,
        *,
        stage: int,
    ) -> None:
        """Lift the computations to a cohort; stage 1 is on given labels alone."""
        local = training.local
        batches = local.labeled_batches if stage == 1 else local.batches
        self._rate_in = local.rate_in
        self._first_round = 0 if stage == 1 else training.labeled_only_rounds
        self._keeps_optimizers = local.client_optimizer == "kept"

        def update(
            received: tuple[Shared, Any, Any], inputs: tuple[Client, jax.Array, Start | None]
        ) -> ClientUpdate:
            (shared, examples, models), (client, key, start) = received, inputs
            client = client._replace(data=_with(examples, client.data))
            if start is not None:
                shared, client = self._as_it_began(shared, client, models, start)
            return local_update(shared, client, key, batches=batches)

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

        self._update = map_clients(update)
        self._measure = map_clients(measure)
        self._show = map_clients(show)

    def shared(self, state: ServerState, rate: jax.Array | None = None) -> Shared:
        """Return what all clients of the round receive alike; `rate` if its learning rate is known."""
        stage_round = state.round - self._first_round
        rate = self._rate_in(stage_round) if rate is None else rate
        return Shared(state.model, state.control, rate, stage_round)

    def _as_it_began(
        self, shared: Shared, client: Client, models: nnx.State, start: Start
    ) -> tuple[Shared, Client]:
        """Return what a client had when it began: an earlier round's model, and that round's rate and labels.

        In stage 2, a client that began in stage 1 trains on its given labels alone.
        """
        model, data = model_at(models, start), client.data
        stage_round = shared.round - start.staleness
        if self._first_round:
            is_of_stage_1 = stage_round < 0
            stage_round += jnp.where(is_of_stage_1, self._first_round, 0)
            is_left_out = is_of_stage_1 & ~data.is_labeled
            data = data._replace(label=jnp.where(is_left_out, UNLABELED, data.label))
        shared = Shared(model, shared.control, self._rate_in(stage_round), stage_round)
        statistics = nnx.split_state(model, nnx.Param, ...)[1]
        return shared, client._replace(data=data, statistics=statistics)

    def updates(
        self, state: ServerState, shared: Shared, own: CohortData, received: Any, key: jax.Array
    ) -> ClientUpdate:
        """Return the clients' local updates, [K, ...]; a padding client's weight is 0."""
        ids, keys = own.cohort.client_id, client_keys(key, own.cohort)
        clients = Client(
            own.data,
            gather(state.clients, ids),
            cohort_statistics(state, ids),
            received,
            gather(state.client_optimizers, ids) if self._keeps_optimizers else None,
        )
        starts = starts_of(state, ids)
        models = None if starts is None else state.stored.models
        updates = self._update((shared, own.examples, models), (clients, keys, starts))
        _check_client_state(clients.state, updates.client_state)
        weights = jax.vmap(lambda is_one, weight: jnp.where(is_one, weight, 0))(
            jnp.asarray(ids) >= 0, updates.weight
        )
        return updates._replace(delta=scaled(updates.delta, starts), weight=weights)

    def measured(
        self, model: nnx.State, own: CohortData, key: jax.Array
    ) -> tuple[nnx.State, jax.Array]:
        """Return each client's statistics of this model, [K, ...], and its number of examples."""
        keys = client_keys(jax.random.fold_in(key, Stream.BATCH_STATISTICS), own.cohort)
        measured = self._measure((model, own.examples), (own.data, keys))
        return measured, jnp.sum(own.cohort.mask, axis=1).astype(jnp.float32)

    def shown(self, state: ServerState, own: CohortData, key: jax.Array) -> tuple[Any, Any]:
        """Return the clients' uploads after they received the state's model, and their bytes."""
        ids = own.cohort.client_id
        keys = client_keys(jax.random.fold_in(key, Stream.AFTER_MEAN), own.cohort)
        inputs = own.data, cohort_statistics(state, ids), keys
        return self._show((state.model, own.examples), inputs)


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


def with_clients(
    state: ServerState, before: ServerState, ids: Any, updates: ClientUpdate, *, is_local: bool
) -> ServerState:
    """Return the state with the cohort's new client states, after a round that began with `before`.

    With local statistics (`is_local`) a client keeps the running statistics that it has come to.
    """
    statistics = state.statistics
    if is_local:
        received = nnx.split_state(before.model, nnx.Param, ...)[1]
        moved = nnx.split_state(updates.delta, nnx.Param, ...)[1]
        new = jax.tree.map(lambda a, b: a[None] + b, received, moved)
        statistics = scatter(statistics, ids, new)
    return state._replace(
        statistics=statistics,
        clients=scatter(state.clients, ids, updates.client_state),
        client_optimizers=scatter(state.client_optimizers, ids, updates.optimizer_state),
    )


def metrics_of(
    updates: ClientUpdate, trains: jax.Array, model: nnx.State, learning_rate: jax.Array
) -> dict[str, jax.Array]:
    """Return the round's metrics: means over the clients that trained (bool [K]), by their weights.

    The loss is NaN if the new model is not finite: a step may spoil it after its loss has been taken.
    """
    trained = jnp.where(trains, in_all(updates.weight), 0)
    metrics = weighted_mean(updates.metrics, trained)
    metrics["train_loss"] = jnp.where(is_finite(model), metrics["train_loss"], jnp.nan)
    return metrics | {"clients": jnp.sum(trained > 0), "learning_rate": learning_rate}


def executed(
    program_of: Callable[[MapClients], Callable[..., Any]], execution: ClientExecution
) -> Callable[..., Any]:
    """Return the compiled program of a round, with as many clients at once as the memory limit allows.

    Args:
        program_of: makes the program from a `map_clients`; its second argument is the cohort.
        execution: the execution of clients.

    Raises:
        BeyondMemory: at the first run, if it takes more memory than `execution.host` allows.
    """
    train_round = execution.host.limit.fitted(
        "training in a round",
        program_of,
        execution.map_clients,
        lambda state, cohort, *others: len(cohort.client_id),
    )
    if execution.clients_multiple == 1 or not is_one_cpu():
        return train_round

    def train_on_cores(*arguments: Any) -> Any:
        return jax.tree.map(on_first_device, train_round(*arguments))

    return train_on_cores


def _with(examples: Any, data: ClientData) -> ClientData:
    """One client's data, with its examples taken from the array that all clients share."""
    return data._replace(x=joined(examples, data.x))
