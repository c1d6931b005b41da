"""The interface of a method: an algorithm over cohorts of clients.

A method is two pure functions and an evaluation. `init` makes the server's state, `round` advances it with
the data of one cohort, `evaluate` measures the quality of a state. `jaxfed.federation.rounds` has the only
loop that calls `round`; `jaxfed.algorithms` has the methods, one file each.

    state = algorithm.init(key, federation)
    for t in range(rounds):
        cohort = federation.cohort(sampled_clients)
        state, metrics = algorithm.round(state, cohort, fold_in(key, t))
    metrics = algorithm.evaluate(state, federation)

A method that runs on a network has two sides: a server that asks clients, and a client that answers.

    sides = algorithm.sides()                       # `sides` is None: the method runs in one process alone
    init, round = sides.server(ask, federation)     # at the server; `federation` has a census, no client data
    own = sides.client.init(key, federation)        # at client j
    own, reply = sides.client.answer(step, own, request, cohort)

A round of a network is the simulation's round with `ask` in place of the clients' computation. A step is a
pure function of a client's stored state and one request, so each may be answered by a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort

ServerState = Any  # a pytree of arrays: whatever a method carries from round to round
Metrics = dict[str, Any]  # name -> number, or a nested dict of numbers


# key, a typed JAX key, and the federation -> the state before the first round
Init = Callable[[jax.Array, Federation], ServerState]
# state, cohort, key -> the state after a round with this cohort, and metrics of the round. It is plain Python
# around jitted stages, so that a secure protocol on the host can sit between two. Metrics are numbers;
# bytes on the wire go under the name `communication`.
Round = Callable[[ServerState, Cohort, jax.Array], tuple[ServerState, Metrics]]
# state, federation -> metrics such as `test_accuracy`, against the truth that the algorithm itself never saw
Evaluate = Callable[[ServerState, Federation], Metrics]
# state, examples [n, ...] -> probabilities of the classes, float32 [n, C]
Predict = Callable[[ServerState, np.ndarray], np.ndarray]


class Predictions(NamedTuple):
    """Predictions of a state, one row per example.

    Fields:
        client: int32 [n], the client that holds the example, or, if clients have separate models, the client
            whose model predicts; -1 for an example that was held out.
        example: int64 [n], its row of `Federation.x`.
        role: str [n]: "labeled", "unlabeled" or "new" at its client; "test" if held out.
        label: int32 [n], the class; -1 for none.
        confidence: float32 [n], as the method defines it.
    """

    client: np.ndarray
    example: np.ndarray
    role: np.ndarray
    label: np.ndarray
    confidence: np.ndarray


class Unusable(ValueError):
    """A reply that its client cannot have computed by the method; the text is one line, without its data."""


# (client, reply) -> the part of the reply that enters a mean, whose norm is limited; None: no part does.
# Raises `Unusable` if a value is out of range; the client is then left out of the round.
Check = Callable[[int, Any], Any]


class Ask(Protocol):
    """Sends one request to each client, and returns the replies that come in time."""

    def __call__(
        self,
        step: str,
        requests: Mapping[int, Any],
        reply: Any,
        *,
        round_number: int,
        check: Check = lambda client, reply: None,
        in_session: bool = False,
    ) -> Mapping[int, Any]:
        """Return {client: reply}; a client that is missing has left the round.

        `reply` is the form of a reply, a pytree of `jax.ShapeDtypeStruct`; rounds count from 1. States of
        steps `in_session` serve once: a client that leaves goes on from its state before the session.
        """
        ...


class ClientSide(NamedTuple):
    """A client's side.

    Fields:
        init: key of `Init`, federation -> the client's state before its first round, a pytree of arrays.
        answer: step, own state, request, cohort of this client alone -> own state, reply.
        form: step, federation -> the form of a request, a pytree of `jax.ShapeDtypeStruct`, or of plain
            values (b"" for bytes of any length).
        stored: key of `Init`, federation -> the form of a state with bytes, which have no fixed length; None:
            that of `init`.
        placed: makes the side of one client, whose `answer` knows more than its cohort; None: it need not.
        labels: own state -> label int32 [n] and confidence float32 [n] of the client's examples, in the order
            of its cohort, or None before it has them. Left out if labels are no result of the method.
    """

    init: Callable[[jax.Array, Federation], Any]
    answer: Callable[[str, Any, Any, Cohort], tuple[Any, Any]]
    form: Callable[[str, Federation], Any]
    stored: Callable[[jax.Array, Federation], Any] | None = None
    placed: Callable[[jax.Array, Federation], ClientSide] | None = None
    labels: Callable[[Any], tuple[np.ndarray, np.ndarray] | None] | None = None

    def at(self, key: jax.Array, federation: Federation) -> ClientSide:
        """Return the side of a client of this federation; `key` is that of `Init`."""
        return self if self.placed is None else self.placed(key, federation)

    def state_form(self, key: jax.Array, federation: Federation) -> Any:
        """Return the form of a state."""
        if self.stored is not None:
            return self.stored(key, federation)
        return jax.eval_shape(lambda: self.init(key, federation))


class Sides(NamedTuple):
    """Both sides of a method.

    Fields:
        server: ask, federation -> `Init` and `Round` of the server, whose cohorts have no examples.
        client: a client's.
        evaluate: the server's measurement of a state without models; None: that of the method.
    """

    server: Callable[[Ask, Federation], tuple[Init, Round]]
    client: ClientSide
    evaluate: Evaluate | None = None


class Timed(NamedTuple):
    """One round in simulated time.

    Fields:
        clients: the clients whose updates the server's step takes, ascending.
        seconds: simulated time at which the round ends.
        version: in asynchronous rounds, the number of server steps before each client began; else ().
    """

    clients: tuple[int, ...]
    seconds: float
    version: tuple[int, ...] = ()


class Asynchronous(NamedTuple):
    """Asynchronous rounds: number of clients that train at a time; schedule of all rounds -> their method."""

    concurrency: int
    of: Callable[[Sequence[Timed]], FederatedAlgorithm]


class Course(NamedTuple):
    """Differences between the rounds of a method, and its conditions on them, for the loop that plays them.

    Fields:
        one_shot: one round labels everything the cohort holds; a second would repeat it (`rounds_of`).
            `@method(one_shot=True)` sets it.
        stage_1: number of first rounds, on given labels alone, as in FedAvg. The state after the last one is
            evaluated in any case, since compared methods begin to pseudo-label there
            (`jaxfed.federation.rounds.is_judged`).
        has_stage_2: True if later rounds differ; at least one of them is then required (`check_rounds`).
        needs_labels: True if clients without labels have nothing to do in stage 2 either, so they need not
            take part (`jaxfed.federation.rounds`). With labels at the server that is every client.
        asynchronous: asynchronous rounds, in which the server does not wait for a whole cohort; None: the
            server waits.
        check_participation: for a method whose guarantee depends on how clients take part, raises a
            `UsageError` for a `jaxfed.federation.rounds.Participation` in other cohorts or rounds.
    """

    one_shot: bool = False
    stage_1: int = 0
    has_stage_2: bool = False
    needs_labels: bool = False
    asynchronous: Asynchronous | None = None
    check_participation: Callable[[Any], None] | None = None

    def needs_labels_in(self, round_number: int) -> bool:
        """True if clients without labels have nothing to do in this round, from 1 on."""
        return self.needs_labels or round_number <= self.stage_1

    @property
    def labeled_only_rounds(self) -> int:
        """Number of first rounds that another stage follows; 0 if all rounds are alike."""
        return self.stage_1 if self.has_stage_2 else 0


class Outputs(NamedTuple):
    """Functions of the evaluated states, for what a run keeps and writes of them.

    Fields:
        evaluated: state -> the state without what no evaluation reads; selection keeps that of the best.
        clients: measures the final state on each client's own points
            (`jaxfed.federation.evaluate.over_clients`): those it wants labeled (`test`) or, if clients hold
            no test data, its unlabeled points (`unlabeled`), whose true classes training never saw.
        predictions: state, federation -> labels of all points that the method labels, or is tested on.
    """

    evaluated: Callable[[ServerState], ServerState] = lambda state: state
    clients: Evaluate | None = None
    predictions: Callable[[ServerState, Federation], Predictions] | None = None


class FederatedAlgorithm(NamedTuple):
    """A federated method: `init(key, federation)`, `round(state, cohort, key)`, `evaluate`.

    `validate`, where a method has one, measures a state on the validation split, as
    `validation_accuracy` among others. States are then selected by it, and `evaluate` (the test set) is
    called once, for the selected state.

    `predict(state, x)`, of a method that trains a model, returns its probabilities of the classes.

    `course` has the differences between its rounds and their conditions, `outputs` what a run writes.

    `sides()` returns the method's server and client for a network; None: it runs in one process alone, as a
    method does that is not declared `on_network`.

    `name`, for people: that of `jaxfed.algorithms`; "" if the factory was called otherwise.
    """

    init: Init
    round: Round
    evaluate: Evaluate
    validate: Evaluate | None = None
    predict: Predict | None = None
    course: Course = Course()
    outputs: Outputs = Outputs()
    sides: Callable[[], Sides] | None = None
    name: str = ""


HAS_NO_MODEL = "has_no_model"  # metric of `evaluate`, True for a state without any model


def rounds_of(
    algorithm: FederatedAlgorithm, rounds: int, cohort_size: int, num_clients: int
) -> int:
    """Number of rounds to run: 1 for a one-shot method with all clients (size 0: all), else `rounds`."""
    return 1 if algorithm.course.one_shot and cohort_size in (0, num_clients) else rounds


def check_rounds(labeled_only: int, rounds: int, name: str, stage_1: str) -> None:
    """Raise a UsageError unless some round follows stage 1; `name` and `stage_1` are both numbers' keys."""
    if 0 < rounds <= labeled_only:
        raise UsageError(
            f"all rounds would be of stage 1, on given labels alone, for {stage_1}={labeled_only}",
            key=name,
            value=rounds,
            allowed=f"give more rounds, or a smaller {stage_1}",
        )


def has_diverged(metrics: Metrics) -> bool:
    """True if a round's loss is infinite or NaN; False for a method without a loss."""
    return not np.isfinite(metrics.get("train_loss", 0.0))
