"""The interface of a method: an algorithm over cohorts of clients.

A method is two pure functions and an evaluation. `init` makes the server's state, `round` advances it with
the data of one cohort, `evaluate` measures the quality of a state. `jaxfed.federation.rounds` has the only
loop that calls `round`; `jaxfed.algorithms` has the methods, one file each.

    state = algorithm.init(key, federation)
    for t in range(rounds):
        cohort = federation.cohort(sampled_clients)
        state, metrics = algorithm.round(state, cohort, fold_in(key, t))
    metrics = algorithm.evaluate(state, federation)

A method that runs on a network has a server that asks clients, and a client that answers.

    parties = on_network(algorithm)                 # None: the method runs in one process alone
    init, round = parties.server(ask, federation)   # at the server; `federation` has a census, no client data
    own = parties.client.init(key, federation)      # at client j
    own, reply = parties.client.answer(step, own, request, cohort)

A round of a network is the simulation's round with `ask` in place of the clients' computation. A step is a
pure function of a client's stored state and one request, so each may be answered by a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jaxfed.errors import UsageError
from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort
from jaxfed.settings import unwrapped

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


class OnNetwork(NamedTuple):
    """A method on a network.

    Fields:
        server: ask, federation -> `Init` and `Round` of the server, whose cohorts have no examples.
        client: the side of a client.
        evaluate: the server's measurement of a state without models; None: that of the method.
    """

    server: Callable[[Ask, Federation], tuple[Init, Round]]
    client: ClientSide
    evaluate: Evaluate | None = None


class FederatedAlgorithm(NamedTuple):
    """A federated method: `init(key, federation)`, `round(state, cohort, key)`, `evaluate`.

    `validate`, where a method has one, measures a state on the validation split, as
    `validation_accuracy` among others. States are then selected by it, and `evaluate` (the test set) is
    called once, for the selected state.

    `predict(state, x)`, of a method that trains a model, returns its probabilities of the classes.

    `name`, for people: that of `jaxfed.algorithms`; "" if the factory was called otherwise.

    Modules that have to know more of a method read attributes of its `round` or `evaluate` (`attribute_of`),
    which `jaxfed.federation.method.with_attributes` sets; plain functions have none. A function that replaces
    one of these keeps the attributes by `functools.wraps`. No guarantee may depend on an attribute alone.
    """

    init: Init
    round: Round
    evaluate: Evaluate
    validate: Evaluate | None = None
    predict: Predict | None = None
    name: str = ""


def attribute_of(function: Callable[..., Any], name: str, default: Any = None) -> Any:
    """Return an attribute of a function, or of the one that it wraps (`functools.wraps`), or the default."""
    return getattr(unwrapped(function, until=name), name, default)


HAS_NO_MODEL = "has_no_model"  # metric of `evaluate`, True for a state without any model


def rounds_of(
    algorithm: FederatedAlgorithm, rounds: int, cohort_size: int, num_clients: int
) -> int:
    """Number of rounds to run: 1 for a one-shot method with all clients (size 0: all), else `rounds`."""
    is_one_shot = attribute_of(algorithm.round, "one_shot", False)
    return 1 if is_one_shot and cohort_size in (0, num_clients) else rounds


def on_network(algorithm: FederatedAlgorithm) -> OnNetwork | None:
    """Return a method on a network, from `on_network` of its round; None: it runs in one process alone."""
    made: Callable[[], OnNetwork] | None = attribute_of(algorithm.round, "on_network")
    return None if made is None else made()


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
