"""Model selection: the state with the best validation accuracy, or the last one without validation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from jaxfed.federation.algorithm import FederatedAlgorithm, Metrics, ServerState


class Selected(NamedTuple):
    """A method's current state and, if it validates, the best so far. Checkpoints store this tuple.

    Fields:
        state: after the last finished round.
        best: of the state with the best validation accuracy, what evaluation reads
            (`FederatedAlgorithm.evaluated`); () for a method that does not validate.
        validation_accuracy: of `best`; -1 before the first.
        round: of `best`.
        stored: models of earlier rounds that asynchronous rounds need (`Played.stored`); ().
    """

    state: ServerState
    best: ServerState
    validation_accuracy: float
    round: int
    stored: Any = ()

    @property
    def final(self) -> ServerState:
        """The best state, or the newest one if the method does not validate."""
        return self.best if self.is_selecting else self.state

    @property
    def is_selecting(self) -> bool:
        """True if the method validates; its state may be any pytree, including a bare array."""
        return not (isinstance(self.best, tuple) and not self.best)

    @classmethod
    def first(cls, algorithm: FederatedAlgorithm, state: ServerState) -> Selected:
        """Return the selection before the first round."""
        return cls(state, algorithm.evaluated(state) if algorithm.validate else (), -1.0, 0)

    def after(
        self,
        round_number: int,
        state: ServerState,
        metrics: Metrics,
        evaluated: Callable[[ServerState], ServerState] = lambda state: state,
    ) -> Selected:
        """Return the selection after a round; without a validation accuracy the newest state is the best.

        `evaluated` is that of the method.
        """
        accuracy = metrics.get("validation_accuracy", np.inf)
        if accuracy <= self.validation_accuracy < np.inf:
            return self._replace(state=state)
        best = evaluated(state)
        return Selected(state, best, float(accuracy), round_number, self.stored)
