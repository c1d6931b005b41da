"""FedBuff: asynchronous FedAvg, whose server steps once a buffer of updates is full.

`concurrency` clients train at a time, each from the model that the server had when it began; a client that is
done is replaced at once. A round is one server step, after cohort_size arrivals (the paper's buffer size K):

    delta_k = w_k - w^(v),    w <- w + eta_g mean_k p_k (1 + t - v)^-a delta_k

with v the number of server steps before client k began, t the number before this step, eta_g
`training.server_learning_rate` and a `staleness_exponent`. Staleness scales down a change, but not its weight
p_k. Clients train on given labels, at the learning rate of the round in which they began. Running statistics
are treated like parameters.

Clients arrive in simulated time, by the section `clock` of a config (docs/time.md). Runs without a clock are
refused. If `round` is called directly, no change is stale, and a round is FedAvg's.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clients import Federation
from jaxfed.federation.clock import Asynchronous, Timed
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication
from jaxfed.federation.method import method, with_attributes
from jaxfed.settings import Count, NotNegative
from jaxfed.training.round.client_round import ClientRound, ClientUpdate
from jaxfed.training.round.parts import Hook, Messages
from jaxfed.training.round.round import federated_training
from jaxfed.training.server_state import ServerState, stacked_for, without_tables
from jaxfed.training.specification import Training


@method(
    title="FedBuff",
    cites="Nguyen, Malik, Zhan, Yousefpour, Rabbat, Malek, Huba, AISTATS 2022",
    leaves="its model's change",
    pseudo_label="none",
    weighting="uniform",
    unread=("batch_statistics",),
)
def fedbuff(
    *, training: Training, concurrency: Count = 10, staleness_exponent: NotNegative = 0.5
) -> FederatedAlgorithm:
    """FedAvg on given labels by clients that do not wait for each other.

    Args:
        training: the training specification.
        concurrency: number of clients that train at a time.
        staleness_exponent: a; changes are multiplied by (1 + staleness) ** -a.

    Cost: FedAvg's, and memory for the models that training clients began with, mostly a few times
    concurrency / cohort_size of them. Checkpoints contain these models.
    """
    buffered = partial(_buffered, training, staleness_exponent)
    plain = buffered(())
    asynchronous = Asynchronous(concurrency, buffered, plain)
    return plain._replace(round=with_attributes(plain.round, asynchronous=asynchronous))


def _buffered(training: Training, exponent: float, arrivals: Sequence[Timed]) -> FederatedAlgorithm:
    models = StoredModels(exponent, arrivals)

    def local_update(client: ClientRound) -> ClientUpdate:
        start: Start = client.received
        began = client.shared.round - start.staleness
        shared = client.shared._replace(
            model=start.model, learning_rate=training.local.rate_in(began), round=began
        )
        client = client._replace(shared=shared)
        update = client.update(client.steps(training.loss))
        return update._replace(delta=jax.tree.map(lambda leaf: start.scale * leaf, update.delta))

    algorithm = federated_training(
        training, local_update, pseudo_label="none", hooks=(models,), messages=Messages(models.send)
    )

    def evaluated(state: ServerState) -> ServerState:
        return without_tables(state)._replace(memory=())

    return algorithm._replace(evaluate=with_attributes(algorithm.evaluate, evaluated=evaluated))


class Start(NamedTuple):
    """Start of one client's work, or of a round's clients, [K, ...].

    Fields:
        model: the model that the client trains from.
        staleness: int32, number of server steps since it began.
        scale: float32, factor on its model change.
    """

    model: nnx.State
    staleness: jax.Array
    scale: jax.Array


class StoredModels(Hook):
    """The models that clients train from, `ServerState.memory`, [V, ...]: as many as are in use at a time."""

    def __init__(self, exponent: float, arrivals: Sequence[Timed]) -> None:
        """Assign a slot to each model that some client begins with; without arrivals that is the newest."""
        self._exponent, self._arrivals = exponent, arrivals
        self._slots = slots_of(arrivals)

    def init(self, state: ServerState, federation: Federation, key: jax.Array) -> ServerState:
        """Return the state with room for the models."""
        return state._replace(memory=stacked_for(max(self._slots, default=0) + 1, state.model))

    def before(
        self, state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
    ) -> ServerState:
        """Return the state with the current model stored, if a client begins with it."""
        slot = self._slot(int(state.round))
        if slot < 0:
            return state
        return state._replace(memory=_with_model(state.memory, state.model, jnp.int32(slot)))

    def send(self, state: ServerState, cohort: Cohort, communication: Communication) -> Start:
        """Return the start of each client of the round; a padding client's start is arbitrary."""
        done = int(state.round)
        version = {}
        if self._arrivals:
            one = self._arrivals[done]
            version = dict(zip(one.clients, one.version, strict=True))
        began = [version.get(client, done) for client in np.asarray(cohort.client_id).tolist()]
        slots = np.maximum([self._slot(one) for one in began], 0)
        staleness = np.array([done - one for one in began], np.int32)
        scale = ((1.0 + staleness) ** -self._exponent).astype(np.float32)
        return Start(_at(state.memory, slots), jnp.asarray(staleness), jnp.asarray(scale))

    def _slot(self, version: int) -> int:
        return self._slots[version] if self._arrivals else 0


@jax.jit
def _with_model(models: nnx.State, model: nnx.State, slot: jax.Array) -> nnx.State:
    return jax.tree.map(lambda rows, leaf: rows.at[slot].set(leaf), models, model)


@jax.jit
def _at(models: Any, slots: np.ndarray) -> Any:
    return jax.tree.map(lambda rows: rows[slots], models)


def slots_of(arrivals: Sequence[Timed]) -> list[int]:
    """Return, for each number of server steps, the slot in which the model is stored; -1: not stored.

    A slot is reused after the last round that needs it, so there are as few slots as models in use at a time.
    """
    last = {version: number for number, one in enumerate(arrivals, 1) for version in one.version}
    slots, until = [], list[int]()
    for version in range(len(arrivals)):
        if version not in last:
            slots.append(-1)
            continue
        free = [slot for slot, end in enumerate(until) if end <= version]
        slot = free[0] if free else len(until)
        until[slot : slot + 1] = [last[version]]
        slots.append(slot)
    return slots
