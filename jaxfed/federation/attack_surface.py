"""Attack surface of a round: the messages from which their receivers may infer membership of examples.

An honest-but-curious server (FedCT, arXiv 2310.05696, Appendix E.1) sees the clients' messages. A method
describes them: one `View` for each kind of message, which returns, for any examples, the answers that the
receiver can derive from the message.

    for view in algorithm.views(before, after, cohort, key):
        view.answers(x)                                        # [S, n, C]

If parameters are sent, the receiver computes the answers. If labels or probabilities of public examples are
sent, it submits the examples under attack as public ones (E.1's forged unlabeled set).

If clients learn from a consensus, everybody knows that consensus, and an attacker can train shadow models on
it: `Instruction`, one for each kind of local steps of a round.

Every view names its adversary, the party or coalition that has the message:

    SERVER      the server, which follows the protocol
    MODEL       anybody with the shared model after the round, the server included
    CLIENT      one more client, without the server
    COALITION   the server and one client, who combine their messages
    NOBODY      no party but the client itself: a baseline
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import jax
import numpy as np

from jaxfed.federation.cohort import Cohort

# Kinds of answers: probabilities, by a model that is seen whole ("parameters") or by its answers alone;
# class indicators 0 and 1, one row per client; shares of clients that vote for a class, noise included;
# distances to the nearest point of another client, one column.
Kind = Literal["parameters", "probabilities", "labels", "counts", "distances"]

SERVER = "server"
ANYBODY = "anybody with the model"
CLIENT = "one more client"
COALITION = "server and a client"
NOBODY = "nobody"
# The adversaries whose messages each adversary has, its own included.
SEEN_BY = {
    SERVER: (SERVER, ANYBODY),
    ANYBODY: (ANYBODY,),
    CLIENT: (CLIENT, ANYBODY),
    COALITION: (COALITION, SERVER, CLIENT, ANYBODY),
    NOBODY: (NOBODY,),
}


class View(NamedTuple):
    """One kind of message.

    Fields:
        message: its name, a word or two; the same in all rounds.
        kind: of answers.
        client: int32 [S], the sender; -1 if the message is made of all clients' examples.
        answers: x [n, ...] -> float32 [S, n, C].
        gradient_norms: x, y int32 [n] -> float32 [S, n], |grad loss(f(x), y)| by all numbers of the message,
            if these are parameters.
        leaves: True if anybody but the client has the message; False: a baseline.
        shadows: x [n + m, ...], y int32 [n + m], bool [R, n] -> float32 [R, n + m, C], the answers in R
            simulated runs of the method whose labeled examples are those marked among the first n; None:
            such runs cost too much.
        adversary: the party that has the message, a key of `SEEN_BY`.
    """

    message: str
    kind: Kind
    client: np.ndarray
    answers: Callable[[np.ndarray], np.ndarray]
    gradient_norms: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None
    leaves: bool = True
    shadows: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray] | None = None
    adversary: str = SERVER


class Views(Protocol):
    """Function that returns the views of one round."""

    def __call__(self, before: object, after: object, cohort: Cohort, key: jax.Array) -> list[View]:
        """Return the views of the round that led from one state to the other, with its cohort and key.

        Changes nothing. The list is empty before a method has sent anything.
        """
        ...


class Instruction(NamedTuple):
    """Local steps of each client in a round, with the public targets that it receives.

    Fields:
        steps: their number; 0: none.
        on_own: True if a client also learns from its own labels in them.
        label: int32 [U], of the public examples, -1 for none; None: there are no targets. [R, U] if each of
            R models learns from a different ensemble, one row each.
        weight: float32 [U], or shaped as `label`; None if that is.
        soft: float32 [U, C], probabilities or scores; None: labels alone.
        network: keywords of the method for its clients' networks, in addition to those of its config.
    """

    steps: int
    on_own: bool = True
    label: np.ndarray | None = None
    weight: np.ndarray | None = None
    soft: np.ndarray | None = None
    network: tuple[tuple[str, Any], ...] = ()


class Instructions(Protocol):
    """Function that returns the instructions of one round to its clients."""

    def __call__(
        self, before: object, after: object, cohort: Cohort, key: jax.Array
    ) -> list[Instruction]:
        """Return, in order, the steps of a client that has taken part since the first round.

        Arguments as those of `Views`. Changes nothing.
        """
        ...
