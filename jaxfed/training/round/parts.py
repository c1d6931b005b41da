"""Parts that a method adds to FedAvg's round, each of which adds nothing by default, and all of a method.

Hook          host code before labeling and after the server's step, with a share of the state
UploadStore   a hook: the server's store of the clients' uploads other than models
Control       values beside the model that grow by the clients' corrections
Messages      further messages between the server and single clients
Classifier    how a state classifies examples; `evaluation_by` makes a method's evaluation of it
Parts         all of these, the stages that follow from them, and the state before the first round
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.data.client_rows import ClientRows
from jaxfed.errors import UsageError
from jaxfed.federation.algorithm import Evaluate, Metrics, Predict, Predictions
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Array, Cohort
from jaxfed.federation.communication import Communication, num_bytes_of
from jaxfed.federation.evaluate import MEASURES, over_clients
from jaxfed.federation.execution import require
from jaxfed.federation.method import with_attributes
from jaxfed.kernels.devices import in_batches, rows_at_once
from jaxfed.random_streams import Stream
from jaxfed.training.aggregate import Aggregate
from jaxfed.training.local.augmentation import check_levels
from jaxfed.training.round.client_round import AfterMean, LocalUpdate
from jaxfed.training.server_state import ServerState, rows_for, stacked_for, without_tables
from jaxfed.training.specification import WITHIN_CLIENTS, Training, num_outputs

if TYPE_CHECKING:
    from jaxfed.training.round.labels_at_server import ServerWithLabels


class Hook:
    """Host code around the compiled part of every round. The hooks of a round run in order."""

    def init(self, state: ServerState, federation: Federation, key: jax.Array) -> ServerState:
        """Return the state before the first round, with this hook's share of it."""
        del federation, key
        return state

    def before(
        self, state: ServerState, cohort: Cohort, key: jax.Array, communication: Communication
    ) -> ServerState:
        """Return the state that the cohort is labeled and trained from; `key` is the round's."""
        del cohort, key, communication
        return state

    def after(
        self,
        state: ServerState,
        cohort: Cohort,
        uploads: Any,
        key: jax.Array,
        communication: Communication,
    ) -> ServerState:
        """Return the state after the round, from that after the server's step and the clients' uploads."""
        del cohort, uploads, key, communication
        return state


@dataclass(frozen=True)
class UploadStore(Hook):
    """The server's store of the clients' uploads other than models, `ServerState.memory`.

    Attributes:
        create: model, federation, key -> memory.
        update: memory, client_id int32 [K] (-1 is padding), uploads [K, ...], rounds done (int32, this one
            too), key, communication -> memory; host code, so that a protocol may run there. It counts its own
            messages.
    """

    create: Callable[[nnx.State, Federation, jax.Array], Any]
    update: Callable[..., Any]

    def init(self, state: ServerState, federation: Federation, key: jax.Array) -> ServerState:
        """Return the state with an empty memory."""
        own_key = jax.random.fold_in(key, Stream.UPLOAD_STORE)
        return state._replace(memory=self.create(state.model, federation, own_key))

    def after(
        self,
        state: ServerState,
        cohort: Cohort,
        uploads: Any,
        key: jax.Array,
        communication: Communication,
    ) -> ServerState:
        """Return the state with the round's uploads in memory."""
        ids, own_key = jnp.asarray(cohort.client_id), jax.random.fold_in(key, Stream.UPLOAD_STORE)
        memory = self.update(state.memory, ids, uploads, state.round, own_key, communication)
        return state._replace(memory=memory)


class Control(NamedTuple):
    """Values beside the model, `ServerState.control` (SCAFFOLD's c, FedDyn's h).

    They grow by the sum of the clients' `ClientUpdate.correction` over M, the number of clients that can
    train in this stage of the run (`Federation.num_training`): others never have a correction.

    Fields:
        init: parameters -> control before the first round.
        step: parameters after the aggregate's step, the round's new control -> parameters.
        is_sent: True if clients receive control and send their corrections; False if the server computes it
            from the models, and clients never see it.
    """

    init: Callable[[nnx.State], Any] = lambda parameters: ()
    step: Callable[[nnx.State, Any], nnx.State] = lambda parameters, control: parameters
    is_sent: bool = True

    def moved(
        self,
        model: nnx.State,
        state: ServerState,
        corrections: Any,
        anyone: jax.Array,
        num_training: jax.Array,
    ) -> tuple[nnx.State, Any]:
        """Return the model after this step, and the new control; without `anyone` the model stays."""
        control = jax.tree.map(
            lambda control, change: control + change.sum(axis=0) / num_training,
            state.control,
            corrections,
        )
        parameters, statistics = nnx.split_state(model, nnx.Param, ...)
        parameters = jax.tree.map(
            lambda new, old: jnp.where(anyone, new, old), self.step(parameters, control), parameters
        )
        return nnx.merge_state(parameters, statistics), control

    def scaled(self, state: ServerState, first_of_stage_2: int) -> ServerState:
        """Return the state at the start of a round; in stage 2 `control` is rescaled to that stage's M."""
        if int(state.round) != first_of_stage_2 or not jax.tree.leaves(state.control):
            return state
        first, second = state.num_training
        control = jax.tree.map(lambda leaf: leaf * (first / second), state.control)
        return state._replace(control=control)


