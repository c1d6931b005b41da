"""Labels at the server: its training on them, its part in labeling, and its share of statistics.

    before the clients   the server trains on its labels, and they receive the result       (`turn_of`)
    labeling             it is one more party, all of whose points are labeled             (`beside`)
    after them           its examples count in statistics that are measured anew           (`with_servers`)

Or it trains at the same time as the clients and counts in the mean (`ServerPart.joins`). Its training is a
`LocalUpdate`, like a client's; it sends no messages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.federation.clients import UNLABELED
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.ragged import Ragged
from jaxfed.training.ingredients import Training
from jaxfed.training.local.batch_statistics import measured_statistics
from jaxfed.training.local.client_data import ClientData
from jaxfed.training.local.local_update import ClientUpdate
from jaxfed.training.round.client_round import Client, LocalUpdate, Shared, plain_update
from jaxfed.training.server.server_state import ServerState, server_ids

# Sources that label each example independently: the server as a party would add nothing.
_OF_ONE_EXAMPLE = frozenset({"none", "unlabeled", "network", "teacher"})
_STATISTICS = 0x73746174


class ServerPart(NamedTuple):
    """The server's training on its own labels.

    Fields:
        update: its local update; the server has no client state and receives the model alone.
        joins: it starts from the same model as the clients and counts in their mean, instead of training
            before them.
    """

    update: LocalUpdate
    joins: bool = False


def plain_part(training: Training) -> ServerPart:
    """Train on the server's labels with the loss of `training`, before the clients."""
    return ServerPart(plain_update(training, training.loss))


def examples_of(training: Training) -> ClientData | None:
    """Return the server's examples in the form of local updates; None if labels are at clients.

    Raises:
        UsageError: no example, or one without a label.
    """
    if training.server.examples is None:
        return None
    x, y = map(np.asarray, training.server.examples)
    if not len(y) or len(x) != len(y) or y.min() < 0:
        raise UsageError(
            f"ServerTraining: the server has {len(x)} examples and {len(y)} labels, the smallest "
            f"{y.min(initial=0)}; one label from 0 on is needed for each, and one example at least"
        )
    n = len(y)
    label = jnp.asarray(y, jnp.int32)
    return ClientData(
        jnp.asarray(x), label, jnp.ones(n), jnp.ones(n, dtype=bool), jnp.ones(n, dtype=bool)
    )


def updated(
    training: Training,
    update: LocalUpdate,
    state: ServerState,
    shared: Shared,
    own: ClientData,
    key: jax.Array,
) -> ClientUpdate:
    """The server's local update from its own model and statistics."""
    _, statistics = nnx.split_state(state.model, nnx.Param, ...)
    return update(shared, Client(own, (), statistics, ()), key, batches=training.server.batches)


Turn = Callable[[ServerState, ClientData, jax.Array], tuple[ServerState, dict[str, jax.Array]]]


def turn_of(training: Training, part: ServerPart | None, first_round: int) -> Turn:
    """Return the server's turn before the clients: (state, its examples, key) -> state, metrics; one program.

    Learning rates count from `first_round` on, as the clients'. With "static" statistics the server measures
    the new model's on its own examples; the clients receive these. A server that joins the clients has no
    turn.
    """
    if part is None or part.joins:
        return lambda state, own, key: (state, {})
    update = part.update

    @jax.jit
    def turn(
        state: ServerState, own: ClientData, key: jax.Array
    ) -> tuple[ServerState, dict[str, jax.Array]]:
        stage_round = state.round - first_round
        rate = jnp.float32(training.local.learning_rate(stage_round.astype(jnp.float32)))
        shared = Shared(state.model, state.control, rate, stage_round)
        update_key, measure_key = jax.random.split(key)
        found = updated(training, update, state, shared, own, update_key)
        model = jax.tree.map(jnp.add, state.model, found.delta)
        if training.local.batch_statistics == "static":
            statistics = _measured(training, model, own, measure_key)
            model = nnx.merge_state(nnx.split_state(model, nnx.Param, ...)[0], statistics)
        return state._replace(model=model), metrics_of(found)

    return turn


def metrics_of(update: ClientUpdate) -> dict[str, jax.Array]:
    """Metrics of the server's training, renamed: its loss is `server_train_loss`."""
    return {f"server_{name}": value for name, value in update.metrics.items()}


def with_servers(
    training: Training,
    measured: nnx.State,
    examples: jax.Array,
    model: nnx.State,
    own: ClientData,
    key: jax.Array,
) -> tuple[nnx.State, jax.Array]:
    """Measured statistics [K + 1, ...] and numbers of examples [K + 1], the server's behind the clients'."""
    statistics = _measured(training, model, own, jax.random.fold_in(key, _STATISTICS))
    return appended(measured, statistics), appended(examples, jnp.sum(own.mask).astype(jnp.float32))


def appended(stacked: Any, one: Any) -> Any:
    """Trees [K, ...] and [...] as one tree [K + 1, ...]."""
    return jax.tree.map(lambda many, last: jnp.concatenate([many, last[None]]), stacked, one)


def _measured(training: Training, model: nnx.State, own: ClientData, key: jax.Array) -> nnx.State:
    size = training.server.batches.capacity
    return measured_statistics(training.model, model, own.x, own.mask, key, batch_size=size)


def beside(cohort: Cohort, own: ClientData | None, source: str, multiple: int) -> Cohort:
    """Append the server's examples to the cohort, in as many further rows as they fill.

    The cohort stays as it is if labels are at clients, or if the source labels each example independently.
    Empty rows pad it to a multiple (devices).
    """
    if own is None or source in _OF_ONE_EXAMPLE:
        return cohort
    capacity, count = cohort.mask.shape[1], len(own.label)
    num_rows = -(-count // capacity)
    padding = -(len(cohort.client_id) + num_rows) % multiple

    def rows(array: Any, fill: Any) -> jax.Array:
        widths = [(0, (num_rows + padding) * capacity - count)] + [(0, 0)] * (array.ndim - 1)
        whole = jnp.pad(array, widths, constant_values=fill)
        return whole.reshape(num_rows + padding, capacity, *array.shape[1:])

    ids = np.concatenate([server_ids(num_rows), np.full(padding, -1, np.int32)])
    x = cohort.x
    if isinstance(x, Ragged):
        sizes = np.minimum(capacity, count - capacity * np.arange(num_rows))
        x = x.beside(jnp.asarray(own.x), sizes).with_empty(padding)
    else:
        x = jnp.concatenate([jnp.asarray(x), rows(own.x, 0)])
    return Cohort(
        client_id=np.concatenate([cohort.client_id, ids]),
        x=x,
        y=jnp.concatenate([jnp.asarray(cohort.y), rows(own.label, UNLABELED)]),
        mask=jnp.concatenate([jnp.asarray(cohort.mask), rows(own.mask, False)]),
    )


def nobody_of(cohort: Cohort) -> Cohort:
    """Return a cohort of the same shape without clients, for rounds in which they have nothing to do."""
    return cohort._replace(
        client_id=np.full_like(cohort.client_id, -1),
        y=np.full_like(cohort.y, UNLABELED),
        mask=np.zeros_like(cohort.mask),
    )
