"""A client's side of a round of training on a network.

A step is a pure function of the client's own state and one message, so each may run in a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import Init
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort, arranged
from jaxfed.federation.communication import Communication
from jaxfed.training.local.client_data import usable
from jaxfed.training.local.local_update import ClientUpdate
from jaxfed.training.pseudo_labels.pseudo_label import PseudoLabel, PseudoLabels
from jaxfed.training.round.cohort_step import labeled_cohort, with_clients
from jaxfed.training.round.network.messages import (
    MEASURE,
    SHOW,
    UPDATE,
    NewModel,
    OwnState,
    Reply,
    Request,
    client_view,
    nobody,
)
from jaxfed.training.round.server_hooks import nothing_sent
from jaxfed.training.round.stage_program import StageProgram
from jaxfed.training.server.server_state import ServerState


@dataclass(frozen=True, eq=False)
class ClientStage:
    """One stage of a run at a client.

    Attributes:
        source: name of the source of labels.
        label: the labeling by this source.
        program: the computations, of a cohort of one client.
    """

    source: str
    label: PseudoLabel
    program: StageProgram

    @cached_property
    def update(self) -> Callable[..., tuple[OwnState, ClientUpdate, jax.Array]]:
        """The compiled local update: state, cohort, labels, received, key -> own state, update, trains."""
        program, row = self.program, np.zeros(1, np.int32)

        @jax.jit
        def update(
            state: ServerState, cohort: Cohort, labels: PseudoLabels, received: Any, key: jax.Array
        ) -> tuple[OwnState, ClientUpdate, jax.Array]:
            clients, step = program.labeled(cohort, labels), program.step
            updates = step.updates(state, step.shared(state), clients, received, key)
            after = with_clients(state, state, row, updates, is_local=program.is_local)
            own = OwnState(after.clients, after.statistics, after.client_optimizers)
            sent = updates._replace(client_state=(), optimizer_state=())
            return own, _only(sent), jnp.any(usable(clients.data))

        return update

    @cached_property
    def after_mean(self) -> Callable[..., Any]:
        """The compiled reply to a new model: step, state, cohort, labels, key -> reply."""

        def reply(
            step: str, state: ServerState, cohort: Cohort, labels: PseudoLabels, key: jax.Array
        ) -> Any:
            clients, cohort_step = labeled_cohort(cohort, labels), self.program.step
            if step == MEASURE:
                return _only(cohort_step.measured(state.model, clients, key))
            return _only(cohort_step.shown(state, clients, key))

        return jax.jit(reply, static_argnums=0)


@dataclass(frozen=True, eq=False)
class TrainingClient:
    """A client of a method that `federated_training` makes: the functions of a `ClientSide`.

    Attributes:
        stages: the two stages of a run.
        labeled_only_rounds: number of rounds of the first.
        init_server: key, federation -> the server's state, without rows of clients.
        init: key, federation -> the client's own state before its first round.
    """

    stages: tuple[ClientStage, ClientStage]
    labeled_only_rounds: int
    init_server: Init
    init: Callable[[jax.Array, Federation], OwnState]

    def answer(
        self,
        step: str,
        own: OwnState,
        message: Any,
        cohort: Cohort,
        label: PseudoLabel | None = None,
    ) -> tuple[OwnState, Any]:
        """Return the client's new own state and its reply.

        Args:
            step: name of the step.
            own: the client's state.
            message: the server's.
            cohort: the client alone.
            label: labels of the round, if not the stage's own.
        """
        cohort, state = arranged(cohort), client_view(message, own)
        given = jnp.asarray(cohort.y)
        labels = PseudoLabels(given, (given >= 0).astype(jnp.float32), {})
        if step != UPDATE:
            stage = self.stage(int(message.round) - 1)
            key = jax.random.wrap_key_data(jnp.asarray(message.key))
            return own, stage.after_mean(step, state, cohort, labels, key)
        stage = self.stage(int(message.round))
        label_key, key = jax.random.wrap_key_data(jnp.asarray(message.keys))
        labels = (label or stage.label)(state, cohort, label_key, Communication())
        received = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], message.received)
        after, update, trains = stage.update(
            state, cohort, labels._replace(metrics={}), received, key
        )
        unlabeled = jnp.float32(np.sum(np.asarray(cohort.mask) & (np.asarray(cohort.y) < 0)))
        return after, Reply(update, trains, dict(labels.metrics), unlabeled)

    def form(self, step: str, federation: Federation) -> Any:
        """Return the form of a message of the server, a pytree of `jax.ShapeDtypeStruct`.

        Raises:
            UsageError: the method has no such step.
        """
        programs = [stage.program for stage in self.stages]
        steps = {
            UPDATE: True,
            MEASURE: any(program.measures for program in programs),
            SHOW: any(program.messages.after_mean is not None for program in programs),
        }
        if not steps.get(step):
            raise UsageError(f"the method has no step {step!r}")
        key, send = jax.random.key(0), self.stages[0].program.messages.send

        def message(state: ServerState, received: Any) -> Any:
            keys = jax.random.key_data(jnp.stack([key, key]))
            return message_of(step, self.stages[0].program, state, received, keys)

        if step != UPDATE or send is nothing_sent:
            return jax.eval_shape(lambda: message(self.init_server(key, federation), ()))
        state = self.init_server(key, federation)  # a method makes its own messages on the host
        received = jax.tree.map(_row_0, send(state, nobody(), Communication()))
        return jax.eval_shape(lambda: message(state, received))

    def stage(self, rounds_done: int) -> ClientStage:
        """Return the stage of a round."""
        return self.stages[rounds_done >= self.labeled_only_rounds]


def message_of(
    step: str, program: StageProgram, state: ServerState, received: Any, keys: jax.Array
) -> Request | NewModel:
    """Return the server's message to one client; `keys` are data of the labeling's and the training's."""
    if step != UPDATE:
        return NewModel(state.model, state.round, keys[1])
    control = state.control if program.control.is_sent else ()
    return Request(state.model, control, state.round, received, keys)


def _only(stacked: Any) -> Any:
    """The one row of a cohort of one client."""
    return jax.tree.map(_row_0, stacked)


def _row_0(leaf: jax.Array) -> jax.Array:
    return leaf[0]
