"""One-entry cache of a state's test predictions, shared by `evaluate` and `predictions`."""

from __future__ import annotations

from typing import Generic, TypeVar

from jaxfed.federation.algorithm import ServerState
from jaxfed.federation.clients import Federation

Answer = TypeVar("Answer")


class LastAnswer(Generic[Answer]):
    """One-entry cache of a state's predictions on a federation's test split.

    Entries are compared by identity: nothing is hashed. At most one state is held; taking its predictions
    releases it.
    """

    def __init__(self) -> None:
        self._kept: tuple[ServerState, Federation, Answer] | None = None

    def keep(self, state: ServerState, federation: Federation, answer: Answer) -> None:
        """Store an answer in place of the one before."""
        self._kept = state, federation, answer

    def taken(self, state: ServerState, federation: Federation) -> Answer | None:
        """Return the answer and clear the cache; None if the cache holds another state or other examples."""
        if self._kept is None:
            return None
        of_state, of, answer = self._kept
        if of_state is not state or of.x is not federation.x or of.test is not federation.test:
            return None
        self._kept = None
        return answer
