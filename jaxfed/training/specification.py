"""The training specification shared by all methods that train a model, chosen once for an experiment.

Training(model)                                 # SGD at 0.1, an epoch a round, batches of 32
Training(model, local=LocalTraining(optimizer=optax.adam, batches=Batches("joint", size=10, epochs=5)))

Four values say what a method needs to know: how a client trains (`LocalTraining`), what the server does
(`ServerTraining`), where labels come from (`LabelSources`), and how it is executed (`ClientExecution`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxfed.data.given_examples import pair_of
from jaxfed.errors import UsageError
from jaxfed.federation.execution.settings import ClientExecution
from jaxfed.federation.method import labels_elsewhere
from jaxfed.models.model import Model
from jaxfed.settings import CountOrZero, Described, Ge, Note, check
from jaxfed.training.aggregate import WEIGHTINGS, Aggregate, Weighting, by_examples
from jaxfed.training.local.batches import Batches
from jaxfed.training.local.local_training import LocalTraining
from jaxfed.training.local.losses import Loss, weighted_loss
from jaxfed.training.pseudo_labels.label_sources import LabelSources
from jaxfed.training.pseudo_labels.pseudo_label import PseudoLabel

if TYPE_CHECKING:
    from jaxfed.federation.clients import Federation

SERVER_LEARNING_RATE = 1.0  # the new model is the mean of the clients' models
UNREAD_BY_LEARNERS = ("strong_augment", "weighting", "aggregate")  # by separate networks of clients
ModelSums = Literal["plaintext", "masked_resilient"]
_BATCHES_OF_CLIENTS: Any = None  # computed by `Training`


@dataclass(frozen=True)
class ServerTraining:
    """The server's step from the clients' updates, and its training on labels of its own.

    Attributes:
        aggregate: the server's step; None: FedAvg's (`jaxfed.training.round.round.server_optimizer` of SGD
            with rate 1).
        weighting: a client's weight in the server's mean, a number from 0 on. None: that of the method's
            paper (`jaxfed.federation.method`), by examples for a method that declares none.
        examples: x [n_s, ...] and labels int [n_s] that the server holds (`Federation.server_examples`);
            None: labels are at clients.
        batches: of the server's own training; by default `LocalTraining.labeled_batches`.
        sums: how the server gets the mean of updates: "plaintext", from each client's; or under masks, as
            their sum alone (`jaxfed.training.round.masked_sums`).
        presence: clients that leave a sum under masks in every round, as "3@upload" or "20%@survivors"
            (`jaxfed.training.consensus.client_sums`).
    """

    aggregate: (
        Annotated[Aggregate, Described("an Aggregate, such as server_optimizer(optax.sgd(1.0))")]
        | None
    ) = None
    weighting: (
        Annotated[Weighting, Described("a function of a client's data, such as by_examples")] | None
    ) = None
    examples: tuple[np.ndarray, np.ndarray] | None = None
    batches: Batches = _BATCHES_OF_CLIENTS
    sums: ModelSums = "plaintext"
    presence: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Check the types, and the server's examples by `jaxfed.data.given_examples`."""
        if self.examples is not None:
            pair = pair_of(self.examples, "ServerTraining.examples", is_labeled=True)
            object.__setattr__(self, "examples", pair)
        check(self)

    @property
    def weigh(self) -> Weighting:
        """The weighting in use."""
        return self.weighting or by_examples

    def require_labels(self) -> None:
        """Raise a UsageError if the server has no labels."""
        if self.examples is None:
            raise labels_elsewhere("server", key="examples", owner="ServerTraining", value=None)


