"""What every learner is: all clients' models behind one protocol, whatever they are made of.

FedCT (arXiv 2310.05696, Algorithm 1) asks of a client's learner A no more than

    h_t <- A(D u P, h_{t-1})        D: the client's own labels,  P = (U, L): public examples, as all label
    L   <- h_t(U)

so that networks, trees and rules may take part. A learner holds the models of all M clients, and trains those
of a cohort in one call: networks do so in one program, estimators of other libraries in processes.

    state = learner.init(key, federation)
    state, failed, metrics = learner.fit(state, cohort, taught, key, steps)
    labels = learner.predict(state, cohort.client_id, public_x)              # [K, |U|]

A state is a pytree of arrays, which a checkpoint holds; whatever else a learner remembers it can make again
of a state and of what `init` was given. A client's model depends on its own examples, on what it is taught
and on its own keys: who else takes part, and in which order, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Array, Cohort

State = Any  # a pytree of arrays, of all M clients


class Taught(NamedTuple):
    """What public examples U clients are taught with; x is one array for all of them, never copied.

    U stays the same from round to round: an example that is not to count has the weight 0.

    Fields:
        x: [U, ...].
        label: int32 [U], of all clients alike, or [K, U], each row for one client of the cohort; -1 where
            the consensus abstained, or nothing is known yet.
        weight: float32 [U] or [K, U], 0 or more.
        soft: float32 [U, C] or [K, U, C], probabilities or scores, for learners that distill; None: none.
    """

    x: Array
    label: Array
    weight: Array
    soft: Array | None = None


class Fitted(NamedTuple):
    """After a fit.

    Fields:
        state: of all M clients; those that are not in the cohort, or failed, have their old one.
        failed: client -> why its learner could not be fitted, in one line.
        metrics: name -> number: `clients`, how many of the cohort were fitted, and means over these, such as
            `train_loss`.
    """

    state: State
    failed: dict[int, str]
    metrics: dict[str, Any]


class Init(Protocol):
    """Makes the models before the first round."""

    def __call__(self, key: jax.Array, federation: Federation) -> State:
        """Return the state of the M clients; `key` is a typed JAX key.

        It is called before a state is read from a checkpoint, too, with the same clients.
        """
        ...


class Fit(Protocol):
    """Trains the models of a cohort."""

    def __call__(
        self, state: State, cohort: Cohort, taught: Taught | None, key: jax.Array, steps: int
    ) -> Fitted:
        """Return the state after `steps` local steps of each client of the cohort.

        A client trains on its rows with a label (`cohort.y` of 0 or more) and on what it is taught. What
        a step is, is the learner's: a mini-batch of a network; one fit from scratch of an estimator that
        knows no steps, however many are asked for. `key` is the round's. Rows without a client (id -1)
        train nothing.
        """
        ...


class Predict(Protocol):
    """The classes of examples, by each of some clients."""

    def __call__(self, state: State, client_id: Array, x: Array) -> np.ndarray:
        """Return int32 [K, n] of clients int32 [K] and examples [n, ...].

        -1, no vote, of a client that has no model yet, having had nothing to learn from; whatever a row
        without a client (id -1) has means nothing.
        """
        ...


class PredictProba(Protocol):
    """The probabilities, or scores, of all classes."""

    def __call__(self, state: State, client_id: Array, x: Array) -> np.ndarray:
        """Return float32 [K, n, C]; rows of zeros where `predict` has no vote."""
        ...


class Renewed(Protocol):
    """Takes models back to before their first round."""

    def __call__(self, state: State, client_id: Array, key: jax.Array) -> State:
        """Return the state where these clients, int32 [F], have new models, drawn from `key`, and no vote."""
        ...


def unnamed(client: int) -> str:
    """What a learner is called that does not say."""
    del client
    return "learner"


class Learner(NamedTuple):
    """A supervised learner of all clients: `init(key, federation)`, `fit`, `predict`.

    Fields:
        init: before the first round.
        fit: local steps of a cohort.
        predict: classes.
        predict_proba: probabilities of the classes; None: the learner gives labels alone.
        scores: what probabilities are the softmax of (FedMD shares it); None: there is no such thing.
        renewed: for models that go on from what they were, and so from what is spoiled; None: each fit starts
            afresh.
        name_of: client -> what learns there.
        alone: what its one model is, where that is no client's.
    """

    init: Init
    fit: Fit
    predict: Predict
    predict_proba: PredictProba | None = None
    scores: PredictProba | None = None
    renewed: Renewed | None = None
    name_of: Callable[[int], str] = unnamed
    alone: str = ""

    def called(self, client: int) -> str:
        """Who a line is about: the client, or what it is in place of one, and the learner."""
        return f"{self.alone or f'client {client}'}, {self.name_of(client)}"


def check_taught(taught: Taught, cohort: Cohort) -> None:
    """Whether public examples are like the clients' own, and targets as many as they are.

    Raises:
        UsageError: other shapes or dtypes. (Bytes are read as [0, 1], floats as they are: mixed, they would
            be of two scales.)
    """
    x, own = taught.x, cohort.x
    if x.shape[1:] != own.shape[2:] or x.dtype != own.dtype:
        raise UsageError(
            f"public examples are {x.dtype} {x.shape[1:]}, clients' own {own.dtype} {own.shape[2:]}; "
            "allowed are the same"
        )
    clients, num_public = len(cohort.client_id), len(x)
    for name, target in (("label", taught.label), ("weight", taught.weight), ("soft", taught.soft)):
        if target is None:
            continue
        shape = target.shape[:-1] if name == "soft" else target.shape  # a target has C scores
        if shape not in ((num_public,), (clients, num_public)):
            raise UsageError(
                f"taught.{name}: shape {target.shape} for {num_public} public examples and {clients} "
                "clients; allowed is a target for each example, of all clients alike or of each"
            )


class LearnerError(UsageError):
    """One client's learner cannot be fitted, or predicts what is no prediction; or those of several.

    Attributes:
        client: which, the first of several.
        learner: its name.
        why: one line.
        failed: client -> why, of all that are known to have failed.
        answers: what was answered, of all that were asked, whatever the rows of `failed` hold; None where the
            others have not answered.
    """

    def __init__(
        self,
        client: int,
        learner: str,
        why: str,
        *,
        failed: Mapping[int, str] | None = None,
        answers: np.ndarray | None = None,
    ) -> None:
        self.client, self.learner, self.why = client, learner, why
        self.failed, self.answers = {client: why, **(failed or {})}, answers
        super().__init__(f"client {client}, {learner}: {why}")
