"""FedSem: labels of the frozen model of stage 1, with the confidence weights of XCLP (FedSem+).

    y_i = argmax f(x_i; v),   v the model that stage 2 starts from, frozen

The rounds are FedAvg's on these labels. The frozen model v is `training.initial_model`, the selected or last
state of stage 1. Where both stages are one run, it is the last state of `labeled_only_rounds`.

A client labels its data once, in its first round of stage 2, and keeps the labels. (The simulation computes
them again, with the same result.) It then receives the frozen model in addition to the current one
(`communication.download.teacher`), except in the first round, where they are the same. The authors' code
labels at all m clients before that round, so there each of them receives it.

Labels at the server: it trains on them first, then the clients train on pseudo-labels alone.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.federation.algorithm import FederatedAlgorithm
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.federation.communication import Communication, num_bytes_of
from jaxfed.federation.method import EVERYWHERE, method
from jaxfed.random_streams import Stream
from jaxfed.training.round.client_round import plain_update
from jaxfed.training.round.parts import Hook
from jaxfed.training.round.round import federated_training
from jaxfed.training.server_state import ServerState, gather, rows_for, scatter
from jaxfed.training.specification import Training


@method(
    title="FedSem",
    cites="Albaseer, Ciftler, Abdallah, Al-Fuqaha, IWCMC 2020",
    leaves="its model's change",
    pseudo_label="teacher",
    labels_at=EVERYWHERE,
)
def fedsem(*, training: Training) -> FederatedAlgorithm:
    """FedSem+: network labels by the model that stage 2 starts from, frozen."""
    return federated_training(
        training,
        plain_update(training.loss),
        pseudo_label="teacher",
        hooks=(FrozenTeacher(training),),
        server_update=plain_update(training.loss),
    )


class Teacher(NamedTuple):
    """`ServerState.teacher`, which the source "teacher" labels with.

    Fields:
        model: the model that stage 2 started from.
        key: typed; all randomness of labeling is drawn from it, so that a client's labels never change.
        holders: bool [M], the clients that have received it, and keep it or its labels.
    """

    model: nnx.State
    key: jax.Array
    holders: Any


class FrozenTeacher(Hook):
    """Keep the model that stage 2 starts from, and send it once to each client that takes part in stage 2."""

    def __init__(self, training: Training) -> None:
        self._first_round = training.labeled_only_rounds

    def init(self, state: ServerState, federation: Federation, key: jax.Array) -> ServerState:
        """Return the state with the initial model as its teacher."""
        holders = rows_for(federation.num_clients, jnp.bool_(False))
        return state._replace(teacher=_teacher(state.model, key, holders))

    def before(
        self, state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
    ) -> ServerState:
        """Return the state with the teacher of stage 2; in its first round all clients receive it anyway."""
        number = int(state.round)
        if number < self._first_round:
            return state
        teacher, is_first = state.teacher, number == self._first_round
        if is_first:
            teacher = _teacher(state.model, key, teacher.holders)  # nobody has received one
        ids = np.asarray(cohort.client_id)
        ids = ids[ids >= 0]
        is_new = ~np.asarray(gather(teacher.holders, ids))
        num_new = 0 if is_first else int(np.sum(is_new))
        communication.down("teacher", num_new * num_bytes_of(teacher.model))
        holders = scatter(teacher.holders, ids, np.ones(len(ids), bool))
        return state._replace(teacher=teacher._replace(holders=holders))


def _teacher(model: nnx.State, key: jax.Array, holders: Any) -> Teacher:
    return Teacher(model, jax.random.fold_in(key, Stream.TEACHER), holders)