@dataclass(frozen=True)
class Training:
    """Training specification: a model, and how clients and server train it on which labels.

    Methods combine these parts in different ways.

    Attributes:
        model: pure functions of a state.
        local: how a client trains.
        server: what the server does.
        labels: model, execution -> {name: source of labels}; by default the sources that need no settings:
            "none", "unlabeled", "network" and "teacher".
        execution: how it is executed.
        labeled_only_rounds: number of rounds of stage 1; pseudo-labels begin after them.
        training_cohort_size: number of clients of a cohort that train, drawn in every round; the others only
            take part in the labeling (`jaxfed.training.round.training_cohort`). 0: all train.
        initial_model: the model that training starts from; None: `model.init`.
        is_shared: True if several methods share it: each ignores what it does not read.
    """

    model: Model
    local: LocalTraining = field(default_factory=LocalTraining)
    server: ServerTraining = field(default_factory=ServerTraining)
    labels: Annotated[
        Callable[[Model, ClientExecution], Mapping[str, PseudoLabel]],
        Described("LabelSources(...), or a function of a model and its execution"),
    ] = field(default_factory=LabelSources)
    execution: ClientExecution = field(default_factory=ClientExecution)
    labeled_only_rounds: CountOrZero = 0
    training_cohort_size: Annotated[int, Ge(0), Note("0 is all")] = 0
    initial_model: (
        Annotated[nnx.State, Described("a state of the model, as `model.init` makes")] | None
    ) = None
    is_shared: bool = False

    def __post_init__(self) -> None:
        """Check the parts' types, and give the server the clients' batches if it has none of its own."""
        if not isinstance(self.model, Model):
            raise UsageError(
                f"Training: model is a {type(self.model).__name__}; from_flax(module, input_shape) makes a "
                "Model of a Flax module"
            )
        check(self)
        if self.server.batches is None:
            batches = self.local.labeled_batches
            object.__setattr__(self, "server", replace(self.server, batches=batches))

    @property
    def loss(self) -> Loss:
        """The clients' loss, from `local.pointwise` and `local.augment`; methods may wrap it."""
        return weighted_loss(self.model, augment=self.local.augment, pointwise=self.local.pointwise)

    @cached_property
    def pseudo_labels(self) -> Mapping[str, PseudoLabel]:
        """The sources of labels for this model, by name."""
        return self.labels(self.model, self.execution)

    def read_by(
        self, method: str, unread: Collection[str], weighting: str | None = None
    ) -> Training:
        """Return the training as a method reads it.

        Args:
            method: its name.
            unread: fields of `local` and `server` that it does not read; of a shared training these get their
                defaults, else a field with another value is a UsageError.
            weighting: key of `WEIGHTINGS`, used if the training has no weighting; None: leave it out.
        """
        read = self.with_defaults(unread) if self.is_shared else self
        for part in () if self.is_shared else (self.local, self.server):
            for each in fields(part):
                if each.name in unread and getattr(part, each.name) is not each.default:
                    raise UsageError(
                        f"{method!r} does not read it",
                        key=each.name,
                        owner=type(part).__name__,
                        allowed="leave it out",
                    )
        if weighting is None or read.server.weighting is not None:
            return read
        return read.with_server(weighting=WEIGHTINGS[weighting])

    def with_defaults(self, names: Collection[str]) -> Training:
        """Return the same training with these fields of `local` and `server` at their defaults."""
        local, server = (
            {each.name: each.default for each in fields(part) if each.name in names}
            for part in (self.local, self.server)
        )
        return self.with_local(**local).with_server(**server)

    def with_local(self, **changes: Any) -> Training:
        """Return the same training with these fields of `local` changed."""
        return replace(self, local=replace(self.local, **changes))

    def with_server(self, **changes: Any) -> Training:
        """Return the same training with these fields of `server` changed."""
        return replace(self, server=replace(self.server, **changes))

    def with_states(self, model: Model, made: Callable[[nnx.State], nnx.State]) -> Training:
        """Return the same training of another model; `made` maps the plain model's states to its states."""
        given = self.initial_model
        return replace(self, model=model, initial_model=None if given is None else made(given))


def num_outputs(
    apply: Callable[[Any, jax.Array], jax.Array], state: Any, federation: Federation
) -> int:
    """Return the number of outputs of a network, or a classifier, for the clients' examples."""
    x = jax.ShapeDtypeStruct((1, *federation.x.shape[1:]), jnp.float32)
    try:
        return int(jax.eval_shape(apply, state, x).shape[-1])
    except (TypeError, ValueError) as error:
        line = " ".join(str(error).split())[:300]
        raise UsageError(
            f"the network does not take examples of {federation.x.shape[1:]}: {line}"
        ) from error
