"""The parts of a method of federated training, its stages, and the state before the first round."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import Course
from jaxfed.federation.clients import Federation
from jaxfed.federation.execution.settings import require
from jaxfed.random_streams import Stream
from jaxfed.training.pseudo_labels.pseudo_label import WITHIN_CLIENTS
from jaxfed.training.round.client_round import LocalUpdate
from jaxfed.training.round.labels_at_server import ServerWithLabels
from jaxfed.training.round.server_hooks import Classifier, Control, Hook, Messages
from jaxfed.training.server.aggregate import Aggregate
from jaxfed.training.server.client_rows import rows_for
from jaxfed.training.server.server_state import ServerState
from jaxfed.training.specification import Training, num_outputs


@dataclass(frozen=True, eq=False)
class Parts:
    """The arguments of `jaxfed.training.round.round.federated_training`, and what follows from them.

    A run has two stages: on given labels alone (`Training.labeled_only_rounds`), then on pseudo-labels too.
    """

    training: Training
    local_update: LocalUpdate
    pseudo_label: str
    init_client: Callable[[nnx.State, Federation, jax.Array], Any]
    control: Control
    messages: Messages
    hooks: tuple[Hook, ...]
    server: ServerWithLabels | None
    classifier: Classifier
    takes_all: bool
    aggregate: Aggregate

    def stage(self, rounds_done: int) -> int:
        """Return the stage of the next round, 1 or 2; without pseudo-labels all rounds are of stage 1."""
        return 1 + self.course.has_stage_2 * (rounds_done >= self.training.labeled_only_rounds)

    def source(self, stage: int) -> str:
        """Return the name of the source of labels of stage 1 or 2."""
        return "none" if stage == 1 else self.pseudo_label

    def first_round(self, stage: int) -> int:
        """Return the number of rounds before a stage."""
        return 0 if stage == 1 else self.training.labeled_only_rounds

    @property
    def course(self) -> Course:
        """Stage 1, on given labels alone, and stage 2, on those of a source."""
        has_stage_2 = self.pseudo_label != "none"
        is_within = self.pseudo_label in WITHIN_CLIENTS and not self.takes_all
        needs_labels = not has_stage_2 or is_within
        return Course(False, self.training.labeled_only_rounds, has_stage_2, needs_labels)

    def first_state(self, num_rows: int, key: jax.Array, federation: Federation) -> ServerState:
        """Return the state before the first round, with rows of clients' states for `num_rows` of them.

        A client's optimizer state is there if it is kept; each round sets its learning rate.
        """
        training, local = self.training, self.training.local
        local.check_examples(federation.x)
        given = training.initial_model
        model = training.model.init(key) if given is None else given
        parameters = nnx.filter_state(model, nnx.Param)
        keeps_optimizer = local.client_optimizer == "kept"
        client_key = jax.random.fold_in(key, Stream.CLIENT_STATES)
        rows = (
            self.init_client(model, federation, client_key),
            local.optimizer(jnp.float32(0)).init(parameters) if keeps_optimizer else (),
        )
        clients, optimizers = rows_for(num_rows, rows)
        state = ServerState(
            model=model,
            optimizer=self.aggregate.init(model, key),
            teacher=(),
            control=self.control.init(parameters),
            clients=clients,
            round=jnp.int32(0),
            client_optimizers=optimizers,
        )
        for hook in self.hooks:
            state = hook.init(state, federation, key)
        if not jax.tree.leaves(state.control):
            return state
        needs = True, self.course.needs_labels
        numbers = [federation.num_training(needs_labels=each) for each in needs]
        return state._replace(num_training=np.maximum(numbers, 1).astype(np.float32))

    def checked_state(self, key: jax.Array, federation: Federation) -> ServerState:
        """Return the state before the first round, or raise a UsageError: no training on this federation."""
        given = self.training.server.examples
        if self.training.training_cohort_size and given is not None:
            raise UsageError(
                "needs labels at clients",
                key="training_cohort_size",
                owner="training",
                value=self.training.training_cohort_size,
                allowed="set it to 0, or federation.labels_at='clients'",
            )
        if any(map(len, federation.partition.new)):
            raise UsageError(
                "training a model needs federation.test='central': here clients hold new points"
            )
        if len(federation.server) and given is None:
            raise UsageError(
                "the server of these clients has labels: use "
                "Training(model, server=ServerTraining(examples=federation.server_examples))"
            )
        rows, dim = self.training.local.batches.capacity, math.prod(federation.x.shape[1:])
        require(4 * rows * dim, "a batch", key="batches", value=rows, owner="LocalTraining")
        if given is not None:
            federation.check_arrays(given[0], "ServerTraining.examples", given[1])
        state = self.first_state(federation.num_clients, key, federation)
        outputs = num_outputs(
            self.classifier.probabilities, self.classifier.needed(state), federation
        )
        if outputs < federation.num_classes:
            raise UsageError(
                f"the network has {outputs} outputs and the clients have {federation.num_classes} "
                "classes; use a network with as many outputs or more"
            )
        return state