NO_CONTROL = Control()


# Further messages of the server to each client of a cohort, before the clients train: host code that counts
# their bytes and returns a pytree [K, ...], of one shape for all rounds.
Send = Callable[[ServerState, Cohort, Communication], Any]


def nothing_sent(state: ServerState, cohort: Cohort, communication: Communication) -> Any:
    """Send the model and no more."""
    del state, cohort, communication
    return ()


def sent_to_all(
    kind: str, part: Callable[[Any], Any], num_bytes: Callable[[Any], Any] = num_bytes_of
) -> Send:
    """Send each client of a cohort the same `part` of the server's memory, [K, ...], and count its bytes."""

    def send(state: ServerState, cohort: Cohort, communication: Communication) -> Any:
        sent, client_id = part(state.memory), np.asarray(cohort.client_id)
        communication.down(kind, int(np.sum(client_id >= 0)) * int(np.sum(num_bytes(sent))))
        return stacked_for(len(client_id), sent)

    return send


class Messages(NamedTuple):
    """Messages between the server and single clients, beside the model and control.

    Fields:
        send: messages to single clients (`ClientRound.received`).
        download_bytes: parameters -> bytes in which one client receives them.
        after_mean: the clients' upload after they receive the round's new model, in place of
            `ClientUpdate.upload`; None: no such upload, and they do not receive the model.
        shares_model: False if clients have networks of their own: no model is sent either way.
    """

    send: Send = nothing_sent
    download_bytes: Callable[[nnx.State], Any] = num_bytes_of
    after_mean: AfterMean | None = None
    shares_model: bool = True

    def count_bytes(
        self,
        communication: Communication,
        state: ServerState,
        client_id: Array,
        sent: Any,
        control: Control,
        batch_statistics: str,
    ) -> None:
        """Count the models that a cohort receives and sends, and the clients' further messages, `sent`.

        For `after_mean` uploads, and "static" statistics, clients also receive the round's new model.
        """
        num_clients = int(np.sum(np.asarray(client_id) >= 0))
        parameters, statistics = nnx.split_state(state.model, nnx.Param, ...)
        download_bytes = num_clients * int(self.download_bytes(parameters))

        def up(kind: str, num_bytes: int) -> None:
            if kind not in sent:
                communication.up(kind, num_bytes)

        if self.shares_model:
            communication.down("parameters", download_bytes)
            up("parameters", num_clients * num_bytes_of(parameters))
        for kind, num_bytes in dict(sent).items():
            communication.up(kind, int(np.asarray(num_bytes).sum(dtype=np.int64)))
        if num_bytes := num_clients * num_bytes_of(state.control) * control.is_sent:
            communication.down("control", num_bytes)
            up("control", num_bytes)
        num_bytes = num_clients * num_bytes_of(statistics) if self.shares_model else 0
        if num_bytes and batch_statistics == "averaged":
            communication.down("statistics", num_bytes)
        if (num_bytes and batch_statistics == "static") or self.after_mean is not None:
            communication.down("parameters", download_bytes)
        if num_bytes:
            up("statistics", num_bytes)


MODEL_ALONE = Messages()


class Classifier(NamedTuple):
    """The classifier of a state.

    Fields:
        needed: state -> the part of it that classification needs; host code.
        probabilities: (needed, x [n, ...]) -> float32 [n, C]; jit-traceable.
        of_client: (state after a round, model that a client sent in it, client's number) -> the part needed
            to classify by that client's upload alone, for views of single uploads.
        reads_clients: False if it needs no clients' states: an evaluated state then has no tables of them.
    """

    needed: Callable[[ServerState], Any]
    probabilities: Callable[[Any, jax.Array], jax.Array]
    of_client: Callable[[ServerState, nnx.State, int], Any] = lambda state, model, client: model
    reads_clients: bool = True


