"""One answer kept for the next who asks: of a state's test split, which is measured and then tabulated."""

from __future__ import annotations

from typing import Generic, TypeVar

from jaxfed.federation.algorithm import ServerState
from jaxfed.federation.clients import Federation

Answer = TypeVar("Answer")


class LastAnswer(Generic[Answer]):
    """What a state said of a federation's test split, from the measuring until it is asked for once more.

    The same objects are asked for, not equal ones: nothing is hashed. One state is kept at most, and with
    its answer it goes when it is taken.
    """

    def __init__(self) -> None:
        self._kept: tuple[ServerState, Federation, Answer] | None = None

    def keep(self, state: ServerState, federation: Federation, answer: Answer) -> None:
        """In place of what was kept before."""
        self._kept = state, federation, answer

    def taken(self, state: ServerState, federation: Federation) -> Answer | None:
        """The answer, which is kept no more; None where it was of another state or other examples."""
        if self._kept is None:
            return None
        of_state, of, answer = self._kept
        if of_state is not state or of.x is not federation.x or of.test is not federation.test:
            return None
        self._kept = None
        return answer
