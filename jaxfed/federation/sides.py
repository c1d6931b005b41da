"""The two sides of a method on a network: a server that asks clients, and a client that answers.

    sides = algorithm.sides()                       # `sides` is None: the method runs in one process alone
    init, round = sides.server(ask, federation)     # at the server; `federation` has a census, no client data
    own = sides.client.init(key, federation)        # at client j
    own, reply = sides.client.answer(step, own, request, cohort)

A round of a network is the simulation's round with `ask` in place of the clients' computation. A step is a
pure function of a client's stored state and one request, so each may be answered by a process of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np

from jaxfed.federation.clients import Federation
from jaxfed.federation.cohort import Cohort


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