def network_classifier(training: Training) -> Classifier:
    """Return the classifier by the softmax of the server's network."""

    def probabilities(model: nnx.State, x: jax.Array) -> jax.Array:
        return jax.nn.softmax(training.model.apply(model, x).astype(jnp.float32))

    return Classifier(lambda state: state.model, probabilities, reads_clients=False)


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
        is_later = rounds_done >= self.training.labeled_only_rounds
        return 2 if is_later and self.pseudo_label != "none" else 1

    def source(self, stage: int) -> str:
        """Return the name of the source of labels of stage 1 or 2."""
        return "none" if stage == 1 else self.pseudo_label

    def first_round(self, stage: int) -> int:
        """Return the number of rounds before a stage."""
        return 0 if stage == 1 else self.training.labeled_only_rounds

    def needs_labels(self, stage: int) -> bool:
        """True if clients without labels have nothing to do in a stage."""
        source = self.source(stage)
        return source == "none" or (source in WITHIN_CLIENTS and not self.takes_all)

    def first_state(self, num_rows: int, key: jax.Array, federation: Federation) -> ServerState:
        """Return the state before the first round, with rows of clients' states for `num_rows` of them.

        A client's optimizer state is there if it is kept; each round sets its learning rate.
        """
        training, local = self.training, self.training.local
        check_levels(federation, local.augment, local.strong_augment)
        start = training.initial_model
        model = training.model.init(key) if start is None else start
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
        needs = map(self.needs_labels, (1, 2))
        numbers = [federation.num_training(needs_labels=each) for each in needs]
        return state._replace(num_training=np.maximum(numbers, 1).astype(np.float32))

    def checked_state(self, key: jax.Array, federation: Federation) -> ServerState:
        """Return the state before the first round, or raise a UsageError: no training on this federation."""
        examples = self.training.server.examples
        if any(map(len, federation.partition.new)):
            raise UsageError(
                "training a model needs federation.test='central': here clients hold new points"
            )
        if len(federation.server) and examples is None:
            raise UsageError(
                "the server of these clients has labels: use "
                "Training(model, server=ServerTraining(examples=federation.server_examples))"
            )
        rows, dim = self.training.local.batches.capacity, math.prod(federation.x.shape[1:])
        require(4 * rows * dim, "a batch", key="batches", value=rows, owner="LocalTraining")
        if examples is not None:
            federation.check_arrays(examples[0], "ServerTraining.examples", examples[1])
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


class Evaluation(NamedTuple):
    """The evaluation functions of a `FederatedAlgorithm`, as its fields of these names."""

    evaluate: Evaluate
    validate: Evaluate
    predict: Predict


def evaluation_by(classifier: Classifier) -> Evaluation:
    """Build the evaluation functions of a classifier; they share one compiled program."""
    probabilities = jax.jit(classifier.probabilities)

    def predict(state: ServerState, x: np.ndarray) -> np.ndarray:
        of_batch = partial(probabilities, classifier.needed(state))
        return np.asarray(in_batches(of_batch, x, rows_at_once()))

    last: list[Any] = [(), None]  # one-entry cache: inputs and probabilities of a split

    def of_split(state: ServerState, federation: Federation, split: np.ndarray) -> np.ndarray:
        made_from = federation, split, *jax.tree.leaves(classifier.needed(state))
        if classifier.reads_clients or [*map(id, made_from)] != [*map(id, last[0])]:
            last[1] = predict(state, federation.examples(split))
            last[0] = () if classifier.reads_clients else made_from
        return last[1]

    def quality(
        name: str,
        state: ServerState,
        federation: Federation,
        split: np.ndarray,
        measures: Collection[str],
    ) -> Metrics:
        if not len(split):
            return {}
        probability, truth = of_split(state, federation, split), federation.y[split]
        return {f"{name}_{measure}": MEASURES[measure](probability, truth) for measure in measures}

    def validate(state: ServerState, federation: Federation) -> Metrics:
        measures = ("accuracy", "balanced_accuracy")
        return quality("validation", state, federation, federation.validation, measures)

    def evaluate(state: ServerState, federation: Federation) -> Metrics:
        return quality("test", state, federation, federation.test, MEASURES)

    def evaluate_clients(state: ServerState, federation: Federation) -> Metrics:
        unlabeled = ClientRows.of(federation.partition.unlabeled)
        indices, owner = unlabeled.joined, unlabeled.owner
        label = predict(state, federation.examples(indices)).argmax(axis=1)
        truth = federation.y[indices]
        return over_clients("unlabeled", label, truth, owner, federation.num_clients)

    def predictions(state: ServerState, federation: Federation) -> Predictions:
        test = federation.test
        probability = of_split(state, federation, test)
        return Predictions(
            client=np.full(len(test), -1, np.int32),
            example=test,
            role=np.full(len(test), "test"),
            label=probability.argmax(axis=1).astype(np.int32),
            confidence=probability.max(axis=1),
        )

    outputs: dict[str, Any] = {"of_clients": evaluate_clients, "predictions": predictions}
    if not classifier.reads_clients:
        outputs["evaluated"] = without_tables
    return Evaluation(with_attributes(evaluate, **outputs), validate, predict)
