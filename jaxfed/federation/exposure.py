"""What a round shows of clients' examples to whoever receives its messages: where membership is inferred.

A server that follows the protocol and is curious (FedCT, arXiv 2310.05696, Appendix E.1) sees what clients
send it. A method says itself what that is: one `View` for each kind of message, which answers for any
examples what its receiver can make of it for these.

    for view in algorithm.views(before, after, cohort, key):
        view.answers(x)                                        # [S, n, C]

Where parameters travel the receiver computes the answers; where labels or probabilities of public examples
do, it sends the examples that it is curious about as public ones (E.1's forged unlabeled set).

Where clients are taught by what they agree on, everybody knows what that was, and who attacks can teach
models of its own the same: `Instruction`, one for each kind of local steps of a round.

Every view names its adversary, the party or coalition that has the message:

    SERVER      the server, which follows the protocol
    MODEL       anybody with the shared model after the round, the server included
    CLIENT      one more client, without the server
    COALITION   the server and one client, who put together what each of them sees
    NOBODY      no party but the client itself: a point of reference
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Protocol

import jax
import numpy as np

from jaxfed.federation.cohort import Cohort

# What answers are: probabilities, by a model that is seen whole or by its answers alone; marks 0 and 1 of
# classes, one row a client; shares of clients that say a class, noise included; distances to the nearest
# point of another client, one column.
Kind = Literal["parameters", "probabilities", "labels", "counts", "distances"]

SERVER = "server"
MODEL = "anybody with the model"
CLIENT = "one more client"
COALITION = "server and a client"
NOBODY = "nobody"
# The adversaries whose messages an adversary has, its own among them.
SEEN_BY = {
    SERVER: (SERVER, MODEL),
    MODEL: (MODEL,),
    CLIENT: (CLIENT, MODEL),
    COALITION: (COALITION, SERVER, CLIENT, MODEL),
    NOBODY: (NOBODY,),
}


class View(NamedTuple):
    """One kind of message.

    Fields:
        message: what it is, in a word or two; the same in all rounds.
        kind: of answers.
        client: int32 [S], who sent it; -1 where it is made of all clients' examples.
        answers: x [n, ...] -> float32 [S, n, C].
        gradient_norms: x, y int32 [n] -> float32 [S, n], |grad loss(f(x), y)| by all that the message holds,
            where that is parameters.
        leaves: whether anybody but the client has it; False: a point of reference.
        shadows: x [n + m, ...], y int32 [n + m], bool [R, n] -> float32 [R, n + m, C], what the receiver
            would be answered by the method itself, were of the first n examples these and no others the
            clients' labeled ones; None: playing it so often costs too much.
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
    """What a round showed."""

    def __call__(self, before: object, after: object, cohort: Cohort, key: jax.Array) -> list[View]:
        """Return the views of the round that led from one state to the other, with its cohort and key.

        Changes nothing. None before a method has sent anything.
        """
        ...


class Instruction(NamedTuple):
    """Local steps that a round asks of each of its clients, with the public targets that it is sent.

    Fields:
        steps: how many; 0: none.
        on_own: whether a client learns from labels of its own in them.
        label: int32 [U], of the public examples, -1 where there is none; None: nothing is taught. Of models
            that each learn what another ensemble says [R, U], a row for each.
        weight: float32 [U], or as `label`; None as that.
        soft: float32 [U, C], probabilities or scores; None: labels alone.
        network: keywords by which the method makes its clients' networks, beside those of its config.
    """

    steps: int
    on_own: bool = True
    label: np.ndarray | None = None
    weight: np.ndarray | None = None
    soft: np.ndarray | None = None
    network: tuple[tuple[str, Any], ...] = ()


class Instructions(Protocol):
    """What a round told its clients to do."""

    def __call__(
        self, before: object, after: object, cohort: Cohort, key: jax.Array
    ) -> list[Instruction]:
        """Return, in their order, the steps of a client that has been there from the first round on.

        Arguments as those of `Views`. Changes nothing.
        """
        ...
